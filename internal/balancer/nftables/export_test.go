package nftables

import "sluice.dev/sluice/internal/kernel/nft"

// OpenOther opens a driver whose tables have another layout: a set more, as of another release.
func OpenOther(o Options) (*Driver, error) {
	d, err := Open(o)
	if err != nil {
		return nil, err
	}
	for _, t := range d.tables() {
		t.ruleset.set("another", "of another release", nft.Set{Key: []nft.Field{nft.Mark}})
	}
	return d, nil
}

// Sockets are those of the driver's tables.
func (d *Driver) Sockets() []*nft.Socket { return []*nft.Socket{d.ingress.Sock, d.Sock} }

// Distrust has the next adoption trust no note, and read everything.
func (d *Driver) Distrust() {
	for _, t := range d.tables() {
		t.Doubt = true
	}
}
