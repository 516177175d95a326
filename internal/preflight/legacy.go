package preflight

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// readLegacy reads the rules of iptables-legacy. The kernel says which tables
// are in use; their rules are only available in its old binary form, so the program that
// reads the form has to be installed.
func readLegacy(ctx context.Context) Legacy {
	var l Legacy
	var errs []error
	for _, family := range []struct{ name, nft, names, save string }{
		{"IPv4", "ip", "ip_tables_names", "iptables-legacy-save"},
		{"IPv6", "ip6", "ip6_tables_names", "ip6tables-legacy-save"},
	} {
		b, err := os.ReadFile("/proc/thread-self/net/" + family.names)
		if errors.Is(err, os.ErrNotExist) {
			continue // not in this kernel
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		tables := strings.Fields(string(b))
		if len(tables) == 0 {
			continue // the program is not called in vain: it would bring tables into use
		}
		for _, t := range tables {
			l.Tables = append(l.Tables, family.name+" "+t)
		}
		out, err := save(ctx, family.save)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.Chains = append(l.Chains, parseSave(family.nft, out)...)
	}
	l.ReadErr = errors.Join(errs...)
	return l
}

func save(ctx context.Context, program string) (string, error) {
	path, err := FindProgram(program)
	if err != nil {
		return "", errNoSave
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path).Output()
	if err != nil {
		return "", fmt.Errorf("run %s: %w", program, err)
	}
	return string(out), nil
}

// parseSave reads what iptables-save prints.
func parseSave(family, text string) []Chain {
	var chains []Chain
	var table string
	index := map[string]int{}  // of the current table's chains
	ended := map[string]bool{} // chains whose later rules no packet reaches
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			clear(index)
			clear(ended)
		case strings.HasPrefix(line, ":"):
			fields := strings.Fields(line[1:])
			if len(fields) < 2 {
				continue
			}
			c := Chain{Family: family, Table: table, Name: fields[0]}
			if fields[1] != "-" { // only chains that packets enter by themselves have a policy
				c.Hook = strings.ToLower(fields[0])
				c.PolicyDrop = fields[1] == "DROP"
			}
			index[c.Name] = len(chains)
			chains = append(chains, c)
		case strings.HasPrefix(line, "-A "):
			name, rest, _ := strings.Cut(line[3:], " ")
			i, ok := index[name]
			if !ok || chains[i].Hook == "" || ended[name] {
				continue
			}
			ended[name] = chains[i].follow(legacyRule(rest))
		}
	}
	return chains
}

var comment = regexp.MustCompile(`-m comment --comment (?:"(?:[^"\\]|\\.)*"|\S+) ?`)

// legacyRule reads one rule, without its "-A CHAIN".
func legacyRule(text string) rule {
	fields := strings.Fields(comment.ReplaceAllString(text, ""))
	var r rule
	for i, f := range fields {
		if f != "-j" || i+1 == len(fields) {
			continue
		}
		r.always = i == 0
		switch fields[i+1] {
		case "ACCEPT":
			r.verdict = accept
		case "DROP":
			r.verdict = drop
		case "REJECT":
			r.verdict = reject
		}
	}
	r.translated = strings.Contains(text, "--ctstate DNAT") && !strings.Contains(text, "! --ctstate")
	return r
}
