package ipvs

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

func backends(text string) (all []netip.AddrPort) {
	for one := range strings.FieldsSeq(text) {
		all = append(all, netip.MustParseAddrPort("10.1.0."+one+":80"))
	}
	return all
}

func frontend(now, alive, serving string) *state.Frontend {
	return &state.Frontend{Backends: backends(now), Alive: backends(alive), Serving: backends(serving)}
}

// What a change of a frontend does to its virtual server: what new connections need comes before
// nftables changes, what they no longer need goes after that.
func TestChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		protocol      model.Protocol
		old, now      *state.Frontend
		before, after string
	}{
		"nothing":             {model.TCP, nil, nil, "", ""},
		"nobody serves":       {model.TCP, nil, frontend("", "", ""), "", ""},
		"it comes":            {model.TCP, nil, frontend("1", "1 2", "1"), "add server, add 1 weight 1, add 2 weight 0", ""},
		"it comes, UDP":       {model.UDP, nil, frontend("1", "1 2", "1"), "add server", "add 1 weight 1"},
		"it goes":             {model.TCP, frontend("1", "1", "1"), nil, "", "delete server"},
		"it stays":            {model.TCP, frontend("1", "1", "1"), frontend("1", "1", "1"), "", ""},
		"one more":            {model.TCP, frontend("1", "1", "1"), frontend("1 2", "1 2", "1 2"), "add 2 weight 1", ""},
		"one drains":          {model.TCP, frontend("1 2", "1 2", "1 2"), frontend("1", "1 2", "1"), "", "change 2 weight 0"},
		"one drains, UDP":     {model.UDP, frontend("1 2", "1 2", "1 2"), frontend("1", "1 2", "1 2"), "", "change 2 weight 0"},
		"it no longer serves": {model.UDP, frontend("1 2", "1 2", "1 2"), frontend("1", "1 2", "1"), "", "delete 2"},
		"it comes back":       {model.TCP, frontend("1", "1 2", "1"), frontend("1 2", "1 2", "1 2"), "change 2 weight 1", ""},
		"one for another":     {model.TCP, frontend("1", "1", "1"), frontend("2", "2", "2"), "add 2 weight 1", "delete 1"},
		"all drain":           {model.TCP, frontend("1", "1", "1"), frontend("", "1", ""), "", "change 1 weight 0"},
		"all go":              {model.TCP, frontend("1", "1", "1"), frontend("", "", ""), "", "delete server"},
		"first ones again":    {model.UDP, frontend("", "1", "1"), frontend("1", "1", "1"), "", "change 1 weight 1"},
	} {
		key := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: c.protocol, Port: 80}
		before, after := changes(nil, nil, key, serverOf(key, c.old, "rr"), serverOf(key, c.now, "rr"))
		if got := brief(before); got != c.before {
			t.Errorf("%s: before: %q, want %q", name, got, c.before)
		}
		if got := brief(after); got != c.after {
			t.Errorf("%s: after: %q, want %q", name, got, c.after)
		}
	}
}

func TestSchedulerChanges(t *testing.T) {
	t.Parallel()
	key := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.TCP, Port: 80}
	f := frontend("1", "1", "1")
	before, after := changes(nil, nil, key, serverOf(key, f, "rr"), serverOf(key, f, "mh"))
	if len(before) != 1 || len(after) != 0 || before[0].String() != "change virtual server TCP 10.96.0.1:80: scheduler mh" {
		t.Errorf("%v, %v", before, after)
	}
}

// brief says what ops do, without the frontend.
func brief(ops []op) string {
	var texts []string
	for _, o := range ops {
		what := map[uint8]string{cmdNewService: "add server", cmdSetService: "change server", cmdDelService: "delete server",
			cmdNewDest: "add ", cmdSetDest: "change ", cmdDelDest: "delete "}[o.cmd]
		if o.dest.IsValid() {
			b := o.dest.Addr().As4()
			what += string('0' + rune(b[3]))
		}
		if o.cmd == cmdNewDest || o.cmd == cmdSetDest {
			what += " weight " + string('0'+rune(o.weight))
		}
		texts = append(texts, what)
	}
	return strings.Join(texts, ", ")
}

// Routes follow the addresses that frontends use, except for those of the node itself.
func TestRoutes(t *testing.T) {
	t.Parallel()
	s := state.NewServices()
	for at, kind := range map[string]state.Kind{"10.96.0.1:80": state.ClusterIP, "10.96.0.1:81": state.ClusterIP, "203.0.113.1:80": state.LoadBalancer, "192.168.1.1:80": state.NodePort} {
		a := netip.MustParseAddrPort(at)
		s.Frontends[state.FrontendKey{Addr: a.Addr(), Protocol: model.TCP, Port: a.Port()}] = &state.Frontend{Kind: kind}
	}
	a, b := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("203.0.113.1")
	if uses := usesOf(s); !maps.Equal(uses, map[netip.Addr]int{a: 2, b: 1}) {
		t.Errorf("%v", uses)
	}
	v := via{netip.MustParseAddr("192.168.1.1"), 1500}
	c := routes{a: {}, b: v}.changeTo(routes{a: v})
	if c.add.text("add") != "add local route 10.96.0.1\n" || c.remove.text("delete") != "delete local route 203.0.113.1\n" || c.len() != 2 {
		t.Errorf("%v", c)
	}
}
