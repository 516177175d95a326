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
	"sluice.dev/sluice/test/bench/dataplane"
	"sluice.dev/sluice/test/bench/experiment/kubeproxy"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/netns"
)

// verify waits until the agent has caught up and compares its table with that of a fresh agent.
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
	kubeproxy.RecordProcess(t.Run, t.cluster, t.process, "", planned, "", float64(plan.Operations))
	if plan.Operations > 0 {
		t.Note("What the agent would still do: %.2000s", plan.Text)
	}
	other, err := kubeproxy.NewProcess(t.Run, t.cluster, dataplane.SluiceWithPolicy(t.Binary))
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
	kubeproxy.RecordProcess(t.Run, t.cluster, t.process, "", differences, "", float64(len(lost)+len(extra)))
	t.Logf("the table has %d parts; a fresh agent's has %d; %d are not in both", len(got), len(want), len(lost)+len(extra))
	for _, part := range append(lost[:min(len(lost), 3)], extra[:min(len(extra), 3)]...) {
		t.Note("Not in both tables: %.500s", part)
	}
	return nil
}

// waitInSync waits until an agent has programmed everything that the API has. An agent that has
// just been started does not answer yet, and one that lost its API several times says so until it
// has been healthy for some seconds. Each request makes it read everything again.
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

// listTable lists the parts of a node's table (chains, rules, sets, elements) as sorted texts that
// do not depend on which agent made them.
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

// text renders a decoded JSON value as JSON with sorted keys.
func text(kind, name string, value any) string {
	b, err := json.Marshal(value)
	if err != nil {
		panic(err) // it was JSON before
	}
	return fmt.Sprintf("%s %s %s", kind, name, b)
}

// difference returns what is only in one of two sorted lists.
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
