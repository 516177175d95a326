package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/nftables/nft"
	"sluice.dev/sluice/internal/probe"
	"sluice.dev/sluice/internal/state"
)

// What the program needs of the kernel. Each is tried with the rules that the program is made of.
var (
	frontend = []nft.Field{nft.IPv4.Daddr, nft.L4Proto, nft.Dport}
	backend  = []nft.Field{nft.IPv4.Daddr, nft.Dport}

	// Requirements are those of services.
	Requirements = []*probe.Requirement{
		requirement("DNAT through a map by random slot", "5.2", []string{"nft_chain_nat", "nft_nat", "nft_numgen"}, func(p *program) {
			slots := p.addSet(&nft.Set{Name: "slots", Key: append([]nft.Field{nft.Number}, frontend...), Data: backend})
			p.try(nft.NATHook(unix.NF_INET_PRE_ROUTING, 0), nft.NewRule("").Pick(nft.IPv4, 4, slots))
		}),
		requirement("constants in keys", "4.10", []string{"nft_hash"}, func(p *program) {
			p.try(nft.FilterHook(unix.NF_INET_PRE_ROUTING, 0), nft.NewRule("").Constant(1))
		}),
		requirement("verdict maps", "4.1", []string{"nf_tables"}, func(p *program) {
			frontends := p.addSet(&nft.Set{Name: "frontends", Key: frontend, Verdict: true})
			p.try(nft.FilterHook(unix.NF_INET_PRE_ROUTING, 0), nft.NewRule("").Vmap(frontends.Key, frontends))
		}),
		requirement("maps that packets fill", "5.4", []string{"nf_tables", "nft_ct"}, func(p *program) {
			clients := p.addSet(&nft.Set{Name: "clients", Dynamic: true, Size: 16, Key: clientOf(nft.IPv4), Data: backend})
			p.try(nft.FilterHook(unix.NF_INET_POST_ROUTING, 0),
				nft.NewRule("").Update(clients, time.Minute, clients.Key, backend), nft.NewRule("").Delete(clients, clients.Key, backend),
				nft.NewRule("").HasData(clients, make([]byte, 4), clients.Key))
		}),
		requirement("a limit for each element", "4.3", []string{"nft_limit"}, func(p *program) {
			learning := p.addSet(&nft.Set{Name: "learning", Dynamic: true, Size: 16, Key: origFrontend(nft.IPv4)})
			p.try(nft.FilterHook(unix.NF_INET_POST_ROUTING, 0), nft.NewRule("").OverLimit(learning, 8, 64, time.Minute, learning.Key))
		}),
		requirement("ranges of addresses", "3.13", []string{"nf_tables"}, func(p *program) {
			cidrs := p.addSet(&nft.Set{Name: "cidrs", Key: []nft.Field{nft.IPv4.Saddr}, Interval: true})
			p.try(nft.FilterHook(unix.NF_INET_PRE_ROUTING, 0), nft.NewRule("").In(cidrs.Key, cidrs))
		}),
		requirement("fib address types", "4.10", []string{"nft_fib_inet"}, func(p *program) {
			p.try(nft.FilterHook(unix.NF_INET_PRE_ROUTING, 0), nft.NewRule("").FromNode(true))
		}),
		requirement("original destination of a connection", "4.17", []string{"nft_ct"}, func(p *program) {
			asked := p.addSet(&nft.Set{Name: "asked", Key: origFrontend(nft.IPv4)})
			p.try(nft.FilterHook(unix.NF_INET_POST_ROUTING, 0), nft.NewRule("").In(asked.Key, asked))
		}),
		requirement("reject while translating", "5.9", []string{"nft_reject_inet"}, func(p *program) {
			p.try(nft.NATHook(unix.NF_INET_PRE_ROUTING, 0), nft.NewRule("").Proto(unix.IPPROTO_TCP).RejectTCP(), nft.NewRule("").Reject())
		}),
		requirement("masquerade", "5.2", []string{"nft_masq"}, func(p *program) {
			p.try(nft.NATHook(unix.NF_INET_POST_ROUTING, 0), nft.NewRule("").Masquerade())
		}),
	}
	// PolicyRequirements are those of policy, beside those of services.
	PolicyRequirements = []*probe.Requirement{
		requirement("reverse path by fib", "4.10", []string{"nft_fib_inet"}, func(p *program) {
			p.try(nft.FilterHook(unix.NF_INET_PRE_ROUTING, 0), nft.NewRule("").WrongWay())
		}),
		requirement("connection labels", "4.8", []string{"nft_ct"}, func(p *program) {
			p.try(nft.FilterHook(unix.NF_INET_FORWARD, 0), nft.NewRule("").CtLabel(expr.CmpOpEq, cutLabel()), nft.NewRule("").SetCtLabel(cutLabel()))
		}),
		requirement("log to a netlink group, and counters", "4.10", []string{"nft_log", "nft_limit", "nft_objref", "nfnetlink_log"}, func(p *program) {
			p.counters = []string{dropped + string(state.DropPolicy)}
			p.try(nft.FilterHook(unix.NF_INET_FORWARD, 0), newDropChain(state.DropPolicy).Rules...)
		}),
		requirement("verdict maps by interface", "4.1", []string{"nf_tables"}, func(p *program) {
			pods := p.addSet(&nft.Set{Name: "pods", Key: []nft.Field{nft.IIF, nft.IPv4.Saddr}, Verdict: true})
			p.try(nft.FilterHook(unix.NF_INET_FORWARD, 0), nft.NewRule("").Vmap(pods.Key, pods))
		}),
		requirement("ingress hook", "5.10", []string{"nf_tables"}, func(p *program) {
			p.try(nft.IngressHook("lo", 0), nft.NewRule("").Drop())
		}),
	}
	// Protection is what the driver does without where it has to.
	Protection = &probe.Requirement{
		Name: "table owner", Since: "6.9", Modules: []string{"nf_tables"},
		Without: "the table is not owned, and is put back within a second if another program flushes it",
		Check:   func(context.Context) error { return tryAlone(&program{}, nft.FlagOwner|nft.FlagPersist) },
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
func (p *program) try(hook *nft.Hook, rules ...nft.Rule) {
	p.chains = []nft.Chain{{Name: "base", Hook: hook, Rules: rules}}
}

// tryAlone tries a program through a socket of its own.
func tryAlone(p *program, flags uint32) error {
	s, err := nft.Dial()
	if err != nil {
		return err
	}
	return errors.Join(try(s, p, flags), s.Close())
}

// try has the kernel build a program in a table that is created and deleted in one transaction: the
// kernel checks all of it, and no packet meets it.
func try(s *nft.Socket, p *program, flags uint32) error {
	b := nft.NewBatch(TableName + "-probe")
	b.AddTable(flags, tableComment)
	p.create(b, nil, nil)
	b.DeleteTable()
	_, err := b.Send(s)
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
