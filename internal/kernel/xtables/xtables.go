// Package xtables finds and runs the programs of iptables, of both variants, and reads what
// iptables-save prints.
package xtables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Variant is one of the two programs called iptables: their rules are in the kernel side by side.
type Variant string

// The variants.
const (
	Legacy   Variant = "legacy"
	NFTables Variant = "nft" // rules that iptables translates to nftables
)

// Other is the other variant.
func (v Variant) Other() Variant {
	if v == Legacy {
		return NFTables
	}
	return Legacy
}

// LegacyFamily is an address family with tables of the variant legacy in use.
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

// Find finds what a program, "iptables" or "ip6tables", of a variant has to "save" or "restore": by
// the name that tells the variant, or by the plain one if that is of the variant. Where there is
// none, the error is an exec.ErrNotFound.
func Find(ctx context.Context, v Variant, program, verb string) (string, error) {
	path, err := lookPath(fmt.Sprintf("%s-%s-%s", program, v, verb))
	if err == nil {
		return path, nil
	}
	if plain, plainErr := lookPath(program + "-" + verb); plainErr == nil && Plain(ctx, program) == v {
		return plain, nil
	}
	return "", err
}

// lookPath finds a program on the PATH or in a directory for administrators.
func lookPath(name string) (path string, err error) {
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} {
		if path, err = exec.LookPath(dir + name); err == nil {
			return path, nil
		}
	}
	return "", &exec.Error{Name: name, Err: exec.ErrNotFound}
}

// Plain is the variant of a program that goes by the plain name; "": there is none.
func Plain(ctx context.Context, program string) Variant {
	path, err := lookPath(program)
	if err != nil {
		return ""
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	switch {
	case err != nil:
		return ""
	case bytes.Contains(out, []byte("nf_tables")):
		return NFTables
	}
	return Legacy // older ones say nothing
}

// Run runs a program that was found, in the calling thread's network namespace. Where it fails, the
// error is an exec.ExitError with what it said.
func Run(ctx context.Context, path, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return "", fmt.Errorf("run %s: %w: %s", path, err, bytes.TrimSpace(exit.Stderr))
	case err != nil:
		return "", fmt.Errorf("run %s: %w", path, err)
	}
	return string(out), nil
}
