package takeover

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/model"
)

// legacyTable is one table of iptables-legacy, as iptables-save prints it.
type legacyTable struct {
	name    string
	chains  []string // of kube-proxy, to be removed
	emptied []string // of kube-proxy, to be emptied: others use them
	jumps   []string // rules of others into them, as iptables-save prints them, "-A …"
	claimed []Claim
	lost    []string
	noted   []string
}

// findLegacy finds what kube-proxy has in the tables of iptables-legacy, in each family. Their
// rules can be had and changed in their old binary form only, so that the programs that know the
// form have to be there.
func findLegacy(ctx context.Context) ([]part, error) {
	families, err := foreign.LegacyFamilies()
	if err != nil {
		return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	var parts []part
	for _, f := range families {
		f.Tables = slices.DeleteFunc(f.Tables, func(t string) bool { return proxyChains[t] == nil })
		if len(f.Tables) == 0 {
			continue
		}
		p, err := readLegacy(ctx, f)
		if err != nil {
			return nil, err
		}
		if p.remove != nil {
			parts = append(parts, p)
		}
	}
	return parts, nil
}

// readLegacy reads a family; remove is nil if it has nothing of kube-proxy.
func readLegacy(ctx context.Context, f foreign.LegacyFamily) (p part, err error) {
	save, err := legacyProgram(ctx, f.Program, "save")
	if err != nil {
		return p, err
	}
	restore, err := legacyProgram(ctx, f.Program, "restore")
	if err != nil {
		return p, err
	}
	var what []string
	var tables []legacyTable
	for _, name := range f.Tables {
		out, err := run(ctx, nil, save, "-t", name)
		if err != nil {
			return p, err
		}
		t := parseTable(f.Family, name, string(out))
		if len(t.chains)+len(t.emptied)+len(t.jumps) == 0 {
			continue
		}
		tables = append(tables, t)
		what = append(what, model.Count(len(t.chains)+len(t.emptied), "chain")+" in table "+t.name)
		p.claims, p.losses, p.notes = append(p.claims, t.claimed...), append(p.losses, t.lost...), append(p.notes, t.noted...)
		p.remove = func(ctx context.Context, _ drain) error { return removeLegacy(ctx, restore, tables) }
	}
	p.what = "iptables-legacy, family " + f.Family + ": " + strings.Join(what, ", ")
	return p, nil
}

// legacyProgram finds iptables-legacy-save and such; on systems without alternatives they go by the
// plain name.
func legacyProgram(ctx context.Context, program, verb string) (string, error) {
	if path, err := foreign.FindProgram(program + "-legacy-" + verb); err == nil {
		return path, nil
	}
	path, err := foreign.FindProgram(program + "-" + verb)
	if err == nil {
		var version []byte
		if version, err = run(ctx, nil, path, "--version"); err == nil && !bytes.Contains(version, []byte("nf_tables")) {
			return path, nil
		}
	}
	return "", fmt.Errorf("tables of iptables-legacy are in use, and there is no %s-legacy-%s on this node to read and change them: install the package iptables, or run "+
		"this where it is; `kube-proxy --cleanup` in kube-proxy's own image removes its rules, too, once it has stopped", program, verb)
}

func run(ctx context.Context, stdin []byte, path string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %s", filepath.Base(path), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// parseTable reads what iptables-save prints of one table.
func parseTable(family, name, text string) legacyTable {
	t := legacyTable{name: name}
	var jumps []jump
	var lines []string  // of jumps
	var at []netip.Addr // chosen for node ports
	builtin, filled := map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if decl, ok := strings.CutPrefix(line, ":"); ok {
			fields := strings.Fields(decl)
			if len(fields) < 2 {
				continue
			}
			builtin[fields[0]] = fields[1] != "-"
			if isProxyChain(name, fields[0]) {
				t.chains = append(t.chains, fields[0])
			}
			continue
		}
		chain, r, ok := parseRule(line, family == "ip")
		switch {
		case !ok:
		case isProxyChain(name, chain):
			filled[chain] = true
			if claim, ok := r.claim(name, chain); ok && claimsIn(name, chain) {
				t.claimed = append(t.claimed, claim)
			} else if r.choosesAddress() {
				at = append(at, r.daddr)
			}
		case isProxyChain(name, r.target):
			jumps = append(jumps, jump{chain, r.target, builtin[chain]})
			lines = append(lines, line)
		}
	}
	if accepts(jumps) && foreign.SavedEnds(text, "FORWARD") {
		t.lost = append(t.lost, dropsForwarded("iptables-legacy", family))
	}
	t.claimed = placed(t.claimed, len(at) > 0, at)
	stay, emptied, notes := kept(jumps)
	t.noted = notes
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

// parseRule reads a line "-A CHAIN …" of iptables-save.
func parseRule(line string, is4 bool) (chain string, r xrule, ok bool) {
	words := split(line)
	if len(words) < 2 || words[0] != "-A" {
		return "", r, false
	}
	chain, r.is4 = words[1], is4
	for i := 2; i+1 < len(words); i++ {
		if words[i-1] == "!" {
			continue // it asks for another value: as of IPv6, where all but ::1 leads to node ports
		}
		value := words[i+1]
		switch words[i] {
		case "-d":
			if p, err := netip.ParsePrefix(value); err == nil && p.IsSingleIP() {
				r.daddr = p.Addr()
			} else {
				r.network = true
			}
		case "-p":
			r.protocol = protocols[value]
		case "--dport":
			port, _ := strconv.ParseUint(value, 10, 16)
			r.dport = uint16(port)
		case "--comment":
			r.comment = value
		case "--to-destination":
			r.dnat, _ = netip.ParseAddrPort(value)
		case "-j", "-g":
			r.target = value
		default:
			continue
		}
		i++
	}
	return chain, r, true
}

// split splits a line of iptables-save into words, of which some are quoted.
func split(line string) []string {
	var words []string
	var word strings.Builder
	quoted, escaped, begun := false, false, false
	for _, c := range line {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quoted:
			escaped = true
		case c == '"':
			quoted, begun = !quoted, true
		case c == ' ' && !quoted:
			if begun {
				words = append(words, word.String())
				word.Reset()
			}
			begun = false
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

// removeLegacy removes kube-proxy's rules from each table in one transaction.
func removeLegacy(ctx context.Context, restore string, tables []legacyTable) error {
	for _, t := range tables {
		if _, err := run(ctx, []byte(t.removal()), restore, "--noflush", "--wait", "10"); err != nil {
			return fmt.Errorf("remove kube-proxy's rules from table %s of iptables-legacy: %w", t.name, err)
		}
	}
	return nil
}

// removal is the input of iptables-restore that removes kube-proxy's part of the table.
func (t *legacyTable) removal() string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", t.name)
	for _, c := range slices.Concat(t.chains, t.emptied) {
		fmt.Fprintf(&b, ":%s - [0:0]\n", c) // this empties it
	}
	for _, j := range t.jumps {
		fmt.Fprintf(&b, "-D%s\n", strings.TrimPrefix(j, "-A"))
	}
	for _, c := range t.chains {
		fmt.Fprintf(&b, "-X %s\n", c)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}
