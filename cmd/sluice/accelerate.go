package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"sluice.dev/sluice/internal/accelerate/established"
	"sluice.dev/sluice/internal/accelerate/sockets"
	"sluice.dev/sluice/internal/accelerate/xdp"
	"sluice.dev/sluice/internal/kernel/bpf"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/preflight"
)

// accelerators are those that the flag --accelerate turns on.
type accelerators struct {
	known  []string // that the command has
	auto   []string // of those
	chosen []string
}

// nodeAccelerators are those of a node. Who does not know of one need not, but for established.
func nodeAccelerators() *accelerators {
	auto := []string{sockets.Name, xdp.Drop}
	return &accelerators{known: append(slices.Clone(auto), established.Name), auto: auto}
}

// register adds the flag.
func (a *accelerators) register(fl *pflag.FlagSet) {
	fl.Var(a, "accelerate", "what eBPF programs make faster, parted by commas: "+strings.Join(a.known, ", ")+", or auto for "+strings.Join(a.auto, ", ")+"; where one cannot be, it costs speed alone, and 'sluice status' says why")
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

// check says of each chosen one whether it can be on in a mode, with policy or without, and at
// which uplinks it cannot.
func (a *accelerators) check(m *mode, policy bool) (results []preflight.Result) {
	probes := map[string]func() error{sockets.Name: sockets.Probe, xdp.Drop: func() error { return xdp.Probe(xdp.Stages{Drop: true}) }, established.Name: established.Probe}
	for _, name := range a.chosen {
		err := bpf.Mounted()
		if err == nil {
			err = probes[name]()
		}
		switch {
		case name == established.Name && m.name != defaultMode:
			err = errors.New("it works with --mode " + defaultMode + " alone")
		case name == xdp.Drop && !policy:
			err = errors.New("it works with --policy alone")
		case name == xdp.Drop && m.policy == nil:
			err = fmt.Errorf("--mode %s carries out no policy", m.name)
		}
		r := preflight.Result{Check: name, Status: preflight.OK, Seen: "can be on"}
		if err != nil {
			r.Status, r.Seen = preflight.Warn, "cannot be on, which costs speed alone: "+bpf.Missing(err)
		} else if left := leftBy(name); len(left) > 0 {
			r.Status, r.Seen = preflight.Warn, "can be on, but not at "+strings.Join(left, ", nor at ")
		}
		results = append(results, r)
	}
	return results
}

// leftBy says which uplinks an accelerator leaves alone, and why.
func leftBy(accelerator string) (left []string) {
	uplinks, _ := link.Here.Uplinks() // without netlink nothing else works either
	cards, _ := link.Here.Cards()
	for _, name := range uplinks {
		at, err := net.InterfaceByName(name)
		if err != nil {
			continue // it has gone
		}
		if why := unfit(cards[at.Index]); why != "" && accelerator == xdp.Drop {
			left = append(left, name+": "+why)
			continue
		}
		for _, f := range link.Filters(at.Index) {
			arrives := strings.HasPrefix(f.What, "XDP")
			if arrives && accelerator == xdp.Drop || !arrives && f.Hook == "ingress" && accelerator == established.Name {
				left = append(left, f.Device+": another program has one of its own there, "+f.What)
			}
		}
	}
	return left
}

// unfit says why a node's packets that arrive by an interface are not dropped early; "": they are.
func unfit(c link.Card) string {
	switch why := xdp.Unfit(c); {
	case why != "":
		return why
	case !c.Wire:
		return "it is no network card, or a port of another interface"
	case c.NoPrograms:
		return "its driver does not run XDP programs, as far as the kernel tells"
	}
	return ""
}
