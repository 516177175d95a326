package takeover

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/model"
)

// legacyTable is one table of iptables-legacy, as iptables-save prints it.
type legacyTable struct {
	name      string
	chains    []string // of kube-proxy, to be removed
	emptied   []string // of kube-proxy, to be emptied: others use them
	jumps     []string // rules of others into them, without "-A"
	frontends []Frontend
	losses    []string
	notes     []string
}

// findLegacy finds what kube-proxy has in the tables of iptables-legacy, in each family. Their
// rules can be had and changed in their old binary form only, so that the programs that know the
// form have to be there.
func findLegacy(ctx context.Context) ([]footprint, error) {
	families, err := xtables.LegacyFamilies()
	if err != nil {
		return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	var footprints []footprint
	for _, f := range families {
		f.Tables = slices.DeleteFunc(f.Tables, func(t string) bool { return proxyChains[t] == nil })
		if len(f.Tables) == 0 {
			continue
		}
		fp, err := readLegacy(ctx, f)
		if err != nil {
			return nil, err
		}
		if fp.remove != nil {
			footprints = append(footprints, fp)
		}
	}
	return footprints, nil
}

// readLegacy reads a family; remove is nil if it has nothing of kube-proxy.
func readLegacy(ctx context.Context, f xtables.LegacyFamily) (fp footprint, err error) {
	restore, err := legacyProgram(ctx, f.Program, "restore")
	if err != nil {
		return fp, err
	}
	var what []string
	var tables []legacyTable
	for _, name := range f.Tables {
		chains, err := savedTable(ctx, f, name)
		if err != nil {
			return fp, err
		}
		t := readTable(f.Family, name, chains)
		if len(t.chains)+len(t.emptied)+len(t.jumps) == 0 {
			continue
		}
		tables = append(tables, t)
		what = append(what, model.Count(len(t.chains)+len(t.emptied), "chain")+" in table "+t.name)
		fp.frontends, fp.losses, fp.notes = append(fp.frontends, t.frontends...), append(fp.losses, t.losses...), append(fp.notes, t.notes...)
		fp.remove = func(ctx context.Context, _ drain) error { return removeLegacy(ctx, restore, tables) }
	}
	fp.what = "iptables-legacy, family " + f.Family + ": " + strings.Join(what, ", ")
	return fp, nil
}

// legacyProgram finds iptables-legacy-save and such.
func legacyProgram(ctx context.Context, program, verb string) (string, error) {
	path, err := xtables.Find(ctx, xtables.Legacy, program, verb)
	if err != nil {
		return "", fmt.Errorf("tables of iptables-legacy are in use, and there is no %s-legacy-%s on this node to read and change them: install the package iptables, or run "+
			"this where it is; `kube-proxy --cleanup` in kube-proxy's own image removes its rules, too, once it has stopped", program, verb)
	}
	return path, nil
}

// savedTable are the chains of a table.
func savedTable(ctx context.Context, f xtables.LegacyFamily, name string) ([]*xtables.Chain, error) {
	save, err := legacyProgram(ctx, f.Program, "save")
	if err != nil {
		return nil, err
	}
	out, err := xtables.Run(ctx, save, "", "-t", name)
	return xtables.Parse(out), err
}

// readTable reads what iptables-save printed of one table.
func readTable(family, name string, chains []*xtables.Chain) legacyTable {
	t := legacyTable{name: name}
	var jumps []jump
	var lines []string  // of jumps
	var at []netip.Addr // chosen for node ports
	filled := map[string]bool{}
	for _, c := range chains {
		proxys := isProxyChain(name, c.Name)
		if proxys {
			t.chains = append(t.chains, c.Name)
			filled[c.Name] = len(c.Rules) > 0
		}
		for _, rule := range c.Rules {
			r := parseRule(rule, family == "ip")
			switch {
			case proxys:
				if f, ok := r.frontend(name, c.Name); ok && namesFrontends(name, c.Name) {
					t.frontends = append(t.frontends, f)
				} else if r.choosesAddress() {
					at = append(at, r.daddr)
				}
			case isProxyChain(name, r.target):
				jumps = append(jumps, jump{c.Name, r.target, c.Policy != ""})
				lines = append(lines, c.Name+" "+rule.Text)
			}
		}
	}
	if accepts(jumps) && foreign.SavedEnds(chains, "FORWARD") {
		t.losses = append(t.losses, dropsForwarded("iptables-legacy", family))
	}
	t.frontends = placed(t.frontends, len(at) > 0, at)
	stay, emptied, notes := kept(jumps)
	t.notes = notes
	t.chains = slices.DeleteFunc(t.chains, func(c string) bool { return stay[c] || emptied[c] })
	t.emptied = slices.DeleteFunc(slices.Sorted(maps.Keys(emptied)), func(c string) bool { return !filled[c] })
	for i, j := range jumps {
		if j.builtin && !stay[j.to] {
			t.jumps = append(t.jumps, lines[i])
		}
	}
	return t
}

// protocols are the transports as iptables-save writes them.
var protocols = map[string]model.Protocol{"tcp": model.TCP, "udp": model.UDP, "sctp": model.SCTP}

// parseRule reads a rule of iptables-save.
func parseRule(rule xtables.Rule, is4 bool) xrule {
	r := xrule{is4: is4}
	for _, o := range rule.Options() {
		value := o.Arg()
		switch {
		case o.Not: // it asks for another value: as of IPv6, where all but ::1 leads to node ports
		case o.Name == "-d":
			if p, err := netip.ParsePrefix(value); err == nil && p.IsSingleIP() {
				r.daddr = p.Addr()
			} else {
				r.network = true
			}
		case o.Name == "-p":
			r.protocol = protocols[value]
		case o.Name == "--dport":
			port, _ := strconv.ParseUint(value, 10, 16)
			r.dport = uint16(port)
		case o.Name == "--comment":
			r.comment = value
		case o.Name == "--to-destination":
			r.dnat, _ = netip.ParseAddrPort(value)
		case o.Name == "-j" || o.Name == "-g":
			r.target = value
		}
	}
	return r
}

// removeLegacy removes kube-proxy's rules from each table in one transaction.
func removeLegacy(ctx context.Context, restore string, tables []legacyTable) error {
	for _, t := range tables {
		if _, err := xtables.Run(ctx, restore, t.removal(), "--noflush", "--wait", "10"); err != nil {
			return fmt.Errorf("remove kube-proxy's rules from table %s of iptables-legacy: %w", t.name, err)
		}
	}
	return nil
}

// removal is the input of iptables-restore that removes what kube-proxy has in the table.
func (t *legacyTable) removal() string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", t.name)
	for _, c := range slices.Concat(t.chains, t.emptied) {
		fmt.Fprintf(&b, ":%s - [0:0]\n", c) // this empties it
	}
	for _, j := range t.jumps {
		fmt.Fprintf(&b, "-D %s\n", j)
	}
	for _, c := range t.chains {
		fmt.Fprintf(&b, "-X %s\n", c)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}
