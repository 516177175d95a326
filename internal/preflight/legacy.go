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
	families, err := LegacyFamilies()
	l := Legacy{ReadErr: err}
	for _, f := range families {
		for _, t := range f.Tables {
			l.Tables = append(l.Tables, f.Name+" "+t)
		}
		out, err := save(ctx, f.Program+"-legacy-save")
		if err != nil {
			l.ReadErr = errors.Join(l.ReadErr, err)
			continue
		}
		l.Chains = append(l.Chains, parseSave(f.Family, out)...)
	}
	return l
}

// LegacyFamily is an address family with tables of iptables-legacy in use.
type LegacyFamily struct {
	Name    string // "IPv4" or "IPv6"
	Family  string // "ip" or "ip6"
	Program string // "iptables" or "ip6tables"
	Tables  []string
}

// LegacyFamilies returns the families with tables in use in the calling thread's network namespace.
// The programs of others are not to be called in vain: they would bring tables into use.
func LegacyFamilies() (used []LegacyFamily, err error) {
	for _, f := range []LegacyFamily{{Name: "IPv4", Family: "ip", Program: "iptables"}, {Name: "IPv6", Family: "ip6", Program: "ip6tables"}} {
		b, readErr := os.ReadFile("/proc/thread-self/net/" + f.Family + "_tables_names")
		if f.Tables = strings.Fields(string(b)); len(f.Tables) > 0 {
			used = append(used, f)
		}
		if !errors.Is(readErr, os.ErrNotExist) { // the kernel has no such tables
			err = errors.Join(err, readErr)
		}
	}
	return used, err
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
		r.verdict = map[string]string{"ACCEPT": accept, "DROP": drop, "REJECT": reject}[fields[i+1]]
	}
	r.translated = strings.Contains(text, "--ctstate DNAT") && !strings.Contains(text, "! --ctstate")
	return r
}
