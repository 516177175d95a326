package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/probe"
	"sluice.dev/sluice/internal/state"
)

// What the program needs of the kernel. Each is tried with the rules that the program is made of.
var (
	// Requirements are those of services.
	Requirements = []*probe.Requirement{
		requirement("DNAT through a map by random slot", "5.2", []string{"nft_chain_nat", "nft_nat", "nft_numgen"}, func(p *program) {
			slots := p.addSet(&set{name: "slots", key: []field{fieldSlot, ipv4.daddr, fieldProto, fieldDport}, data: []field{ipv4.daddr, fieldDport}})
			p.try(natHook, unix.NF_INET_PRE_ROUTING, newRule("").pick(ipv4, 4, slots))
		}),
		requirement("constants in keys", "4.10", []string{"nft_hash"}, func(p *program) {
			p.try("filter", unix.NF_INET_PRE_ROUTING, newRule("").constant(1))
		}),
		requirement("verdict maps", "4.1", []string{"nf_tables"}, func(p *program) {
			frontends := p.addSet(&set{name: "frontends", key: []field{ipv4.daddr, fieldProto, fieldDport}, verdict: true})
			p.try("filter", unix.NF_INET_PRE_ROUTING, newRule("").vmap(frontends.key, frontends))
		}),
		requirement("maps that packets fill", "5.4", []string{"nf_tables", "nft_ct"}, func(p *program) {
			clients := p.addSet(&set{name: "clients", dynamic: true, size: 16,
				key: append([]field{ipv4.origSaddr}, ipv4.origFrontend()...), data: []field{ipv4.daddr, fieldDport}})
			p.try("filter", unix.NF_INET_POST_ROUTING,
				newRule("").remember(ipv4, clients, time.Minute), newRule("").forget(ipv4, clients), newRule("").remembered(ipv4, clients))
		}),
		requirement("a limit for each element", "4.3", []string{"nft_limit"}, func(p *program) {
			learning := p.addSet(&set{name: "learning", dynamic: true, size: 16, key: ipv4.origFrontend()})
			p.try("filter", unix.NF_INET_POST_ROUTING, newRule("").learnsTooMuch(ipv4, learning, 1<<10, time.Minute))
		}),
		requirement("ranges of addresses", "3.13", []string{"nf_tables"}, func(p *program) {
			cidrs := p.addSet(&set{name: "cidrs", key: []field{ipv4.saddr}, interval: true})
			p.try("filter", unix.NF_INET_PRE_ROUTING, newRule("").in(cidrs.key, cidrs))
		}),
		requirement("fib address types", "4.10", []string{"nft_fib_inet"}, func(p *program) {
			p.try("filter", unix.NF_INET_PRE_ROUTING, newRule("").fromNode(true))
		}),
		requirement("original destination of a connection", "4.17", []string{"nft_ct"}, func(p *program) {
			asked := p.addSet(&set{name: "asked", key: ipv4.origFrontend()})
			p.try("filter", unix.NF_INET_POST_ROUTING, newRule("").in(asked.key, asked))
		}),
		requirement("reject while translating", "5.9", []string{"nft_reject_inet"}, func(p *program) {
			p.try(natHook, unix.NF_INET_PRE_ROUTING, newRule("").proto(unix.IPPROTO_TCP).rejectTCP(), newRule("").reject())
		}),
		requirement("masquerade", "5.2", []string{"nft_masq"}, func(p *program) {
			p.try(natHook, unix.NF_INET_POST_ROUTING, newRule("").masquerade())
		}),
	}
	// PolicyRequirements are those of policy, beside those of services.
	PolicyRequirements = []*probe.Requirement{
		requirement("reverse path by fib", "4.10", []string{"nft_fib_inet"}, func(p *program) {
			p.try("filter", unix.NF_INET_PRE_ROUTING, newRule("").wrongWay())
		}),
		requirement("connection labels", "4.8", []string{"nft_ct"}, func(p *program) {
			p.try("filter", unix.NF_INET_FORWARD, newRule("").cut(), newRule("").setCut())
		}),
		requirement("log to a netlink group, and counters", "4.10", []string{"nft_log", "nft_limit", "nft_objref", "nfnetlink_log"}, func(p *program) {
			p.counters = []string{dropped + string(state.DropPolicy)}
			p.try("filter", unix.NF_INET_FORWARD, newDropChain(state.DropPolicy).rules...)
		}),
		requirement("verdict maps by interface", "4.1", []string{"nf_tables"}, func(p *program) {
			pods := p.addSet(&set{name: "pods", key: []field{fieldDevice, ipv4.saddr}, verdict: true})
			p.try("filter", unix.NF_INET_FORWARD, newRule("").vmap(pods.key, pods))
		}),
		requirement("ingress hook", "5.10", []string{"nf_tables"}, func(p *program) {
			p.try("filter", ingressHook, newRule("").drop())
		}),
	}
	// Protection is what the driver does without where it has to.
	Protection = &probe.Requirement{
		Name: "table owner", Since: "6.9", Modules: []string{"nf_tables"},
		Without: "the table is not owned, and is put back within a second if another program flushes it",
		Check:   func(context.Context) error { return tryAlone(&program{}, tableFlagOwner|tableFlagPersist) },
	}
)

func requirement(name, since string, modules []string, fill func(*program)) *probe.Requirement {
	return &probe.Requirement{Name: name, Since: since, Modules: modules, Check: func(context.Context) error {
		p := &program{}
		fill(p)
		return tryAlone(p, 0)
	}}
}

// try adds the base chain of a requirement's program.
func (p *program) try(kind string, num uint32, rules ...rule) {
	h := &hook{kind: kind, num: num}
	if num == ingressHook {
		h.device = "lo" // which every namespace has
	}
	p.chains = []chain{{name: "base", hook: h, rules: rules}}
}

// tryAlone tries a program through a socket of its own.
func tryAlone(p *program, flags uint32) error {
	s, err := dial()
	if err != nil {
		return err
	}
	return errors.Join(try(s, p, flags), s.close())
}

// try has the kernel build a program in a table that is created and deleted in one transaction: the
// kernel checks all of it, and no packet meets it.
func try(s *socket, p *program, flags uint32) error {
	b := newBatch(TableName + "-probe")
	b.addTable(flags)
	b.addProgram(p, nil, nil)
	b.do(&b.after, unix.NFT_MSG_DELTABLE, 0, "delete it", b.tableName)
	_, err := b.send(s)
	return err
}

// Probe implements driver.Driver: it tries the whole program. Where the kernel refuses that, the
// requirements say what it lacks.
func (d *Driver) Probe(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := together.Missing(try(d.sock, d.prog, 0))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("program nftables: %w: the agent needs the capability CAP_NET_ADMIN in the network namespace it serves", err)
	case errors.Is(err, probe.ErrNotSupported):
		missing := probe.Missing(ctx, Requirements)
		if d.prog.policy != nil {
			missing = errors.Join(missing, probe.Missing(ctx, PolicyRequirements))
		}
		if missing != nil {
			err = missing
		}
	}
	return fmt.Errorf("program nftables: %w", err)
}

// together is told where the kernel refuses the program though it meets each requirement.
var together = &probe.Requirement{Name: "all rules together", Since: "6.1"}
