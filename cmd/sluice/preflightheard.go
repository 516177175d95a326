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
	"sluice.dev/sluice/internal/fabric/heard"
	"sluice.dev/sluice/internal/lib/multimap"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/preflight"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

const checkHeard = "heard"

// fewNodes is how many names a result lists.
const fewNodes = 5

// preflightHeard says which other nodes packets get to as they will between pods, and to which BGP
// peers, if there is a source of objects that names them, and how many Nodes there are.
func preflightHeard(ctx context.Context, node *nodeFlags, encrypt bool, socket string) (results []preflight.Result, nodes int) {
	unnamed := errors.Is(node.checkObjects(), errNoObjects)
	if agent.Alive(socket) && agent.Elsewhere(socket) == 0 {
		if report, err := agent.NewClient(socket).Fabric(ctx); err == nil {
			asked := cmp.Or(map[bool]string{true: state.WireGuard.String()}[encrypt], encapsulations[fabricMode{&node.compiler}.String()])
			if results, same := heardBy(report, asked); same || unnamed {
				return results, 0
			}
		} // it has no pod network between nodes yet, or another one
	}
	if unnamed {
		return nil, 0
	}
	c, objects, err := compileFabric(ctx, node, encrypt, socket)
	if err != nil {
		return []preflight.Result{{Check: checkHeard, Status: preflight.Fail, Seen: "nothing is tried: " + err.Error()}}, 0
	}
	nodes = objects.Counts()[string(model.NodeKind)]
	ends := c.Fabric.FarEnds()
	if len(ends) == 0 {
		return []preflight.Result{{Check: checkHeard, Status: preflight.Warn, Seen: "nothing is tried: the objects have no other node, or not this one",
			Do: "if there are other nodes, name this node's Node object with --node"}}, nodes
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	found, err := heard.Try(ctx, c.State().Fabric, ends)
	if err != nil {
		return []preflight.Result{preflight.CannotTell(checkHeard, err)}, nodes
	}
	return append(tried(found), triedPeers(ctx, c)...), nodes
}

// compileFabric reads the objects, and compiles the ways to other nodes.
func compileFabric(ctx context.Context, node *nodeFlags, encrypt bool, socket string) (*compile.Compiler, *store.Store, error) {
	config, err := node.config()
	if err != nil {
		return nil, nil, err
	}
	config.Policy = false
	if _, err := withKey(&config, encrypt, socket, io.Discard); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, objects, _, err := compileOnce(ctx, node, config)
	return c, objects, err
}

// encapsulations are those that modes of the fabric ask for, except for pools.
var encapsulations = map[string]string{"native": state.Native.String(), "vxlan": state.VXLAN.String(), "ipip": state.IPIP.String()}

// heardBy is what an agent that runs has heard, and whether by the encapsulation that is asked for;
// "": any will do.
func heardBy(r agent.FabricReport, asked string) (results []preflight.Result, same bool) {
	all, silent, ways := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, b := range r.Blocks {
		if b.Heard != nil {
			all[b.Node], ways[b.Mode] = true, true
			if b.Heard.Silent() {
				silent[b.Node] = true
			}
		}
	}
	same = asked == "" || len(ways) == 1 && ways[asked]
	if len(all) == 0 {
		return nil, same
	}
	result := preflight.Result{Check: checkHeard, Status: preflight.OK, Seen: fmt.Sprintf("the agent that runs hears %s, by %s", model.Count(len(all), "other node"), names(ways))}
	if len(silent) > 0 {
		result.Status, result.Seen = preflight.Warn, fmt.Sprintf("of %s the agent that runs does not hear %s, by %s", model.Count(len(all), "other node"), names(silent), names(ways))
		result.Do = "'sluice fabric' says by which way, and what to do"
	}
	if !same {
		result.Status, result.Do = preflight.Warn, fmt.Sprintf("give the source of the objects, too (--kubeconfig or --manifests), to try %s beside it", asked)
	}
	return []preflight.Result{result}, same
}

func names[V any](of map[string]V) string {
	return model.FirstFew(slices.Sorted(maps.Keys(of)), fewNodes)
}

// tried says what came of trying, for each kind of tunnel.
func tried(found map[model.FarEnd]heard.Trial) (results []preflight.Result) {
	type kind struct {
		carrier string
		came    heard.Came
		why     string
	}
	by := map[kind]map[string]struct{}{}
	for of, trial := range found {
		k := kind{of.Carrier.String(), trial.Came, cause(trial.Err, of.Remote)}
		multimap.Add(by, k, fmt.Sprintf("%s (%s)", of.Node, of.Remote))
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
	if c.BGP == nil {
		return nil
	}
	peers := c.BGP.Changes().Peers
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
	silent, ports := map[string]map[string]struct{}{}, map[string]bool{} // by why
	for i, name := range named {
		if found[i].Came != heard.Answers {
			why := cause(found[i].Err, to[i].To.Addr())
			multimap.Add(silent, why, fmt.Sprintf("%s (%s)", name, to[i].To))
			ports[strconv.Itoa(int(to[i].To.Port()))] = true
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
