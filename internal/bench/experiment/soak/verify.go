package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/bench/dataplane"
	"sluice.dev/sluice/internal/bench/experiment/kubeproxy"
	"sluice.dev/sluice/internal/bench/harness"
	"sluice.dev/sluice/internal/netns"
)

// verify looks at what has become of it all once the agent has had the time to catch up.
func (t *soakRun) verify(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := waitInSync(ctx, t.process); err != nil {
		return err
	}
	plan, err := t.process.Ask().Plan(ctx)
	if err != nil {
		return err
	}
	kubeproxy.RecordProcess(t.Run, t.stand, t.process, "", planned, "", float64(plan.Operations))
	if plan.Operations > 0 {
		t.Note("What the agent would still do: %.2000s", plan.Text)
	}
	other, err := kubeproxy.NewProcess(t.Run, t.stand, dataplane.SluiceWithPolicy(t.Binary))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.Close()) }()
	if err := other.Start(); err != nil {
		return err
	}
	if err := waitInSync(ctx, other); err != nil {
		return err
	}
	got, err := listTable(t.process.Node)
	if err != nil {
		return err
	}
	want, err := listTable(other.Node)
	if err != nil {
		return err
	}
	lost, extra := difference(got, want)
	kubeproxy.RecordProcess(t.Run, t.stand, t.process, "", differences, "", float64(len(lost)+len(extra)))
	t.Logf("the table has %d parts; a fresh agent's has %d; %d are not in both", len(got), len(want), len(lost)+len(extra))
	for _, part := range append(lost[:min(len(lost), 3)], extra[:min(len(extra), 3)]...) {
		t.Note("Not in both tables: %.500s", part)
	}
	return nil
}

// waitInSync waits until an agent has programmed all that the API has. One that has just been started has to come first, and one that
// has lost its API again and again speaks of that until it has been well for some seconds. Asking makes it read all anew.
func waitInSync(ctx context.Context, s *dataplane.Process) error {
	for {
		err := s.Ask().Sync(ctx)
		if err == nil {
			return nil
		}
		pause := 6 * time.Second
		if errors.Is(err, agent.ErrNoAgent) {
			pause = 50 * time.Millisecond
		}
		if harness.Wait(ctx, pause) != nil {
			return errors.Join(err, s.Running())
		}
	}
}

// listTable lists the parts of a node's table, each as a text that is the same for whoever made it, sorted: a chain with its
// rules, a set, and each element of one.
func listTable(ns *netns.NS) ([]string, error) {
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command("nft", "--json", "list", "table", "inet", "sluice").Output()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list table in %s: %w", ns.Name, err)
	}
	var listing struct {
		Nftables []map[string]map[string]any `json:"nftables"`
	}
	if err := json.Unmarshal(out, &listing); err != nil {
		return nil, fmt.Errorf("read table: %w", err)
	}
	var parts []string
	place := map[string]int{} // of the next rule, by chain
	for _, item := range listing.Nftables {
		for kind, of := range item {
			name := fmt.Sprint(of["name"])
			delete(of, "handle")
			switch kind {
			case "metainfo", "table", "counter":
				continue
			case "rule":
				chain := fmt.Sprint(of["chain"])
				name = fmt.Sprintf("%s %d", chain, place[chain])
				place[chain]++
			case "set", "map":
				elements, _ := of["elem"].([]any) // none in an empty one
				delete(of, "elem")
				for _, e := range elements {
					parts = append(parts, text("element", name, e))
				}
			}
			parts = append(parts, text(kind, name, of))
		}
	}
	slices.Sort(parts)
	return parts, nil
}

// text renders what came as JSON as JSON again, with the keys in order.
func text(kind, name string, value any) string {
	b, err := json.Marshal(value)
	if err != nil {
		panic(err) // it was JSON before
	}
	return fmt.Sprintf("%s %s %s", kind, name, b)
}

// difference is what is in one of two sorted lists only.
func difference(a, b []string) (onlyA, onlyB []string) {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0] == b[0]:
			a, b = a[1:], b[1:]
		case a[0] < b[0]:
			onlyA, a = append(onlyA, a[0]), a[1:]
		default:
			onlyB, b = append(onlyB, b[0]), b[1:]
		}
	}
	return append(onlyA, a...), append(onlyB, b...)
}
