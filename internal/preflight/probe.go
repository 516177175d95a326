package preflight

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Register numbers: each of 16 bytes, and the small ones of 4 bytes that divide them.
const (
	reg1  = unix.NFT_REG_1
	reg32 = unix.NFT_REG32_00
)

// trial is a feature and the part of the program that needs it.
type trial struct {
	name string
	add  func(*nftables.Conn, *nftables.Table) error
}

var trials = []trial{
	{"dnat through a map by random slot", tryPick},
	{"verdict maps", tryDispatch},
	{"maps that packets fill", tryLearn},
	{"ranges in concatenated keys", tryRanges},
	{"fib address types", tryFib},
	{"original destination of a connection", tryOriginal},
	{"reject while translating", tryReject},
	{"masquerade", tryMasquerade},
}

func probeName() string { return fmt.Sprintf("sluice-preflight-%d", os.Getpid()) }

// probe tries each feature in a table that is added and deleted in the same
// transaction: the kernel checks all of it, and no packet meets it.
func probe(trials []trial) (features []Feature, err error) {
	for _, t := range trials {
		conn, err := nftables.New()
		if err != nil {
			return nil, fmt.Errorf("open nftables: %w", err)
		}
		table := conn.AddTable(&nftables.Table{Name: probeName(), Family: nftables.TableFamilyINet})
		if err := t.add(conn, table); err != nil {
			return nil, fmt.Errorf("encode nftables probe: %w", err)
		}
		conn.DelTable(table)
		err = conn.Flush()
		if errors.Is(err, os.ErrPermission) {
			return nil, errors.New("nftables needs CAP_NET_ADMIN")
		}
		features = append(features, Feature{t.name, err})
	}
	return features, nil
}

// owners asks whether tables can have an owner, and outlive it.
func owners() (owner, persist bool) {
	return tableFlags(probeName(), tableOwner) == nil, tableFlags(probeName(), tableOwner|tablePersist) == nil
}

func base(c *nftables.Conn, t *nftables.Table, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	return c.AddChain(&nftables.Chain{Name: "base", Table: t, Type: kind, Hooknum: hook, Priority: priority})
}

func preroutingNAT(c *nftables.Conn, t *nftables.Table) *nftables.Chain {
	return base(c, t, nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
}

// destination loads address, protocol and port of an IPv4 packet's destination into three registers.
func destination(first uint32) []expr.Any {
	return []expr.Any{
		&expr.Payload{OperationType: expr.PayloadLoad, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4, DestRegister: first},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first + 1},
		&expr.Payload{OperationType: expr.PayloadLoad, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: first + 2},
	}
}

var frontend = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)

func tryPick(c *nftables.Conn, t *nftables.Table) error {
	m := &nftables.Set{Table: t, Name: "m", IsMap: true, Concatenation: true,
		KeyType:  nftables.MustConcatSetType(nftables.TypeMark, nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService),
		DataType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)}
	if err := c.AddSet(m, nil); err != nil {
		return err
	}
	exprs := []expr.Any{&expr.Numgen{Register: reg32, Modulus: 4, Type: unix.NFT_NG_RANDOM}}
	exprs = append(exprs, destination(reg32+1)...)
	exprs = append(exprs,
		&expr.Lookup{SourceRegister: reg32, DestRegister: reg32, IsDestRegSet: true, SetName: m.Name, SetID: m.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg32, RegProtoMin: reg32 + 1})
	c.AddRule(&nftables.Rule{Table: t, Chain: preroutingNAT(c, t), Exprs: exprs})
	return nil
}

func tryDispatch(c *nftables.Conn, t *nftables.Table) error {
	target := c.AddChain(&nftables.Chain{Name: "target", Table: t})
	m := &nftables.Set{Table: t, Name: "m", IsMap: true, Concatenation: true, KeyType: frontend, DataType: nftables.TypeVerdict}
	key := []byte{192, 0, 2, 1, unix.IPPROTO_TCP, 0, 0, 0, 0, 80, 0, 0}
	if err := c.AddSet(m, []nftables.SetElement{{Key: key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: target.Name}}}); err != nil {
		return err
	}
	exprs := append(destination(reg32), &expr.Lookup{SourceRegister: reg32, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: m.Name, SetID: m.ID})
	c.AddRule(&nftables.Rule{Table: t, Chain: preroutingNAT(c, t), Exprs: exprs})
	return nil
}

func tryLearn(c *nftables.Conn, t *nftables.Table) error {
	m := &nftables.Set{Table: t, Name: "m", IsMap: true, Concatenation: true, Dynamic: true, HasTimeout: true, Size: 16,
		KeyType: frontend, DataType: nftables.TypeIPAddr}
	if err := c.AddSet(m, nil); err != nil {
		return err
	}
	exprs := append(destination(reg32),
		&expr.Payload{OperationType: expr.PayloadLoad, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4, DestRegister: reg32 + 3},
		&expr.Dynset{SrcRegKey: reg32, SrcRegData: reg32 + 3, SetName: m.Name, SetID: m.ID, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: time.Minute})
	chain := base(c, t, nftables.ChainTypeFilter, nftables.ChainHookPostrouting, nftables.ChainPriorityFilter)
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: exprs})
	return nil
}

func tryRanges(c *nftables.Conn, t *nftables.Table) error {
	s := &nftables.Set{Table: t, Name: "s", Interval: true, Concatenation: true,
		KeyType: frontend}
	if err := c.AddSet(s, nil); err != nil {
		return err
	}
	exprs := append(destination(reg32), &expr.Lookup{SourceRegister: reg32, SetName: s.Name, SetID: s.ID, Invert: true}, &expr.Verdict{Kind: expr.VerdictDrop})
	c.AddRule(&nftables.Rule{Table: t, Chain: preroutingNAT(c, t), Exprs: exprs})
	return nil
}

func tryFib(c *nftables.Conn, t *nftables.Table) error {
	c.AddRule(&nftables.Rule{Table: t, Chain: preroutingNAT(c, t), Exprs: []expr.Any{
		&expr.Fib{Register: reg1, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}})
	return nil
}

func tryOriginal(c *nftables.Conn, t *nftables.Table) error {
	chain := base(c, t, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{0, 80}},
		&expr.Ct{Key: expr.CtKeyDST, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: make([]byte, 16)},
	}})
	return nil
}

func tryReject(c *nftables.Conn, t *nftables.Table) error {
	c.AddRule(&nftables.Rule{Table: t, Chain: preroutingNAT(c, t), Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
	}})
	return nil
}

func tryMasquerade(c *nftables.Conn, t *nftables.Table) error {
	chain := base(c, t, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{&expr.Masq{FullyRandom: true}}})
	return nil
}

// Table flags of linux/netfilter/nf_tables.h.
const (
	tableOwner   = 0x2 // Linux 5.12
	tablePersist = 0x4 // Linux 6.9
)

// tableFlags adds and deletes a table with the flags in one transaction. The
// nftables library cannot set them.
func tableFlags(name string, flags uint32) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer func() { _ = conn.Close() }()
	attrs := func(all ...netlink.Attribute) []byte {
		b, _ := netlink.MarshalAttributes(all) // cannot fail: the values are short
		return append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, b...)
	}
	nameAttr := netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: append([]byte(name), 0)}
	flagAttr := netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, flags)}
	message := func(kind uint16, flags netlink.HeaderFlags, data []byte) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | flags}, Data: data}
	}
	// A batch's borders name the subsystem it is for.
	border := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}
	const nft = unix.NFNL_SUBSYS_NFTABLES << 8
	_, err = conn.SendMessages([]netlink.Message{
		message(unix.NFNL_MSG_BATCH_BEGIN, 0, border),
		message(nft|unix.NFT_MSG_NEWTABLE, netlink.Acknowledge|netlink.Create|netlink.Excl, attrs(nameAttr, flagAttr)),
		message(nft|unix.NFT_MSG_DELTABLE, netlink.Acknowledge, attrs(nameAttr)),
		message(unix.NFNL_MSG_BATCH_END, 0, border),
	})
	if err != nil {
		return fmt.Errorf("probe table flags: %w", err)
	}
	for range 2 { // one answer for each message that asked for it
		if _, err := conn.Receive(); err != nil {
			return fmt.Errorf("probe table flags: %w", err)
		}
	}
	return nil
}
