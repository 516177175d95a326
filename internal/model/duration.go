package model

import "time"

// Duration is a time.Duration that is text in JSON: "1.5s".
type Duration time.Duration

// String returns "1.5s".
func (d Duration) String() string { return time.Duration(d).String() }

// Seconds returns it as a number of seconds.
func (d Duration) Seconds() float64 { return time.Duration(d).Seconds() }

// MarshalText writes what String returns.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}
