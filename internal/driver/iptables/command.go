package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/kernel/netns"
)

// Variant is one of the two programs called iptables: their rules are in the kernel side by side.
type Variant string

// The variants.
const (
	Legacy   Variant = "legacy"
	NFTables Variant = "nft" // rules that iptables translates to nftables
)

// other is the other variant.
func (v Variant) other() Variant {
	if v == Legacy {
		return NFTables
	}
	return Legacy
}

// programs runs the programs of iptables in a network namespace.
type programs struct {
	ns   *netns.NS
	wait time.Duration
}

// lockedStatus is how iptables-restore ends when it did not get the lock, among other reasons.
const lockedStatus = 4

// lockPath is the lock of xtables, unless the environment names another one.
const lockPath = "/run/xtables.lock"

// await waits until no other program holds the lock of xtables.
func (p programs) await(ctx context.Context) error {
	f, err := os.OpenFile(cmp.Or(os.Getenv("XTABLES_LOCKFILE"), lockPath), os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return nil // iptables says why
	}
	defer func() { _ = f.Close() }() // which gives the lock back
	for end := time.Now().Add(p.wait); unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil; {
		if time.Now().After(end) {
			return p.locked()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPause):
		}
	}
	return nil
}

// lockPause is the time between two attempts to get the lock of xtables.
const lockPause = 10 * time.Millisecond

func (p programs) locked() error {
	return fmt.Errorf("change iptables: %w of xtables (%s), also after %s: end the program that holds it", driver.ErrLocked, lockPath, p.wait)
}

// locate finds a program: by the name that tells its variant, or by the plain one if that is of the
// variant.
func locate(ctx context.Context, v Variant, v6 bool, what string) (string, error) {
	name := "iptables"
	if v6 {
		name = "ip6tables"
	}
	path, err := exec.LookPath(fmt.Sprintf("%s-%s-%s", name, v, what))
	if err == nil {
		return path, nil
	}
	if plain, plainErr := exec.LookPath(name + "-" + what); plainErr == nil && plainVariant(ctx) == v {
		return plain, nil
	}
	if v == "" {
		return "", fmt.Errorf("find %s-%s: install the package iptables: %w", name, what, exec.ErrNotFound)
	}
	return "", fmt.Errorf("find iptables of the variant %s: install the package iptables, or choose the variant %s: %w", v, v.other(), err)
}

// plainVariant is what the program called iptables is; "": there is none.
func plainVariant(ctx context.Context) Variant {
	out, err := exec.CommandContext(ctx, "iptables", "--version").Output()
	switch {
	case err != nil:
		return ""
	case bytes.Contains(out, []byte("nf_tables")):
		return NFTables
	}
	return Legacy // older ones say nothing
}

// run runs a program of a family.
func (p programs) run(ctx context.Context, v Variant, v6 bool, what, input string, args ...string) ([]byte, error) {
	path, err := locate(ctx, v, v6, what)
	if err != nil {
		return nil, err
	}
	return p.runAt(ctx, path, input, args...)
}

// runAt runs a program that was located.
func (p programs) runAt(ctx context.Context, path, input string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(input)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := p.ns.Start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	err := cmd.Wait()
	if err == nil {
		for _, table := range tables {
			if bytes.Contains(out.Bytes(), []byte("# Table `"+table+"' is incompatible")) {
				return nil, fmt.Errorf("run %s: table %s: %w", path, table, errUnreadable)
			}
		}
		return out.Bytes(), nil
	}
	said := strings.TrimSpace(stderr.String())
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == lockedStatus && strings.Contains(said, "can't open lock file"):
		return nil, fmt.Errorf("run %s: %s", path, said) // the kernel was not asked
	case errors.As(err, &exit) && exit.ExitCode() == lockedStatus && strings.Contains(said, "xtables lock"):
		return nil, p.locked()
	case strings.Contains(said, "Parsing nftables rule failed"):
		err = errUnreadable
	case unsupported(said):
		err = unix.EOPNOTSUPP
	}
	return nil, fmt.Errorf("run %s: %w: %s", path, err, said)
}

// errUnreadable: iptables leaves out of what it prints a table with rules that it cannot read, our
// own rules with them, and may end without an error.
var errUnreadable = errors.New("another program, such as Tailscale, has rules there that iptables cannot read: choose --mode nftables or --iptables-variant legacy, or end that program and remove its rules")

// unsupported reports whether iptables says that a match or target is not there.
func unsupported(said string) bool {
	for _, s := range []string{"Couldn't load", "missing kernel module", "No chain/target/match by that name", "RULE_APPEND failed (No such file"} {
		if strings.Contains(said, s) {
			return true
		}
	}
	return false
}

// restore has iptables-restore change some tables, each in one transaction, and leave all that the
// input does not name as it is.
func (p programs) restore(ctx context.Context, v Variant, v6 bool, input string) error {
	_, err := p.run(ctx, v, v6, "restore", input, "--noflush", "-w", fmt.Sprint(max(1, int(p.wait.Seconds()))))
	return err
}

// save returns our rules in all tables of a family, and how many there are of others. Where there
// is no table, no program has to say so.
func (p programs) save(ctx context.Context, v Variant, v6 bool) (chains map[chain][]string, others int, err error) {
	path, err := locate(ctx, v, v6, "save")
	if err != nil {
		return nil, 0, err
	}
	if there, err := p.hasTables(v, v6); err == nil && !there {
		return map[chain][]string{}, 0, nil
	}
	out, err := p.runAt(ctx, path, "")
	if err != nil {
		return nil, 0, err
	}
	chains, others = parse(string(out))
	return chains, others, nil
}

// hasTables reports whether the kernel has tables of a variant, be they empty.
func (p programs) hasTables(v Variant, v6 bool) (there bool, err error) {
	err = p.ns.Do(func() error {
		if v == Legacy {
			used, err := foreign.LegacyFamilies()
			there = slices.ContainsFunc(used, func(f foreign.LegacyFamily) bool { return f.Family == "ip6" == v6 })
			return err
		}
		c, err := nftables.New()
		if err != nil {
			return err
		}
		found, err := c.ListTablesOfFamily(tableFamily(v6))
		there = slices.ContainsFunc(found, func(t *nftables.Table) bool { return t.Name == "security" || slices.Contains(tables, t.Name) })
		return err
	})
	return there, err
}

// tableFamily is nftables' name of a family.
func tableFamily(v6 bool) nftables.TableFamily {
	if v6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// numbers are those of protocols that the machine may have names for.
var numbers = strings.NewReplacer("-p ipencap ", "-p 4 ", "-p ipv6 ", "-p 41 ", "-p gre ", "-p 47 ")

// parse reads what iptables-save prints.
func parse(saved string) (chains map[chain][]string, others int) {
	chains = map[chain][]string{}
	before := map[chain]bool{} // others have rules there
	table := ""
	for line := range strings.Lines(saved) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case strings.HasPrefix(line, ":"+prefix):
			name, _, _ := strings.Cut(line[1:], " ")
			if c := (chain{table, name}); chains[c] == nil {
				chains[c] = nil
			}
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[len("-A "):], " ")
			if c := (chain{table, name}); !c.builtin() || strings.Contains(rule, "-j "+prefix) || strings.Contains(rule, "-g "+prefix) {
				if rule = numbers.Replace(rule); before[c] && strings.Contains(rule, " "+policyPrefix) {
					rule = late + rule
				}
				chains[c] = append(chains[c], rule)
			} else {
				before[c] = true
				others++
			}
		}
	}
	return chains, others
}
