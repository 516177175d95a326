package compile_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
	"sluice.dev/sluice/internal/store"
)

// family makes the addresses of one address family and names them for
// people: c1 is the first cluster IP, x an external IP, l a load balancer's
// address, n a node's, e an endpoint's.
type family struct {
	name string
	base map[byte]string
}

var (
	v4 = family{"IPv4", map[byte]string{'c': "172.16.0.", 'x': "192.0.2.", 'l': "203.0.113.", 'n': "192.168.0.", 'e': "10.1.0."}}
	v6 = family{"IPv6", map[byte]string{'c': "fd00:16::", 'x': "2001:db8:1::", 'l': "2001:db8:2::", 'n': "fd00:168::", 'e': "fd00:10::"}}
)

// bothFamilies runs a test once for each.
func bothFamilies(t *testing.T, test func(t *testing.T, f family)) {
	for _, f := range []family{v4, v6} {
		t.Run(f.name, func(t *testing.T) { test(t, f) })
	}
}

// addr returns the address of a name like "e1".
func (f family) addr(name string) netip.Addr {
	base, ok := f.base[name[0]]
	if !ok {
		panic("no such address: " + name)
	}
	return netip.MustParseAddr(base + name[1:])
}

// addrs returns the addresses of names separated by spaces.
func (f family) addrs(names string) []netip.Addr {
	var list []netip.Addr
	for name := range strings.FieldsSeq(names) {
		list = append(list, f.addr(name))
	}
	return list
}

// label is the name of an address, or the address itself.
func label(a netip.Addr) string {
	for _, f := range []family{v4, v6} {
		for _, kind := range slices.Sorted(maps.Keys(f.base)) {
			rest, ok := strings.CutPrefix(a.String(), f.base[kind])
			if ok && rest != "" && !strings.Contains(rest, ":") {
				return string(kind) + rest
			}
		}
	}
	return a.String()
}

func labels(list []netip.AddrPort) string {
	var b strings.Builder
	for _, a := range list {
		fmt.Fprintf(&b, " %s:%d", label(a.Addr()), a.Port())
	}
	return b.String()
}

// show prints frontends, one a line. What happens without backends is said
// only where there are none; Serving only where it is more than Backends, and
// Alive where it is more than Serving.
func show(s *state.State) string {
	var b strings.Builder
	for _, k := range slices.SortedFunc(maps.Keys(s.Services.Frontends), state.FrontendKey.Compare) {
		b.WriteString(showFrontend(k, s.Services.Frontends[k]) + "\n")
	}
	return strings.TrimSpace(b.String())
}

func showFrontend(k state.FrontendKey, f *state.Frontend) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s:%d", f.Kind, label(k.Addr), k.Port)
	if k.Protocol != model.TCP {
		fmt.Fprintf(&b, " %s", k.Protocol)
	}
	if f.Service.Name != "web" {
		fmt.Fprintf(&b, " of %s", f.Service.Name)
	}
	b.WriteString(" ->" + labels(f.Backends))
	switch {
	case len(f.Backends) == 0 && f.Reject:
		b.WriteString(" reject")
	case len(f.Backends) == 0:
		b.WriteString(" drop")
	}
	if f.LocalOnly {
		b.WriteString(", local:" + labels(f.Local))
	}
	if !slices.Equal(f.Serving, f.Backends) {
		b.WriteString(", serving:" + labels(f.Serving))
	}
	if !slices.Equal(f.Alive, f.Serving) {
		b.WriteString(", alive:" + labels(f.Alive))
	}
	if len(f.SourceRanges) > 0 {
		fmt.Fprintf(&b, ", from: %v", f.SourceRanges)
	}
	if f.Affinity > 0 {
		fmt.Fprintf(&b, ", affinity: %s", f.Affinity)
	}
	return b.String()
}

// Builders of objects, all in the namespace "shop". The node under test is "here".

func name(s string) model.Name { return model.Name{Namespace: "shop", Name: s} }

// service has the cluster IP c1 and the TCP port 80 named http.
func (f family) service(change ...func(*model.Service)) *model.Service {
	s := &model.Service{
		Name:       name("web"),
		ClusterIPs: f.addrs("c1"),
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, TargetPort: 8080}},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

// slice belongs to web and serves port 8080 as http.
func slice(n string, eps ...model.Endpoint) *model.EndpointSlice {
	return &model.EndpointSlice{
		Name: name(n), Service: "web",
		Ports:     []model.EndpointPort{{Name: "http", Protocol: model.TCP, Port: 8080}},
		Endpoints: eps,
	}
}

// endpoint is ready and elsewhere.
func (f family) endpoint(n string, change ...func(*model.Endpoint)) model.Endpoint {
	e := model.Endpoint{Addr: f.addr(n), Ready: true, Serving: true, Node: "there"}
	for _, c := range change {
		c(&e)
	}
	return e
}

func here(e *model.Endpoint)     { e.Node = "here" }
func notReady(e *model.Endpoint) { e.Ready, e.Serving = false, false }
func draining(e *model.Endpoint) { e.Ready, e.Serving, e.Terminating = false, true, true }
func dying(e *model.Endpoint)    { e.Ready, e.Serving, e.Terminating = false, false, true }
func zones(z ...string) func(*model.Endpoint) {
	return func(e *model.Endpoint) { e.ZoneHints = z }
}
func nodes(n ...string) func(*model.Endpoint) {
	return func(e *model.Endpoint) { e.NodeHints = n }
}

// pod is ready, elsewhere, has the label app=web and a port http of 8080.
func (f family) pod(n string, ips string, change ...func(*model.Pod)) *model.Pod {
	p := &model.Pod{
		Name: name(n), Labels: map[string]string{"app": "web"}, IPs: f.addrs(ips), Node: "there", Ready: true,
		Ports: []model.ContainerPort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func selectsWeb(s *model.Service) { s.Selector = map[string]string{"app": "web"} }

// node is the one under test, in zone z1.
func (f family) node() *model.Node {
	return &model.Node{Name: "here", IPs: f.addrs("n1 n2"), Labels: map[string]string{"topology.kubernetes.io/zone": "z1"}}
}

func nodePort(s *model.Service)      { s.Ports[0].NodePort = 30080 }
func internalLocal(s *model.Service) { s.InternalLocal = true }
func externalLocal(s *model.Service) { s.ExternalLocal = true }
func named(n string, created int) func(*model.Service) {
	return func(s *model.Service) {
		s.Name = name(n)
		if created != 0 {
			s.Created = time.Unix(int64(created), 0)
		}
	}
}

// event brings an object.
func event(o any) store.Event {
	object := o.(model.Object)
	return store.Event{Kind: object.Ref().Kind, Name: object.Ref().Name, Object: object}
}

// gone takes an object away.
func gone(o any) store.Event {
	e := event(o)
	e.Object = nil
	return e
}

func events(objects ...any) []store.Event {
	var list []store.Event
	for _, o := range objects {
		list = append(list, event(o))
	}
	return list
}

// compiled compiles the objects for the node "here".
func compiled(cfg compile.Config, objects ...any) *compile.Compiler {
	s := store.New()
	s.Apply(events(objects...))
	cfg.Node = "here"
	c := compile.New(cfg)
	c.Update(s, s.Take())
	return c
}

// lines trims the indentation of a raw string's lines.
func lines(s string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimSpace(s)) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return strings.TrimSpace(b.String())
}

func check(t *testing.T, c *compile.Compiler, want string) {
	t.Helper()
	if got := show(c.State()); got != lines(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, lines(want))
	}
}

func checkIssues(t *testing.T, c *compile.Compiler, want ...string) {
	t.Helper()
	var got []string
	for _, i := range c.Issues() {
		got = append(got, i.Object.String()+": "+i.Reason)
	}
	if !slices.Equal(got, want) {
		t.Errorf("issues:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
