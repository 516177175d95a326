package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/netns"
)

// XDP is an XDP program that looks up the source of every packet in one map, a hash of addresses or
// a trie of networks, and drops what it finds.
type XDP struct{}

// Name implements Blocker.
func (XDP) Name() string { return "XDP" }

// Limit implements Blocker.
func (XDP) Limit() (int, string) { return 0, "" }

// Block implements Blocker. Took is from the list in memory, as no program reads a file for it.
func (XDP) Block(_ context.Context, node *netns.NS, device string, list []netip.Prefix) (_ *Blocked, err error) {
	began := time.Now()
	listed, err := listedMap(list)
	if err != nil {
		return nil, fmt.Errorf("block by XDP: %w", err)
	}
	b := &Blocked{Loaded: Loaded{Took: time.Since(began), Note: "batches of map elements"}}
	closers := []func() error{listed.Close}
	b.Close = func() (err error) {
		for _, c := range closers {
			err = errors.Join(err, c())
		}
		return err
	}
	info, err := listed.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("block by XDP: %w", err), b.Close())
	}
	if bytes, ok := info.Memlock(); ok {
		b.Memory = int(bytes)
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "block", Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "Apache-2.0", Instructions: dropListed(listed),
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("load XDP program: %w", err), b.Close())
	}
	closers = append(closers, p.Close)
	l, err := node.LinkByName(device)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find device %s: %w", device, err), b.Close())
	}
	err = node.Do(func() error {
		hold, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: l.Attrs().Index, Flags: link.XDPDriverMode})
		if err == nil {
			closers = append([]func() error{hold.Close}, closers...)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach XDP program to %s: %w", device, err), b.Close())
	}
	return b, nil
}

// lpmKey is the key of a trie of IPv4 networks, as bpf_lpm_trie_key of linux/bpf.h.
type lpmKey struct {
	Bits uint32
	Addr [4]byte
}

// listedMap returns a map of a list. Both kinds have keys of lpmKey, which for a hash always have
// 32 bits: so one program serves them.
func listedMap(list []netip.Prefix) (*ebpf.Map, error) {
	spec := &ebpf.MapSpec{Name: "listed", Type: ebpf.Hash, KeySize: 8, ValueSize: 1, MaxEntries: uint32(max(1, len(list)))}
	keys := make([]lpmKey, 0, len(list))
	for _, p := range list {
		if !p.IsSingleIP() {
			spec.Type, spec.Flags = ebpf.LPMTrie, unix.BPF_F_NO_PREALLOC
		}
		keys = append(keys, lpmKey{uint32(p.Bits()), p.Addr().As4()})
	}
	m, err := ebpf.NewMap(spec)
	if err != nil || len(keys) == 0 {
		return m, err
	}
	if _, err := m.BatchUpdate(keys, make([]uint8, len(keys)), nil); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// dropListed drops IPv4 packets whose source is in the map, and passes all others.
func dropListed(listed *ebpf.Map) asm.Instructions {
	const (
		etherType, ethernet = 12, 14 // of the frame
		source, header      = 12, 20 // of an IPv4 packet
		key                 = -8     // on the stack
		ipv4                = 0x0008 // 0x0800, as a little-endian machine reads it
	)
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
		asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, ethernet+header),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R4, asm.R2, etherType, asm.Half),
		asm.JNE.Imm(asm.R4, ipv4, "pass"),
		asm.LoadMem(asm.R4, asm.R2, ethernet+source, asm.Word),
		asm.StoreMem(asm.RFP, key+4, asm.R4, asm.Word),
		asm.StoreImm(asm.RFP, key, 32, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.LoadMapPtr(asm.R1, listed.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.Mov.Imm(asm.R0, 1), // XDP_DROP
		asm.Return(),
		asm.Mov.Imm(asm.R0, 2).WithSymbol("pass"), // XDP_PASS
		asm.Return(),
	}
}
