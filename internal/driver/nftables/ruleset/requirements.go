package ruleset

import (
	"slices"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/state"
)

// Requirement is what the ruleset needs of the kernel: since which version and with which modules
// it can do it, and a ruleset of one base chain that tries it alone.
type Requirement struct {
	Name, Since string
	Modules     []string
	Fill        func(*Ruleset)
}

var (
	frontend = []nft.Field{nft.IPv4.Daddr, nft.L4Proto, nft.Dport}
	backend  = []nft.Field{nft.IPv4.Daddr, nft.Dport}
)

// What the ruleset needs of the kernel, each with the rules that the ruleset is made of.
var (
	// Requirements are those of services.
	Requirements = []Requirement{
		{"DNAT through a map by random slot", "5.2", []string{"nft_chain_nat", "nft_nat", "nft_numgen"}, func(rs *Ruleset) {
			slots := rs.AddSet(&nft.Set{Name: "slots", Key: append([]nft.Field{nft.Number}, frontend...), Data: backend})
			rs.try(nft.NATHook(unix.NF_INET_PRE_ROUTING, 0), rule().Pick(nft.IPv4, 4, slots))
		}},
		{"constants in keys", "4.10", []string{"nft_hash"}, func(rs *Ruleset) {
			rs.try(nft.FilterHook(unix.NF_INET_PRE_ROUTING, 0), rule().Constant(1))
		}},
		{"verdict maps", "4.1", []string{"nf_tables"}, func(rs *Ruleset) {
			frontends := rs.AddSet(&nft.Set{Name: "frontends", Key: frontend, Verdict: true})
			rs.try(nft.FilterHook(unix.NF_INET_PRE_ROUTING, 0), rule().Vmap(frontends, frontends.Key...))
		}},
		{"maps that packets fill", "5.4", []string{"nf_tables", "nft_ct"}, func(rs *Ruleset) {
			clients := rs.AddSet(&nft.Set{Name: "clients", Dynamic: true, Size: 16, Key: clientOf(nft.IPv4), Data: backend})
			stay, _ := rule().FindIn(nft.IPv4, clients, rs.AddSet(&nft.Set{Name: "backends", Key: slices.Concat(frontend, backend)}), false)
			rs.try(nft.FilterHook(unix.NF_INET_POST_ROUTING, 0),
				rule().Update(clients, time.Minute, clients.Key, backend), rule().Delete(clients, clients.Key, backend),
				rule().HasData(clients, make([]byte, 4), clients.Key), stay)
		}},
		{"a limit for each element", "4.3", []string{"nft_limit"}, func(rs *Ruleset) {
			learning := rs.AddSet(&nft.Set{Name: "learning", Dynamic: true, Size: 16, Key: origFrontend(nft.IPv4)})
			rs.try(nft.FilterHook(unix.NF_INET_POST_ROUTING, 0), rule().OverLimit(learning, 8, 64, time.Minute, learning.Key))
		}},
		{"fib address types", "4.10", []string{"nft_fib_inet"}, func(rs *Ruleset) {
			rs.try(nft.FilterHook(unix.NF_INET_PRE_ROUTING, 0), rule().FromNode(true))
		}},
		{"original destination of a connection", "4.17", []string{"nft_ct"}, func(rs *Ruleset) {
			asked := rs.AddSet(&nft.Set{Name: "asked", Key: origFrontend(nft.IPv4)})
			rs.try(nft.FilterHook(unix.NF_INET_POST_ROUTING, 0), rule().In(asked, asked.Key...))
		}},
		{"reject while translating", "5.9", []string{"nft_reject_inet"}, func(rs *Ruleset) {
			rs.try(nft.NATHook(unix.NF_INET_PRE_ROUTING, 0), rule().Proto(unix.IPPROTO_TCP).RejectTCP(), rule().Reject())
		}},
		{"masquerade", "5.2", []string{"nft_masq"}, func(rs *Ruleset) {
			rs.try(nft.NATHook(unix.NF_INET_POST_ROUTING, 0), rule().Masquerade())
		}},
		{"log to a netlink group, and counters", "4.10", []string{"nft_log", "nft_limit", "nft_objref", "nfnetlink_log"}, func(rs *Ruleset) {
			rs.Counters = []string{DropPrefix + string(state.DropStray)}
			rs.try(nft.FilterHook(unix.NF_INET_FORWARD, 0), newDropChain(state.DropStray).Rules...)
		}},
	}
	// PolicyRequirements are those of policy, beside those of services.
	PolicyRequirements = []Requirement{
		{"reverse path by fib", "4.10", []string{"nft_fib_inet"}, func(rs *Ruleset) {
			rs.try(nft.FilterHook(unix.NF_INET_PRE_ROUTING, 0), rule().WrongWay())
		}},
		{"connection labels", "4.8", []string{"nft_ct"}, func(rs *Ruleset) {
			rs.try(nft.FilterHook(unix.NF_INET_FORWARD, 0), rule().CtLabel(expr.CmpOpEq, cutLabel()), rule().SetCtLabel(cutLabel()))
		}},
		{"verdict maps by interface", "4.1", []string{"nf_tables"}, func(rs *Ruleset) {
			pods := rs.AddSet(&nft.Set{Name: "pods", Key: []nft.Field{nft.IIF, nft.IPv4.Saddr}, Verdict: true})
			rs.try(nft.FilterHook(unix.NF_INET_FORWARD, 0), rule().Vmap(pods, pods.Key...))
		}},
		{"ingress hook", "5.10", []string{"nf_tables"}, func(rs *Ruleset) {
			rs.try(nft.IngressHook("lo", 0), rule().Drop())
		}},
	}
	// FlowOffload is that of Options.FlowOffload.
	FlowOffload = Requirement{"flow offload", "5.8", []string{"nft_flow_offload", "nf_flow_table_inet"}, func(rs *Ruleset) {
		rs.Flowtable = "established"
		rs.try(nft.FilterHook(unix.NF_INET_FORWARD, 0), rule().Offload(rs.Flowtable))
	}}
)

// try adds the base chain that tries a requirement.
func (rs *Ruleset) try(hook *nft.Hook, rules ...nft.Rule) {
	rs.Chains = []nft.Chain{{Name: "base", Hook: hook, Rules: rules}}
}
