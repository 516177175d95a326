package nft

import (
	"context"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// Attributes of flowtables, of linux/netfilter/nf_tables.h.
const (
	flowtableTable = 1 // NFTA_FLOWTABLE_…
	flowtableName  = 2
	flowtableHook  = 3
	flowtableFlags = 7

	flowtableHookNum      = 1 // NFTA_FLOWTABLE_HOOK_…
	flowtableHookPriority = 2
	flowtableHookDevices  = 3

	deviceName = 1 // NFTA_DEVICE_NAME

	flowtableCounter = 2 // NFT_FLOWTABLE_COUNTER
)

// maxDevices is how many interfaces the kernel takes in one message (NFT_NETDEVICE_MAX).
const maxDevices = 256

// AddFlowtable creates a flowtable, whose packets count as those of their connections, or adds
// interfaces to one that is there. Packets meet it after the ingress chains of negative priority.
// The kernel takes out interfaces that go, and refuses the transaction if one is not there.
func (b *Batch) AddFlowtable(name string, devices ...string) {
	label := "create flowtable " + name
	if len(devices) > 0 {
		label = "add interfaces to flowtable " + name
	}
	add := func(some []string) {
		b.do(&b.Before, unix.NFT_MSG_NEWFLOWTABLE, unix.NLM_F_CREATE, label, func(a *attr.Attrs) {
			b.names(flowtableTable, flowtableName, name)(a)
			hook := a.Begin(flowtableHook)
			a.Uint32(flowtableHookNum, netdevIngress)
			a.Uint32(flowtableHookPriority, 0)
			list := a.Begin(flowtableHookDevices)
			for _, d := range some {
				a.String(deviceName, d)
			}
			a.End(list)
			a.End(hook)
			a.Uint32(flowtableFlags, flowtableCounter)
		})
	}
	if len(devices) == 0 {
		add(nil)
	}
	for some := range slices.Chunk(devices, maxDevices) {
		add(some)
	}
}

// DeleteFlowtable deletes a flowtable, which no rule may refer to. Its connections go on by the
// chains.
func (b *Batch) DeleteFlowtable(seg *segment, name string) {
	b.do(seg, unix.NFT_MSG_DELFLOWTABLE, 0, "delete flowtable "+name, b.names(flowtableTable, flowtableName, name))
}

// ReadFlowtables yields the flowtables with the names of their interfaces.
func (s *Socket) ReadFlowtables(ctx context.Context, table string, yield func(name string, devices []string)) error {
	return s.get(ctx, unix.NFT_MSG_GETFLOWTABLE, unix.NLM_F_DUMP, s.Family, inTable(flowtableTable, table), func(b []byte) {
		if attr.Text(attr.Find(b, flowtableTable)) != table {
			return
		}
		var devices []string
		for _, v := range attr.All(attr.Find(attr.Find(b, flowtableHook), flowtableHookDevices)) {
			devices = append(devices, attr.Text(v))
		}
		yield(attr.Text(attr.Find(b, flowtableName)), devices)
	})
}

// Offload has later packets of the connection pass by the flowtable, at its interfaces, in place of
// the chains. It goes on if this packet is what brought it there, and only in forward chains.
func (r Rule) Offload(flowtable string) Rule { return r.Add(&expr.FlowOffload{Name: flowtable}) }
