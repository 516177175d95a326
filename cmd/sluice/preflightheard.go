package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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
	type kind struct {
		carrier string
		came    heard.Came
		why     string
	}
	by := map[kind]map[string]bool{}
	for of, trial := range found {
		k := kind{of.Carrier, trial.Came, cause(trial.Err, of.Remote)}
		if by[k] == nil {
			by[k] = map[string]bool{}
		}
		by[k][fmt.Sprintf("%s (%s)", of.Node, of.Remote)] = true
	}
	compare := func(a, b kind) int {
		return cmp.Or(strings.Compare(a.carrier, b.carrier), cmp.Compare(a.came, b.came), strings.Compare(a.why, b.why))
	}
	for _, k := range slices.SortedFunc(maps.Keys(by), compare) {
		status, does, do := preflight.OK, "", ""
		switch k.came {
		case heard.Answers:
			does = "answers come back"
		case heard.Arrives:
			does = "packets get there, and no tunnel takes them yet"
		case heard.Silent:
			status, does = preflight.Warn, "nothing comes back"
			if do = fmt.Sprintf("if these nodes are up, have firewalls let %s pass between this node and them, in both directions", k.carrier); k.why != "" {
				does, do = "packets do not get there", k.why
			}
		case heard.Unknown:
			status, does, do = preflight.Warn, "cannot tell, as WireGuard answers nobody that it does not know", "once the agent runs, 'sluice fabric' tells"
		}
		results = append(results, preflight.Result{Check: checkHeard, Status: status, Seen: fmt.Sprintf("%s: %s: %s", k.carrier, does, names(by[k])), Do: do})
	}
	return results
}

// cause is what an error to a packet means; "": there is none.
func cause(err error, to netip.Addr) (text string) {
	if err != nil {
		text, _ = heard.Cause(err, to.Is4())
	}
	return text
}

// triedPeers says which BGP peers can be reached, if this node is to have any.
func triedPeers(ctx context.Context, c *compile.Compiler) (results []preflight.Result) {
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
	found, err := heard.TryTCP(ctx, to)
	if err != nil {
		return []preflight.Result{preflight.CannotTell(checkHeard, fmt.Errorf("BGP: %w", err))}
	}
	silent, ports := map[string]map[string]bool{}, map[string]bool{} // by why
	for i, name := range named {
		if found[i].Came != heard.Answers {
			why := cause(found[i].Err, to[i].To.Addr())
			if silent[why] == nil {
				silent[why] = map[string]bool{}
			}
			silent[why][fmt.Sprintf("%s (%s)", name, to[i].To)], ports[strconv.Itoa(int(to[i].To.Port()))] = true, true
		}
	}
	if len(silent) == 0 {
		return []preflight.Result{{Check: checkHeard, Status: preflight.OK, Seen: "BGP: answers come back from " + model.Count(len(peers), "peer")}}
	}
	for _, why := range slices.Sorted(maps.Keys(silent)) {
		r := preflight.Result{Check: checkHeard, Status: preflight.Warn, Seen: "BGP: packets do not get there: " + names(silent[why]), Do: why}
		if why == "" {
			r.Seen, r.Do = "BGP: nothing comes back: "+names(silent[why]), "if these peers are up, have firewalls let TCP "+names(ports)+" pass between this node and them, in both directions"
		}
		results = append(results, r)
	}
	return results
}
