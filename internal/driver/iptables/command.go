package iptables

import (
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
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/lib/wake"
)

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
		if !wake.Sleep(ctx, lockPause) {
			return ctx.Err()
		}
	}
	return nil
}

// lockPause is the time between two attempts to get the lock of xtables.
const lockPause = 10 * time.Millisecond

func (p programs) locked() error {
	return fmt.Errorf("change iptables: %w of xtables (%s), also after %s: end the program that holds it", driver.ErrLocked, lockPath, p.wait)
}

// locate finds what a program of iptables of a variant and family has to "save" or "restore".
func locate(ctx context.Context, v xtables.Variant, v6 bool, verb string) (string, error) {
	name := "iptables"
	if v6 {
		name = "ip6tables"
	}
	path, err := xtables.Find(ctx, v, name, verb)
	switch {
	case err != nil && v == "":
		return "", fmt.Errorf("find %s-%s: install the package iptables: %w", name, verb, exec.ErrNotFound)
	case err != nil:
		return "", fmt.Errorf("find iptables of the variant %s: install the package iptables, or choose the variant %s: %w", v, v.Other(), err)
	}
	return path, nil
}

// run runs a program that was located.
func (p programs) run(ctx context.Context, path, input string, args ...string) (out string, err error) {
	err = p.ns.Do(func() (err error) {
		out, err = xtables.Run(ctx, path, input, args...)
		return err
	})
	if err == nil {
		for _, table := range tables {
			if strings.Contains(out, "# Table `"+table+"' is incompatible") {
				return "", fmt.Errorf("run %s: table %s: %w", path, table, errUnreadable)
			}
		}
		return out, nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return "", err
	}
	said, locked := strings.TrimSpace(string(exit.Stderr)), exit.ExitCode() == lockedStatus
	switch {
	case locked && strings.Contains(said, "can't open lock file"):
		return "", fmt.Errorf("run %s: %s", path, said) // the kernel was not asked
	case locked && strings.Contains(said, "xtables lock"):
		return "", p.locked()
	case strings.Contains(said, "Parsing nftables rule failed"):
		return "", fmt.Errorf("run %s: %w: %s", path, errUnreadable, said)
	case unsupported(said):
		return "", fmt.Errorf("run %s: %w: %s", path, unix.EOPNOTSUPP, said)
	}
	return "", err
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
func (p programs) restore(ctx context.Context, v xtables.Variant, v6 bool, input string) error {
	path, err := locate(ctx, v, v6, "restore")
	if err == nil {
		_, err = p.run(ctx, path, input, "--noflush", "-w", fmt.Sprint(max(1, int(p.wait.Seconds()))))
	}
	return err
}

// save returns our rules in all tables of a family, and how many there are of others. Where there
// is no table, no program has to say so.
func (p programs) save(ctx context.Context, v xtables.Variant, v6 bool) (chains map[chain][]string, others int, err error) {
	path, err := locate(ctx, v, v6, "save")
	if err != nil {
		return nil, 0, err
	}
	if there, err := p.hasTables(v, v6); err == nil && !there {
		return map[chain][]string{}, 0, nil
	}
	out, err := p.run(ctx, path, "")
	if err != nil {
		return nil, 0, err
	}
	chains, others = parse(out)
	return chains, others, nil
}

// hasTables reports whether the kernel has tables of a variant, be they empty.
func (p programs) hasTables(v xtables.Variant, v6 bool) (there bool, err error) {
	err = p.ns.Do(func() error {
		if v == xtables.Legacy {
			used, err := xtables.LegacyFamilies()
			there = slices.ContainsFunc(used, func(f xtables.LegacyFamily) bool { return f.Family == "ip6" == v6 })
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

// parse returns our rules of what iptables-save printed, and how many there are of others.
func parse(saved string) (chains map[chain][]string, others int) {
	chains = map[chain][]string{}
	for _, c := range xtables.Parse(numbers.Replace(saved)) {
		of := chain{c.Table, c.Name}
		ours := make([]string, 0, len(c.Rules))
		for i, r := range c.Rules {
			if of.builtin() && !strings.Contains(r.Text, "-j "+prefix) && !strings.Contains(r.Text, "-g "+prefix) {
				others++
				continue
			}
			rule := r.Text
			if i > len(ours) && strings.Contains(rule, " "+policyPrefix) { // others have rules before it
				rule = late + rule
			}
			ours = append(ours, rule)
		}
		if !of.builtin() || len(ours) > 0 {
			chains[of] = ours
		}
	}
	return chains, others
}
