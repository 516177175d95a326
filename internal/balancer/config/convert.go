package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/internal/model"
)

// aYear stands for "for good".
const aYear = 365 * 24 * time.Hour

// finishFarm checks a farm, and sets what it comes to. was is the farm before, nil: there was none.
func (r *revision) finishFarm(was, f *farm) error {
	path := "farms[" + f.name + "]"
	if err := r.knowsAll(path, f.policies); err != nil {
		return err
	}
	m := new(f.given)
	m.Name, m.Refuse, m.Limits, m.Log, m.Checked = f.name, true, f.limits(), f.log != 0, f.check != nil
	if m.Log {
		m.LogPrefix = f.logPrefix("log-prefix", "TYPE-FNAME ", "IN", "farm")
	}
	if f.given.Persist != 0 {
		if m.PersistFor = time.Duration(f.persistTTL) * time.Second; m.PersistFor == 0 {
			m.PersistFor = aYear
		}
	}
	m.Lists = r.listsOf(f.policies, f.verdict)
	if err := r.finishAddresses(f, m); err != nil {
		return err
	}
	if err := r.finishMode(was, f, m, path); err != nil {
		return err
	}
	if err := f.finishBackends(m, path); err != nil {
		return err
	}
	if err := f.finishSessions(m, path); err != nil {
		return err
	}
	if err := r.finishDevices(f, path); err != nil {
		return err
	}
	if at := takes(m, r.options.Own); at.IsValid() && f.state == up {
		reason := fmt.Sprintf("it takes %s, where this balancer itself is served: leave out port %d, or serve that elsewhere (--api, --metrics-address, --healthz-address)", at, at.Port())
		if !r.ofState {
			return &failure{409, "error parsing buffer. " + path + ": " + reason}
		}
		f.aside = reason
	}
	if r.options.Check != nil {
		if err := r.options.Check(m); err != nil {
			return wrong(path, "%v", err)
		}
	}
	f.base = m
	return nil
}

// finishDevices checks that the interfaces are there that were named.
func (r *revision) finishDevices(f *farm, path string) error {
	if r.options.HasDevice == nil {
		return nil
	}
	for attribute, name := range map[string]string{"iface": f.iface, "oface": f.oface} {
		if name != "" && !r.options.HasDevice(name) {
			return wrong(path+"."+attribute, "this machine has no interface %s; leave it out, as the kernel finds interfaces", name)
		}
	}
	return nil
}

func (r *revision) finishAddresses(f *farm, m *model.Farm) error {
	for _, name := range f.addresses {
		a := r.addresses.Get(name)
		if a == nil {
			return unknown("Unknown address '%s' in farm '%s'", name, f.name)
		}
		if !a.empty() {
			m.Addresses = append(m.Addresses, a.model())
		}
	}
	return nil
}

// finishStateless has each packet of a flow, or of a client, come to the same backend: nothing is
// remembered of either.
func (r *revision) finishStateless(was, f *farm, m *model.Farm, path string) error {
	changed := was == nil || was.given.Mode != m.Mode || was.given.Scheduler != f.given.Scheduler || was.given.Persist != f.given.Persist
	switch {
	case f.given.Persist != 0 && len(f.sessions) > 0:
		return wrong(path+".sessions", "mode %s remembers no clients; give them a backend in mode snat or dnat", f.given.Mode)
	case f.given.Persist != 0:
		m.HashBy, m.Persist = f.given.Persist, 0
		if m.Scheduler != model.Maglev {
			m.Scheduler = model.Hash
		}
		if changed {
			r.warn("Farm '%s' in mode '%s' remembers no clients, but chooses by a hash of '%s', which leads each to the same backend", f.name, f.given.Mode, strings.TrimSpace(setText(keyWords, f.given.Persist, len(keyWords))))
		}
	case f.given.Scheduler.Draws():
		m.HashBy = model.SrcIP | model.SrcPort
		if changed {
			r.warn("Farm '%s' in mode '%s' chooses by a hash of srcip and srcport in place of '%s', so that a flow keeps its backend", f.name, f.given.Mode, f.given.Scheduler)
		}
	}
	return nil
}

// finishMode checks what does not go together with a mode, or a helper.
func (r *revision) finishMode(was, f *farm, m *model.Farm, path string) error {
	if f.given.Mode.Stateless() && !(r.options.DSRTracks && f.given.Mode == model.DSR) {
		if err := r.finishStateless(was, f, m, path); err != nil {
			return err
		}
	}
	if needs := model.HelperProtocols(m.Helper); needs != nil {
		for _, a := range m.Addresses {
			if !slices.ContainsFunc(needs, func(p model.Protocol) bool { return slices.Contains(a.Protocols, p) }) {
				return wrong(path+".helper", "%s does not go with protocol %s", m.Helper, strings.ToLower(a.Protocols[0].String()))
			}
		}
	}
	if f.given.Scheduler.Hashes() && f.given.HashBy == 0 {
		return wrong(path+".sched-param", "scheduler %s needs something to choose by, such as srcip", f.given.Scheduler)
	}
	for _, a := range m.SourceAddrs {
		if !serves(m, a) {
			return wrong(path+".source-addr", "%s is of another family than the farm's addresses", a)
		}
	}
	return nil
}

// mostBackends bounds the backends of a farm: to lay out its slots takes their number squared.
const mostBackends = 4096

func (f *farm) finishBackends(m *model.Farm, path string) error {
	if len(f.backends) > mostBackends {
		return wrong(path+".backends", "there are %d, and a farm has %d at most", len(f.backends), mostBackends)
	}
	m.Backends = make([]model.FarmBackend, 0, len(f.backends))
	for _, b := range f.backends {
		if !b.Addr.IsValid() {
			continue
		}
		at := path + ".backends[" + b.Name + "]"
		if !serves(m, b.Addr) {
			return wrong(at+".ip-addr", "%s is of another family than the farm's addresses", b.Addr)
		}
		if b.SourceAddr.IsValid() && b.SourceAddr.Is4() != b.Addr.Is4() {
			return wrong(at+".source-addr", "%s is of another family than the backend", b.SourceAddr)
		}
		if f.check != nil && health.NeedsPort(f.check.Type) && f.check.Port == 0 && portOf(b, m) == 0 {
			return wrong(path+".health-check", "port is missing, as backend '%s' has none, and the farm has all ports", b.Name)
		}
		mb := b.FarmBackend
		if !b.marked {
			mb.Mark = 0
		}
		if f.given.Mode == model.DSR {
			mb.Port = 0 // packets keep their address, and so their port
		}
		m.Backends = append(m.Backends, mb)
	}
	return checkDistinct(m, path)
}

// checkDistinct refuses backends at the same address and port: neither a connection nor a client
// that is remembered tells whose of them it is.
func checkDistinct(m *model.Farm, path string) error {
	type endpoint struct {
		addr netip.Addr
		port uint16 // 0: that which the client asked for
	}
	at := map[endpoint]string{}
	twice := func(b *model.FarmBackend, where, owner string) error {
		return &failure{409, fmt.Sprintf("error parsing buffer. %s.backends[%s]: %s already belongs to backend '%s'", path, b.Name, where, owner)}
	}
	for i := range m.Backends {
		b := &m.Backends[i]
		p := endpoint{b.Addr, b.Port}
		owner, taken := at[p]
		switch {
		case taken && b.Port == 0:
			return twice(b, b.Addr.String(), owner)
		case taken:
			return twice(b, fmt.Sprintf("port %d of %s", b.Port, b.Addr), owner)
		}
		at[p] = b.Name
	}
	for i := range m.Backends {
		b := &m.Backends[i]
		if owner, any := at[endpoint{addr: b.Addr}]; any && b.Port != 0 && hasPort(m, b.Port) {
			return twice(b, fmt.Sprintf("port %d of %s", b.Port, b.Addr), owner)
		}
	}
	return nil
}

// hasPort reports whether clients can ask a farm for a port.
func hasPort(m *model.Farm, port uint16) bool {
	return slices.ContainsFunc(m.Addresses, func(a model.FarmAddress) bool {
		return len(a.Ports) == 0 || slices.ContainsFunc(a.Ports, func(s model.PortSpan) bool { return s.First <= port && port <= s.Last })
	})
}

// portOf is a backend's port: its own, or the first that clients ask for; 0: any.
func portOf(b *backend, m *model.Farm) uint16 {
	if b.Port == 0 && len(m.Addresses) > 0 && len(m.Addresses[0].Ports) > 0 {
		return m.Addresses[0].Ports[0].First
	}
	return b.Port
}

func (f *farm) finishSessions(m *model.Farm, path string) error {
	if len(f.sessions) == 0 {
		return nil
	}
	known := placesOf(f.backends)
	for _, s := range f.sessions {
		at := path + ".sessions[" + s.client + "]"
		if _, ok := known[s.backend]; !ok {
			return unknown("%s.backend: Unknown backend '%s' in farm '%s'", at, s.backend, f.name)
		}
		if f.given.Persist == 0 {
			continue
		}
		values, err := readClient(f.given.Persist, s.client)
		if err != nil {
			return wrong(at+".client", "%v", err)
		}
		m.Sessions = append(m.Sessions, model.FarmSession{Client: values, Backend: s.backend})
	}
	return nil
}

// knowsAll returns an error if a policy does not exist.
func (r *revision) knowsAll(path string, policies []string) error {
	for _, p := range policies {
		if r.policies.Get(p) == nil {
			return unknown("%s.policies[%s]: Unknown policy '%s'", path, p, p)
		}
	}
	return nil
}

// listsOf returns the lists that have an effect under a verdict.
func (r *revision) listsOf(policies []string, v verdict) (lists []string) {
	for _, name := range policies {
		p := r.policies.Get(name)
		if p.allow && v&acceptVerdict != 0 || !p.allow && v&(dropVerdict|logVerdict) != 0 {
			lists = append(lists, name)
		}
	}
	return lists
}

func (f *farm) limits() model.FarmLimits {
	l := f.given.Limits
	l.Forget, l.Report, l.Pass = time.Duration(f.limitsTTL)*time.Second, f.logs(), f.verdict&dropVerdict == 0
	for _, r := range []*model.FarmRate{&l.New, &l.RST, &l.ReportRate} {
		if r.Packets == 0 {
			*r = model.FarmRate{}
		}
	}
	if l.New.Packets == 0 && l.RST.Packets == 0 && l.Established == 0 && !l.Strict {
		return model.FarmLimits{SYNProxy: l.SYNProxy}
	}
	if !l.Report {
		return l
	}
	l.Prefixes = map[string]string{}
	for kind, name := range map[string]string{"new": "new-rtlimit", "rst": "rst-rtlimit", "est": "est-connlimit", "strict": "tcp-strict"} {
		l.Prefixes[kind] = f.logPrefix(name+"-log-prefix", "KNAME-FNAME ", "", name)
	}
	return l
}

// logPrefix is a prefix with its words replaced.
func (f *farm) logPrefix(name, standard, kind, key string) string {
	return expand(f.prefix, name, standard, "KNAME", key, "TYPE", kind, "FNAME", f.name)
}

// expand returns the prefix of an attribute, or the standard one, with words replaced. It is cut
// where the kernel ends it.
func expand(own map[string]string, name, standard string, words ...string) string {
	text, ok := own[name]
	if !ok {
		text = standard
	}
	text = strings.NewReplacer(words...).Replace(text)
	return text[:min(len(text), mostPrefix)]
}

// empty reports whether nothing is known of an address yet: it would stand for all ports of the
// machine.
func (a *address) empty() bool { return !a.addr.IsValid() && len(a.spans) == 0 }

func (a *address) model() model.FarmAddress {
	m := model.FarmAddress{Addr: a.addr, IPv4: a.family.is4(), IPv6: a.family.is6(), Protocols: a.protocol.transports(), Ports: a.spans}
	if a.addr.IsValid() {
		m.IPv4, m.IPv6 = a.addr.Is4(), a.addr.Is6()
	}
	return m
}

// served is what a farm serves; nil: nothing.
func served(f *farm) *model.Farm {
	if f == nil || f.aside != "" {
		return nil
	}
	return claimed(f)
}

// claimed is what no other farm may have, also while it is set aside; nil: nothing.
func claimed(f *farm) *model.Farm {
	if f == nil || f.state != up {
		return nil
	}
	return f.base
}

func servedAlone(a *address) *model.Farm {
	if a == nil {
		return nil
	}
	return a.base
}

func (at *clash) failure(path string) error {
	addr := at.key.addr.String()
	if at.key.addr.IsUnspecified() {
		addr = "any address"
	}
	ports := fmt.Sprint("port ", at.ports.First)
	switch {
	case at.ports.First == 0:
		ports = "all ports"
	case at.ports.First != at.ports.Last:
		ports = fmt.Sprintf("ports %d-%d", at.ports.First, at.ports.Last)
	}
	if at.key.answers {
		return &failure{409, fmt.Sprintf("error parsing buffer. %s.backends: answers from %s %s of %s are those of farm '%s' already; in mode stlsdnat nothing else tells whose they are",
			path, strings.ToLower(at.key.protocol.String()), ports, at.key.addr, at.with)}
	}
	return &failure{409, fmt.Sprintf("error parsing buffer. %s: %s %s of %s already belongs to farm '%s'", path, strings.ToLower(at.key.protocol.String()), ports, addr, at.with)}
}

// serves reports whether an address is of a family of the farm's addresses, or there are none.
func serves(m *model.Farm, a netip.Addr) bool {
	return len(m.Addresses) == 0 || slices.ContainsFunc(m.Addresses, func(f model.FarmAddress) bool {
		return a.Is4() && f.IPv4 || a.Is6() && f.IPv6
	})
}
