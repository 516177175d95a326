package main

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/cli"
)

// accelerators reads --accelerate: those that are named, of those that there are; "none", or
// "auto", which is all of them.
func accelerators(flag string, there ...string) (on map[string]bool, err error) {
	on = map[string]bool{}
	switch flag {
	case "none", "":
		return on, nil
	case "auto":
		flag = strings.Join(there, ",")
	}
	for name := range strings.SplitSeq(flag, ",") {
		if !slices.Contains(there, name) {
			return nil, cli.Usage(fmt.Errorf("--accelerate %s: choose some of %s, or none, or auto", flag, strings.Join(there, ",")))
		}
		on[name] = true
	}
	return on, nil
}
