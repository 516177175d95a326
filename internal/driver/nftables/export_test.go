package nftables

// OpenOther opens a driver whose program has another layout: some sets under other
// names, a set and a chain more.
func OpenOther(o Options) (*Driver, error) { return openOther(o, "-2") }

// OpenNext opens a driver whose program has all of the sets, and a set and a chain more.
func OpenNext(o Options) (*Driver, error) { return openOther(o, "") }

func openOther(o Options, suffix string) (*Driver, error) {
	d, err := Open(o)
	if err != nil {
		return nil, err
	}
	p := newSets()
	for _, fp := range p.fam {
		fp.backends[0].name += suffix
		fp.frontends.name += suffix
	}
	p.addSet(&set{name: "another", key: []field{fieldMark}, comment: "of another release"})
	p.addChains()
	p.chains = append(p.chains, chain{name: "another", rules: []rule{newRule("").drop()}})
	d.prog = p
	return d, nil
}
