package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/heard"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
)

const checkHeard = "heard"

// fewNodes is how many names a result lists.
const fewNodes = 5

// preflightHeard says which other nodes packets get to as they will between pods, and to which BGP
// peers, if there is a source of objects that names them.
func preflightHeard(ctx context.Context, node *nodeFlags, encrypt bool, socket string) ([]preflight.Result, error) {
	if agent.Alive(socket) && !agent.Elsewhere(socket) {
		if report, err := agent.NewClient(socket).Fabric(ctx); err == nil {
			return heardBy(report), nil
		} // it has no pod network between nodes yet
	}
	if err := node.checkObjects(); errors.Is(err, errNoObjects) {
		return nil, nil
	}
	config, err := node.config()
	if err != nil {
		return nil, err
	}
	config.Policy = false
	if _, err := withKey(&config, encrypt, socket, io.Discard); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, _, _, err := compileOnce(ctx, node, config)
	if err != nil {
		return nil, err
	}
	ends := c.FarEnds()
	if len(ends) == 0 {
		return []preflight.Result{{Check: checkHeard, Status: preflight.Warn, Seen: "nothing is tried: the objects have no other node, or not this one",
			Do: "if there are other nodes, name this node's Node object with --node"}}, nil
	}
	found, err := heard.Try(ctx, c.State().Fabric, ends)
	if err != nil {
		return []preflight.Result{preflight.CannotTell(checkHeard, err)}, nil
	}
	return append(tried(found), triedPeers(ctx, c)...), nil
}

// heardBy is what an agent that runs has heard.
func heardBy(r agent.FabricReport) []preflight.Result {
	all, silent := map[string]bool{}, map[string]bool{}
	for _, b := range r.Blocks {
		if b.Heard != nil {
			all[b.Node] = true
			if b.Heard.Silent() {
				silent[b.Node] = true
			}
		}
	}
	switch {
	case len(all) == 0:
		return nil
	case len(silent) == 0:
		return []preflight.Result{{Check: checkHeard, Status: preflight.OK, Seen: "the agent hears " + model.Count(len(all), "other node")}}
	}
	return []preflight.Result{{Check: checkHeard, Status: preflight.Warn, Seen: fmt.Sprintf("of %s the agent does not hear %s", model.Count(len(all), "other node"), names(silent)), Do: "'sluice fabric' says by which way, and what to do"}}
}

func names(of map[string]bool) string {
	return model.FirstFew(slices.Sorted(maps.Keys(of)), fewNodes)
}

// tried says what came of trying, for each kind of tunnel.
func tried(found map[model.FarEnd]heard.Trial) (results []preflight.Result) {
	by := map[string]map[heard.Trial]map[string]bool{}
	for of, what := range found {
		if by[of.Carrier] == nil {
			by[of.Carrier] = map[heard.Trial]map[string]bool{}
		}
		if by[of.Carrier][what] == nil {
			by[of.Carrier][what] = map[string]bool{}
		}
		by[of.Carrier][what][fmt.Sprintf("%s (%s)", of.Node, of.Remote)] = true
	}
	for _, carrier := range slices.Sorted(maps.Keys(by)) {
		nodes := by[carrier]
		say := func(s preflight.Status, what heard.Trial, does, do string) {
			if n := nodes[what]; len(n) > 0 {
				results = append(results, preflight.Result{Check: checkHeard, Status: s, Seen: fmt.Sprintf("%s: %s: %s", carrier, does, names(n)), Do: do})
			}
		}
		say(preflight.OK, heard.Answers, "answers come back", "")
		say(preflight.OK, heard.Arrives, "packets get there, and no tunnel takes them yet", "")
		say(preflight.Warn, heard.Silent, "nothing comes back", fmt.Sprintf("if these nodes are up, have firewalls let %s pass between this node and them, in both directions", carrier))
		say(preflight.Warn, heard.Unknown, "cannot tell, as WireGuard answers nobody that it does not know", "once the agent runs, 'sluice fabric' tells")
	}
	return results
}

// triedPeers says which BGP peers can be reached, if this node is to have any.
func triedPeers(ctx context.Context, c *compile.Compiler) []preflight.Result {
	peers := c.BGPChanges().Peers
	if len(peers) == 0 {
		return nil
	}
	named := slices.Sorted(maps.Keys(peers))
	var to []heard.TCP
	for _, name := range named {
		p := peers[name]
		to = append(to, heard.TCP{From: p.Source, To: netip.AddrPortFrom(p.Address, p.Port)})
	}
	answers, err := heard.TryTCP(ctx, to)
	if err != nil {
		return []preflight.Result{preflight.CannotTell(checkHeard, fmt.Errorf("BGP: %w", err))}
	}
	silent, ports := map[string]bool{}, map[string]bool{}
	for i, name := range named {
		if !answers[i] {
			silent[fmt.Sprintf("%s (%s)", name, to[i].To)], ports[strconv.Itoa(int(to[i].To.Port()))] = true, true
		}
	}
	if len(silent) == 0 {
		return []preflight.Result{{Check: checkHeard, Status: preflight.OK, Seen: "BGP: answers come back from " + model.Count(len(peers), "peer")}}
	}
	return []preflight.Result{{Check: checkHeard, Status: preflight.Warn, Seen: "BGP: nothing comes back: " + names(silent),
		Do: "if these peers are up, have firewalls let TCP " + names(ports) + " pass between this node and them, in both directions"}}
}
