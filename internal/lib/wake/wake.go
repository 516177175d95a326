// Package wake tells a goroutine that there is something to do.
package wake

// Signal is set by any number of goroutines and received by one. However often it is set before it
// is received, it is received once: the receiver then looks for all that there is to do. It is made
// by New.
type Signal chan struct{}

// New returns a Signal that is not set.
func New() Signal { return make(Signal, 1) }

// Set has the receiver wake up. It does not wait.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default: // the receiver has not seen the last one yet
	}
}
