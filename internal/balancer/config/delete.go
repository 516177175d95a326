package config

import (
	"slices"
	"strings"
)

// farmOr returns a farm that may be changed, or an error that begins with what was to be done.
func (r *revision) farmOr(what, name string) (*farm, error) {
	if r.farms.Get(name) == nil {
		return nil, &failure{404, what + ". Unknown farm '" + name + "'"}
	}
	return r.farmEdits.edit(name), nil
}

func (r *revision) deleteBackend(farm, backend string) error {
	const what = "error deleting backend"
	f, err := r.farmOr(what, farm)
	if err != nil {
		return err
	}
	if backend == "" {
		f.backends = nil
		f.forgetSessions("")
		return nil
	}
	i := f.find(backend)
	if i < 0 {
		return &failure{404, what + ". Unknown backend '" + backend + "' in farm '" + farm + "'"}
	}
	f.backends = slices.Delete(f.backends, i, i+1)
	f.forgetSessions(backend)
	return nil
}

func (r *revision) deleteSessionsOf(farm, backend string) error {
	const what = "error deleting sessions from backend"
	f, err := r.farmOr(what, farm)
	switch {
	case err != nil:
		return err
	case f.given.Persist == 0:
		return &failure{400, what + ". Farm '" + farm + "' without session persistence"}
	case f.find(backend) < 0:
		return &failure{404, what + ". Unknown backend '" + backend + "' in farm '" + farm + "'"}
	}
	f.forgetSessions(backend)
	r.forget = append(r.forget, forgetting{farm: farm, backend: backend})
	return nil
}

// deleteSession deletes a static or live session, whose client has _ for spaces; of none, all
// static ones.
func (r *revision) deleteSession(farm, client string) error {
	f, err := r.farmOr("error deleting session", farm)
	if err != nil {
		return err
	}
	if client == "" {
		f.forgetSessions("")
		return nil
	}
	client = strings.ReplaceAll(client, "_", " ")
	if f.given.Persist == 0 {
		f.sessions = slices.DeleteFunc(f.sessions, func(s session) bool { return s.client == client })
		return nil
	}
	values, err := readClient(f.given.Persist, client)
	if err != nil {
		return &failure{400, "error deleting session. " + err.Error()}
	}
	written := clientText(f.given.Persist, values)
	f.sessions = slices.DeleteFunc(f.sessions, func(s session) bool { return s.client == written })
	r.forget = append(r.forget, forgetting{farm: farm, client: &values})
	return nil
}

func (r *revision) deleteFarmAddress(of, address string) error {
	return r.deleteName(of, "address", address, func(f *farm) *[]string { return &f.addresses })
}

func (r *revision) deleteFarmPolicy(of, policy string) error {
	return r.deleteName(of, "policy", policy, func(f *farm) *[]string { return &f.policies })
}

// deleteName takes an address or a policy from a farm; empty: all.
func (r *revision) deleteName(of, kind, name string, field func(*farm) *[]string) error {
	what := "error deleting farm " + kind
	f, err := r.farmOr(what, of)
	if err != nil {
		return err
	}
	switch names := field(f); {
	case name == "":
		*names = nil
	case !slices.Contains(*names, name):
		return &failure{404, what + ". Unknown farm " + kind + " '" + name + "' in farm '" + of + "'"}
	default:
		*names = without(*names, name)
	}
	return nil
}

// deleteElement deletes an element; empty: all.
func (r *revision) deleteElement(name, element string) error {
	if r.policies.Get(name) == nil {
		return &failure{404, "could not get the policy elements. Unknown policy '" + name + "'"}
	}
	p := r.listEdits.edit(name)
	if element == "" {
		p.elements = nil
		return nil
	}
	addrs, err := readRange(element)
	if err != nil || !p.drop(addrs) {
		return &failure{404, "error deleting policy element. Unknown element '" + element + "' in policy '" + name + "'"}
	}
	return nil
}
