package nftables

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/reconcile"
)

// OpenOther opens a driver whose ruleset has another layout: some sets under other
// names, one of another type under the same name, a set and a chain more.
func OpenOther(o Options) (*Driver, error) { return openOther(o, "-2") }

// OpenNext opens a driver whose ruleset has all of the sets, and a set and a chain more.
func OpenNext(o Options) (*Driver, error) { return openOther(o, "") }

func openOther(o Options, suffix string) (*Driver, error) {
	d, err := Open(o)
	if err != nil {
		return nil, err
	}
	p := ruleset.NewSets(ruleset.Options{Policy: o.Policy, Fabric: o.Fabric}, ruleset.AffinitySize)
	for _, fp := range p.Families {
		fp.Backends[0].Name += suffix
		fp.Frontends.Name += suffix
		if suffix != "" {
			fp.Sources.Key = append([]nft.Field{nft.Number}, fp.Sources.Key[1:]...)
		}
	}
	p.AddSet(&nft.Set{Name: "another", Key: []nft.Field{nft.Mark}, Comment: "of another release"})
	p.AddChains()
	p.Chains = append(p.Chains, nft.Chain{Name: "another", Rules: []nft.Rule{nft.NewRule().Drop()}})
	d.ruleset, d.Layout = p, &p.Layout
	return d, nil
}

// Refuse has the driver's transactions refused where f returns an error, as the kernel would:
// whole.
func (d *Driver) Refuse(f func(m Message) error) {
	d.Sock.Refuse = func(messages [][]byte, labels []string) error {
		var err error
		nft.EachMessage(slices.Concat(messages...), func(typ uint16, seq uint32, body []byte) {
			if m := (Message{Label: labels[seq], Type: typ, Body: body}); err == nil {
				if err = f(m); err != nil {
					err = nft.Answer(m.Label, err)
				}
			}
		})
		return err
	}
}

// Message is an operation of a transaction.
type Message struct {
	Label string
	Type  uint16 // unix.NFT_MSG_…
	Body  []byte
}

// OpenRebuilding opens a driver whose first adoption puts a fresh table in the place of the one
// that is there.
func OpenRebuilding(o Options) (*Driver, error) {
	d, err := Open(o)
	if err == nil {
		d.failures.set(d.parts(), table.RebuildAfter)
	}
	return d, err
}

// OpenRefusing opens a driver whose kernel refuses elements with the address of a frontend, and
// rules of a policy, for which the functions answer true.
func OpenRefusing(o Options, frontends func(netip.Addr) bool, policies func(model.PolicyKey) bool) (*Driver, error) {
	d, err := Open(o)
	if err != nil {
		return nil, err
	}
	d.Refuse(func(m Message) (answer error) {
		switch m.Type {
		case unix.NFT_MSG_NEWSETELEM:
			s := d.setOf(m)
			for _, fp := range d.ruleset.Families {
				if s != fp.Frontends {
					continue
				}
				for _, v := range attr.All(attr.Find(m.Body, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
					e := nft.ReadElement(s, v)
					if a, ok := netip.AddrFromSlice(e.Key[:fp.IP.Bits/8]); ok && frontends(a) {
						answer = unix.EINVAL
						break
					}
				}
			}
		case unix.NFT_MSG_NEWRULE:
			if data := attr.Find(m.Body, unix.NFTA_RULE_USERDATA); len(data) > 2 {
				var k model.PolicyKey
				words := strings.Fields(attr.Text(data[2:]))
				if len(words) == 3 && k.UnmarshalText([]byte(words[0]+" "+words[1])) == nil && policies(k) {
					answer = unix.EFBIG
				}
			}
		}
		return answer
	})
	return d, nil
}

// FailParts has the driver's transactions fail that put elements into a set of a part for which
// failing answers true, as if others were at work.
func (d *Driver) FailParts(failing func(reconcile.Part) bool) {
	d.Refuse(func(m Message) error {
		if m.Type != unix.NFT_MSG_NEWSETELEM {
			return nil
		}
		of := map[parts]reconcile.Part{servicesPart: reconcile.Services, policyPart: reconcile.Policy}
		fp := d.ruleset.Families[0]
		for _, s := range []*nft.Set{fp.Frontends, fp.Policy.To} {
			if d.setOf(m) == s && failing(of[partOf(d.ruleset, s)]) {
				return unix.EAGAIN // nothing that the kernel refuses for what it is
			}
		}
		return nil
	})
}

// setOf is the set that a message about elements is for.
func (d *Driver) setOf(m Message) *nft.Set {
	name := attr.Text(attr.Find(m.Body, unix.NFTA_SET_ELEM_LIST_SET))
	for _, s := range d.ruleset.Sets {
		if s.Name == name {
			return s
		}
	}
	return nil
}
