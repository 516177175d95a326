package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// OpenOther opens a driver whose program has another layout: some sets under other
// names, one of another type under the same name, a set and a chain more.
func OpenOther(o Options) (*Driver, error) { return openOther(o, "-2") }

// OpenNext opens a driver whose program has all of the sets, and a set and a chain more.
func OpenNext(o Options) (*Driver, error) { return openOther(o, "") }

func openOther(o Options, suffix string) (*Driver, error) {
	d, err := Open(o)
	if err != nil {
		return nil, err
	}
	p := newSets(affinitySize)
	for _, fp := range p.fam {
		fp.backends[0].name += suffix
		fp.frontends.name += suffix
		fp.sources.interval = suffix != ""
	}
	p.addSet(&set{name: "another", key: []field{fieldMark}, comment: "of another release"})
	p.addChains()
	p.chains = append(p.chains, chain{name: "another", rules: []rule{newRule("").drop()}})
	d.prog = p
	return d, nil
}

// Refuse has the driver's transactions refused where f returns an error, as the kernel would: whole.
func (d *Driver) Refuse(f func(m Message) error) {
	d.sock.refuse = func(messages [][]byte, labels []string) error {
		for _, b := range messages {
			for len(b) > 0 {
				n := binary.NativeEndian.Uint32(b)
				m := Message{Label: labels[binary.NativeEndian.Uint32(b[8:])], Type: binary.NativeEndian.Uint16(b[4:]) & 0xff, Body: b[unix.SizeofNlMsghdr+nfgenmsgLen : n]}
				if err := f(m); err != nil {
					return answer(m.Label, err)
				}
				b = b[n:]
			}
		}
		return nil
	}
}

// Message is an operation of a transaction.
type Message struct {
	Label string
	Type  uint16 // unix.NFT_MSG_…
	Body  []byte
}

// OpenRebuilding opens a driver whose first adoption puts a fresh table in the place of the one that is there.
func OpenRebuilding(o Options) (*Driver, error) {
	d, err := Open(o)
	if err == nil {
		d.failures.set(d.parts(), rebuildAfter)
	}
	return d, err
}
