package config

import (
	"cmp"
	"slices"

	"sluice.dev/sluice/internal/balancer/keys"
	"sluice.dev/sluice/internal/model"
)

func (r *reader) farm(path, name string, given map[string]any) error {
	f := &farmFields{farm: r.farmEdits.edit(name), revision: r.revision}
	if err := readAttributes(r, farmTable, f, path, given); err != nil {
		return err
	}
	if err := r.farmLists(f.farm, path, given); err != nil {
		return err
	}
	switch {
	case f.action == "delete":
		r.removeFarm(name)
	case f.newname != "" && f.newname != name:
		return r.renameFarm(name, f.newname)
	}
	return nil
}

func (r *reader) farmLists(f *farm, path string, given map[string]any) error {
	err := r.objects(path, "addresses", &addressTable.Kind, given, func(path, name string, o map[string]any) error {
		if !slices.Contains(f.addresses, name) {
			f.addresses = append(f.addresses, name)
		}
		return r.address(path, name, o)
	})
	if err != nil {
		return err
	}
	at := placesOf(f.backends)
	err = r.objects(path, "backends", &backendTable.Kind, given, func(path, name string, o map[string]any) error {
		return r.backend(f, at, path, name, o)
	})
	if err != nil {
		return err
	}
	f.backends = slices.DeleteFunc(f.backends, func(b *backend) bool { return b == nil })
	if r.replaceLists == f.name && given["policies"] != nil {
		f.policies = nil
	}
	if err := r.policyNames(&f.policies, path, given); err != nil {
		return err
	}
	return r.objects(path, "sessions", sessionKind, given, func(path, client string, o map[string]any) error {
		return r.session(f, path, client, o)
	})
}

func (r *reader) backend(f *farm, at map[string]int, path, name string, given map[string]any) error {
	i, ok := at[name]
	if ok {
		f.backends[i] = f.backends[i].clone()
	} else {
		i = len(f.backends)
		f.backends = append(f.backends, newBackend(name))
		at[name] = i
	}
	b := &backendFields{backend: f.backends[i]}
	if err := readAttributes(r, backendTable, b, path, given); err != nil {
		return err
	}
	switch {
	case b.action == "delete":
		f.backends[i] = nil
		delete(at, name)
		f.forgetSessions(name)
	case b.newname != "" && b.newname != name:
		if _, taken := at[b.newname]; taken {
			return &failure{409, "error parsing buffer. " + path + ".newname: there is a backend '" + b.newname + "' already"}
		}
		delete(at, name)
		at[b.newname] = i
		b.Name = b.newname
		for n := range f.sessions {
			if f.sessions[n].backend == name {
				f.sessions[n].backend = b.newname
			}
		}
	}
	return nil
}

// placesOf are where backends are, by name.
func placesOf(backends []*backend) map[string]int {
	at := make(map[string]int, len(backends))
	for i, b := range backends {
		at[b.Name] = i
	}
	return at
}

func (r *reader) address(path, name string, given map[string]any) error {
	a := &addressFields{address: r.addrEdits.edit(name)}
	if err := readAttributes(r, addressTable, a, path, given); err != nil {
		return err
	}
	return r.policyNames(&a.policies, path, given)
}

// policyName is all that a farm or an address has of a policy.
var policyName = &keys.Kind{Key: policyTable.Key, Nftlb: policyTable.Nftlb}

// policyNames adds to the names of policies; whether there are such is checked at the end.
func (r *reader) policyNames(names *[]string, path string, given map[string]any) error {
	return r.objects(path, "policies", policyName, given, func(_, name string, _ map[string]any) error {
		if !slices.Contains(*names, name) {
			*names = append(*names, name)
		}
		return nil
	})
}

func (r *reader) policy(path, name string, given map[string]any) error {
	p := r.listEdits.edit(name)
	if err := readAttributes(r, policyTable, &policyFields{policy: p}, path, given); err != nil {
		return err
	}
	var ranges []model.AddressRange
	err := r.objects(path, "elements", elementKind, given, func(path, text string, o map[string]any) error {
		e, err := readElement(path, text, o)
		ranges = append(ranges, e)
		return err
	})
	if err != nil || len(ranges) == 0 {
		return err
	}
	switch {
	case r.dropElements:
		for _, e := range ranges {
			if !p.drop(e) {
				return &failure{404, "error deleting policy element. Unknown element '" + rangeText(e) + "' in policy '" + name + "'"}
			}
		}
		return nil
	case r.replaceElements == name:
		p.elements = nil
	}
	p.add(ranges)
	return nil
}

// The kinds of objects that are no more than a few texts.
var (
	elementKind = &newObject[any]("data", nil, nil,
		attribute[any]{name: "data", nftlb: nftlbElement}, attribute[any]{name: "time", nftlb: nftlbUnused},
		attribute[any]{name: "counter-packets", nftlb: nftlbUnused}, attribute[any]{name: "counter-bytes", nftlb: nftlbUnused}).Kind
	sessionKind = &newObject[any]("client", nil, nil,
		attribute[any]{name: "client", nftlb: nftlbText}, attribute[any]{name: "backend", nftlb: nftlbText},
		attribute[any]{name: "expiration", nftlb: nftlbUnused}).Kind
)

func readElement(path, text string, o map[string]any) (model.AddressRange, error) {
	if _, ok := o["time"]; ok {
		return model.AddressRange{}, wrong(path+".time", "elements have no time-out; leave it out")
	}
	e, err := readRange(text)
	if err != nil {
		return e, wrong(path+".data", "%v", err)
	}
	return e, nil
}

func (r *reader) session(f *farm, path, client string, given map[string]any) error {
	s := session{client: client}
	if value, ok := given["backend"]; ok {
		var err error
		if s.backend, err = scalar(value); err != nil {
			return wrong(path+".backend", "%v", err)
		}
	}
	if f.given.Persist != 0 {
		values, err := readClient(f.given.Persist, client)
		if err != nil {
			return wrong(path+".client", "%v", err)
		}
		s.client = clientText(f.given.Persist, values)
	}
	i := slices.IndexFunc(f.sessions, func(o session) bool { return o.client == s.client })
	if i < 0 {
		f.sessions = append(f.sessions, s)
		return nil
	}
	f.sessions[i].backend = cmp.Or(s.backend, f.sessions[i].backend)
	return nil
}
