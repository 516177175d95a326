package harness

import (
	"time"
)

func Millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
