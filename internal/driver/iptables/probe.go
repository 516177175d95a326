package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/probe"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/state"
)

// Requirements are what the driver needs of the kernel. Each is tried in a network namespace of its
// own, with the variant of the program iptables.
var Requirements = []*probe.Requirement{
	requirement("ipset", "3.11", "ip_set ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_hash_net"),
	requirement("match for sets", "3.11", "xt_set", "nat PREROUTING "+(family{}).in(setIPs, "dst")+" -j RETURN",
		"nat PREROUTING -j SET --add-set "+(family{}).name(setIPs)+" src --exist"),
	requirement("choice at random", "3.11", "xt_statistic", "nat PREROUTING -m statistic --mode random --probability 0.5 -j RETURN"),
	requirement("translation", "4.15", "iptable_nat ip6table_nat xt_nat xt_MASQUERADE",
		"nat PREROUTING -p tcp -j DNAT --to-destination 192.0.2.1:80", "nat POSTROUTING -j MASQUERADE"),
	requirement("matches for addresses and connections", "3.11", "xt_addrtype xt_conntrack xt_mark xt_tcpudp",
		"nat PREROUTING -m addrtype --src-type LOCAL -j MARK --set-xmark "+mark, "nat PREROUTING -p tcp -m tcp --dport 80 -m conntrack --ctstate DNAT -m mark --mark "+mark+" -j RETURN"),
	requirement("match by a BPF program", "3.10", "xt_bpf", "nat POSTROUTING -m bpf --bytecode "+(family{}).hairpin()+" -j RETURN"),
	requirement("reject", "3.11", "iptable_filter ip6table_filter ipt_REJECT ip6t_REJECT", "filter INPUT -p tcp -j REJECT --reject-with tcp-reset"),
	requirement("telling of drops", "2.6.16", "xt_NFLOG xt_limit nfnetlink_log", "filter FORWARD -m limit --limit 200/sec -j NFLOG --nflog-group 1 --nflog-size 128"),
}

// PolicyRequirements are what it needs beside those to judge what may pass.
var PolicyRequirements = []*probe.Requirement{
	requirement("check of the way back", "3.3", "iptable_raw ip6table_raw ipt_rpfilter ip6t_rpfilter", "raw PREROUTING -m rpfilter --invert -j RETURN"),
	requirement("labels of connections", "3.9", "xt_connlabel", fmt.Sprintf("filter FORWARD -m connlabel --label %d -j DROP", state.CutLabel)),
	requirement("several ports in a rule", "2.6.16", "xt_multiport", "filter FORWARD -p tcp -m multiport --dports 1,2 -j DROP"),
	requirement("comments", "2.6.16", "xt_comment", "filter FORWARD -m comment --comment x -j DROP"),
	requirement("writing to the kernel's log", "2.6.16", "xt_LOG nf_log_syslog", "filter FORWARD -j LOG"),
	requirement("policy before connection tracking, and before services", "3.11", "xt_CT iptable_mangle ip6table_mangle", "raw PREROUTING -j CT --notrack", "mangle PREROUTING -j MARK --set-xmark "+matched),
}

// requirement is met if all our sets can be made and the rules, each after its table and chain, can
// be added.
func requirement(name, since, modules string, rules ...string) *probe.Requirement {
	return &probe.Requirement{Name: name, Since: since, Modules: strings.Fields(modules), Check: func(ctx context.Context) error {
		i := newImage()
		for of, kind := range kinds {
			i.set((family{}).name(of), kind)
		}
		for _, r := range rules {
			at := strings.SplitN(r, " ", 3)
			i.rule(at[0], at[1], at[2])
		}
		err := try(ctx, xtables.Plain(ctx, "iptables"), i, false, nothing)
		if errors.Is(err, driver.ErrLocked) {
			return nil // the kernel was not asked
		}
		return err
	}}
}

// nothing is refused by tests.
func nothing(*imageDiff) error { return nil }

// try has the kernel take an image in a network namespace of its own. It does not wait long for the
// lock of xtables: its caller can do without an answer.
func try(ctx context.Context, v xtables.Variant, i *image, v6 bool, refuse func(*imageDiff) error) error {
	return netns.Apart(func() error {
		d, err := open(Options{Variant: v, LockWait: time.Second})
		if err != nil {
			return err
		}
		d.refuse = refuse
		return errors.Join(d.carryOut(ctx, v, diffImages(v6, newImage(), i)), d.Close())
	})
}

// Probe implements driver.Driver: it tries the whole ruleset of both families in a network
// namespace of its own. Where the kernel refuses that, the requirements say what it lacks.
func (d *Driver) Probe(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.variant(ctx)
	if err != nil {
		return err
	}
	for at, f := range d.families {
		i := newImage()
		f.whole(state.NewServices(), i)
		if d.policy {
			d.judges[at].whole(state.NewPolicy(), nil, i)
		}
		err := try(ctx, v, i, f.v6, nothing)
		switch {
		case errors.Is(err, netns.ErrApart), errors.Is(err, driver.ErrLocked):
			return nil // the first change will tell
		case errors.Is(err, unix.EPERM), errors.Is(err, os.ErrPermission):
			return fmt.Errorf("program iptables: %w: the agent needs the capabilities CAP_NET_ADMIN and CAP_NET_RAW in the network namespace it serves", err)
		case err != nil:
			needed := Requirements
			if d.policy {
				needed = slices.Concat(needed, PolicyRequirements)
			}
			if missing := probe.Missing(ctx, needed); missing != nil {
				err = missing
			}
			return fmt.Errorf("program iptables: %w", err)
		}
	}
	return nil
}
