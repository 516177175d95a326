package config

import (
	"sluice.dev/sluice/internal/model"
)

// finishAddress checks an address, and sets what it comes to where no farm uses it.
func (r *revision) finishAddress(a *address) error {
	path := "addresses[" + a.name + "]"
	if a.addr.IsValid() && !a.family.holds(a.addr) {
		return wrong(path+".family", "%s is no address of %s", a.addr, textOf(familyWords, a.family))
	}
	if err := r.knowsAll(path, a.policies); err != nil {
		return err
	}
	if len(a.policies) == 0 || a.empty() || r.farmsAt.Get(a.name).Len() > 0 {
		return nil
	}
	a.base = &model.Farm{Name: aloneName(a.name), Mode: model.Local, Addresses: []model.FarmAddress{a.model()}, Lists: r.listsOf(a.policies, a.verdict)}
	if r.options.Check != nil {
		if err := r.options.Check(a.base); err != nil {
			return wrong(path, "%v", err)
		}
	}
	return nil
}

// finishPolicy checks a policy, and sets what it comes to.
func (r *revision) finishPolicy(p *policy) error {
	for _, e := range p.elements {
		if !p.family.holds(e.First) {
			return wrong("policies["+p.name+"].elements["+rangeText(e)+"]", "it is no address of family %s", textOf(familyWords, p.family))
		}
	}
	kind := "BL"
	if p.allow {
		kind = "WL"
	}
	p.sole = r.sole(p.name)
	user := p.sole
	if user == "" {
		user = "*"
	}
	p.base = &model.FarmList{Name: p.name, Allow: p.allow, Ranges: p.elements, Log: r.logged(p.name)}
	if p.base.Log {
		p.base.LogPrefix = expand(p.prefix, "log-prefix", "KNAME-TYPE-PNAME-FNAME ", "KNAME", "policy", "TYPE", kind, "PNAME", p.name, "FNAME", user)
	}
	return nil
}

// aloneName is the name of the farm that stands for an address which no farm uses. No farm of the
// document can have it.
func aloneName(address string) string { return "address " + address }
