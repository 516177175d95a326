package preflight

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// policyTrials are what policy needs beyond services.
var policyTrials = []trial{
	{"reverse path by fib", tryReversePath},
	{"connection labels", tryLabel},
	{"log to a netlink group", tryLog},
	{"verdict maps by interface", tryInterface},
	{"ingress hook", tryIngress},
}

func tryReversePath(c *nftables.Conn, t *nftables.Table) error {
	chain := base(c, t, nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Fib{Register: reg1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: make([]byte, 4)},
	}})
	return nil
}

func tryLabel(c *nftables.Conn, t *nftables.Table) error {
	chain := base(c, t, nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeyLABELS, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: make([]byte, 16)},
	}})
	return nil
}

func tryLog(c *nftables.Conn, t *nftables.Table) error {
	chain := base(c, t, nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: 1, Unit: expr.LimitTimeSecond, Burst: 1},
		&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX, Group: 1, Data: []byte("preflight")},
	}})
	return nil
}

func tryInterface(c *nftables.Conn, t *nftables.Table) error {
	target := c.AddChain(&nftables.Chain{Name: "target", Table: t})
	m := &nftables.Set{Table: t, Name: "m", IsMap: true, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFIndex, nftables.TypeIPAddr), DataType: nftables.TypeVerdict}
	key := append(binary.NativeEndian.AppendUint32(nil, 1), 192, 0, 2, 1)
	if err := c.AddSet(m, []nftables.SetElement{{Key: key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: target.Name}}}); err != nil {
		return err
	}
	chain := base(c, t, nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIF, Register: reg32},
		&expr.Payload{OperationType: expr.PayloadLoad, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4, DestRegister: reg32 + 1},
		&expr.Lookup{SourceRegister: reg32, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: m.Name, SetID: m.ID},
	}})
	return nil
}

// tryIngress needs an interface, and every namespace has lo.
func tryIngress(c *nftables.Conn, t *nftables.Table) error {
	const ingress = 5 // NF_INET_INGRESS
	hook := nftables.ChainHook(ingress)
	c.AddChain(&nftables.Chain{Name: "base", Table: t, Type: nftables.ChainTypeFilter, Hooknum: &hook, Priority: nftables.ChainPriorityFilter, Device: "lo"})
	return nil
}
