package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// accelerators are those that the flag --accelerate turns on.
type accelerators struct {
	known  []string // that the command has
	auto   []string // of those
	chosen []string
}

// register adds the flag; auto are the accelerators that nobody needs to know of, beside others.
func (a *accelerators) register(fl *pflag.FlagSet, auto []string, others ...string) {
	a.auto, a.known = auto, slices.Concat(auto, others)
	fl.Var(a, "accelerate", "what eBPF programs make faster, parted by commas: "+strings.Join(a.known, ", ")+", or auto for "+strings.Join(auto, ", ")+"; where one cannot be, it costs speed alone, and 'sluice status' says why")
}

// has reports whether one is to be on.
func (a *accelerators) has(name string) bool { return slices.Contains(a.chosen, name) }

// String implements pflag.Value.
func (a *accelerators) String() string {
	if len(a.chosen) == 0 {
		return "none"
	}
	return strings.Join(a.chosen, ",")
}

// Set implements pflag.Value.
func (a *accelerators) Set(list string) error {
	switch list {
	case "none":
		a.chosen = nil
		return nil
	case "auto":
		a.chosen = a.auto
		return nil
	}
	a.chosen = splitList(list)
	for _, name := range a.chosen {
		if !slices.Contains(a.known, name) {
			return fmt.Errorf("choose of %s, or auto or none", strings.Join(a.known, ", "))
		}
	}
	return nil
}

// Type implements pflag.Value.
func (a *accelerators) Type() string { return "names" }
