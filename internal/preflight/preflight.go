// Package preflight checks whether Sluice can work on a node, and says what to do where it cannot.
//
// Gather reads Facts from the system; Check evaluates them and does no I/O.
package preflight

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// Status is the severity of a result.
type Status string

// The statuses. With Fail, services would not work; with Warn, some of them may
// not, or not for long.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Result is what one check found.
type Result struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Seen   string `json:"seen"`         // what was found
	Do     string `json:"do,omitempty"` // what to do about it; empty: nothing
}

// Check evaluates the facts. The results come in a fixed order, each check with one
// result or more.
func Check(f *Facts) []Result {
	var all []Result
	for _, check := range []func(*Facts) []Result{
		kernel, mode, privileges, features, policyFeatures, fabricFeatures, offloads, joining, cutting, ruleset, optional,
		routes, forwarding, reversePath, neighbours, conntrack, liberal,
		dropping, legacy, mixed, otherProxies, podNetworks, bridged,
		agent, ports, addressesOfServices, memory, ownSysctls,
	} {
		all = append(all, check(f)...)
	}
	return all
}

// Failed reports whether a result is Fail.
func Failed(results []Result) bool {
	return slices.ContainsFunc(results, func(r Result) bool { return r.Status == Fail })
}

// Print writes the results as a table for people, with columns separated by tabs, and
// advice below what it is about. w keeps its own errors.
func Print(w io.Writer, results []Result) {
	for _, r := range results {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", r.Status, r.Check, model.Printable(r.Seen))
		if r.Do != "" {
			_, _ = fmt.Fprintf(w, "\t\t> %s\n", model.Printable(r.Do))
		}
	}
}

func one(check string, s Status, seen, do string) []Result {
	return []Result{{Check: check, Status: s, Seen: seen, Do: do}}
}

// CannotTell is the result of a check that an error prevented.
func CannotTell(check string, err error) Result {
	r := Result{Check: check, Status: Warn, Seen: "cannot tell: " + err.Error()}
	if errors.Is(err, os.ErrPermission) {
		r.Do = "run this as root"
	}
	return r
}

func cannotTell(check string, err error) []Result { return []Result{CannotTell(check, err)} }
