package harness

import (
	"time"
)

// Millis returns a duration in milliseconds.
func Millis(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// Micros returns a duration in microseconds.
func Micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
