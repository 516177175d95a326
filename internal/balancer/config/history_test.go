package config

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/internal/lib/cow"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// writer writes random documents and paths of few names, so that requests meet.
type writer struct{ *rand.Rand }

func (w writer) one(of ...string) string { return of[w.IntN(len(of))] }

func (w writer) some(n int, one func() string) string {
	var all []string
	for range w.IntN(n + 1) {
		all = append(all, one())
	}
	return "[" + strings.Join(all, ",") + "]"
}

// fields writes an object with a name and some of the fields.
func (w writer) fields(name string, fields ...string) string {
	text := fmt.Sprintf(`{"name":"%s"`, name)
	for _, f := range fields {
		if w.IntN(5) == 0 {
			text += "," + f
		}
	}
	return text + "}"
}

func (w writer) farmName() string    { return w.one("f", "g", "h", "i") }
func (w writer) addressName() string { return w.one("f-addr", "g-addr", "x", "y") }
func (w writer) policyName() string  { return w.one("p", "q", "r") }
func (w writer) backendName() string { return w.one("a", "b", "c") }

func (w writer) farm() string {
	return w.fields(w.farmName(),
		`"virtual-addr":"`+w.one("192.0.2.1", "192.0.2.2", "", "2001:db8::1")+`"`, `"virtual-ports":"`+w.one("80", "80-90", "", "7,9")+`"`,
		`"virtual-addr":"192.0.2.`+itoa(w.IntN(9))+`","virtual-ports":"80"`,
		`"protocol":"`+w.one("tcp", "udp", "all")+`"`, `"mode":"`+w.one("snat", "dnat", "dsr", "local")+`"`,
		`"scheduler":"`+w.one("rr", "hash", "maglev", "weight")+`"`, `"persistence":"`+w.one("srcip", "none", "srcip srcport")+`"`,
		`"state":"`+w.one("up", "down", "off", "up")+`"`, `"verdict":"`+w.one("log", "drop", "accept", "log drop accept")+`"`,
		`"newname":"`+w.farmName()+`"`, `"action":"`+w.one("delete", "stop", "start")+`"`,
		`"addresses":`+w.some(2, w.address), `"backends":`+w.some(3, w.backend), `"backends":[]`,
		`"policies":`+w.some(3, func() string { return w.fields(w.policyName()) }),
		`"sessions":`+w.some(2, w.session), `"slow-start":"5","all-down":"keep"`)
}

func (w writer) session() string {
	return fmt.Sprintf(`{"client":"1.2.3.%d%s","backend":"%s"}`, w.IntN(3), w.one("", " . 80"), w.backendName())
}

func (w writer) backend() string {
	return w.fields(w.backendName(), `"ip-addr":"`+w.one("10.0.0.1", "10.0.0.2", "2001:db8::2")+`"`, `"mark":"`+w.one("0x1", "0x2", "0x300")+`"`,
		`"state":"`+w.one("up", "down", "off")+`"`, `"newname":"`+w.backendName()+`"`, `"action":"delete"`, `"weight":"3"`, `"unchecked":"on"`)
}

func (w writer) address() string {
	return w.fields(w.addressName(), `"ip-addr":"`+w.one("192.0.2.1", "192.0.2.3", "")+`","ports":"`+w.one("80", "443", "")+`"`,
		`"policies":`+w.some(2, func() string { return w.fields(w.policyName()) }), `"family":"dual"`)
}

func (w writer) policy() string {
	return w.fields(w.policyName(), `"type":"`+w.one("whitelist", "blacklist")+`"`, `"elements":`+w.some(4, func() string {
		return `{"data":"` + w.one("10.0.0.0/8", "10.1.2.3", "11.0.0.0", "9.0.0.1-9.0.0.9", "9.0.0.10") + `"}`
	}))
}

// request is a method, a path and a body.
func (w writer) request() (method, path, body string) {
	body = `{"farms":` + w.some(3, w.farm) + `,"addresses":` + w.some(1, w.address) + `,"policies":` + w.some(2, w.policy) + `}`
	switch w.IntN(12) {
	case 0:
		return "DELETE", "/farms/" + w.farmName(), ""
	case 1:
		return "DELETE", "/farms/" + w.farmName() + w.one("/backends", "/addresses", "/policies", "/sessions") + w.one("", "/a", "/x", "/p"), ""
	case 2:
		return "DELETE", "/policies/" + w.policyName() + w.one("", "/elements", "/elements/10.0.0.0/8"), ""
	case 3:
		return "DELETE", "/addresses/" + w.addressName(), ""
	case 4:
		return "DELETE", w.one("/farms", "/policies", "/addresses"), w.one("", body)
	case 5:
		return "PATCH", w.one("/policies/"+w.policyName(), "/farms/"+w.farmName()+"/policies"), body
	}
	return "POST", "/farms", body
}

// TestHistory makes random requests, some of which the kernel refuses, and compares what is known
// and delivered with what a source has that begins with the outcome.
func TestHistory(t *testing.T) {
	w := writer{rand.New(rand.NewPCG(3, 4))}
	b := start(t, Options{})
	good := 0
	for range 2000 {
		method, path, body := w.request()
		b.kernel.mu.Lock()
		if b.kernel.refuse = ""; w.IntN(3) == 0 {
			b.kernel.refuse = w.farmName()
		}
		refuse := b.kernel.refuse
		b.kernel.mu.Unlock()
		before, delivered := stored(b.Source), contents(b.store)
		code, text := b.ask(method, path, body)
		if code >= 500 {
			t.Fatalf("%s %s %s: %d %s", method, path, body, code, text)
		}
		if code != 200 {
			if after := stored(b.Source); !bytes.Equal(before, after) {
				t.Fatalf("%s %s %s: %s, but %s", method, path, body, text, cmp.Diff(string(before), string(after)))
			}
			if d := cmp.Diff(delivered, contents(b.store), equal...); d != "" {
				t.Fatalf("%s %s %s: %s, but %s", method, path, body, text, d)
			}
		} else {
			good++
		}
		if refuse == "" || code == 200 {
			compare(t, b, fmt.Sprintf("%s %s %s", method, path, body))
		}
	}
	if good < 500 {
		t.Errorf("only %d requests were good", good)
	}
}

var equal = []cmp.Option{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()}

// compare has a new source begin with what the state file holds.
func compare(t *testing.T, b *bed, after string) {
	t.Helper()
	st := store.New()
	fresh := New(st, Options{})
	if err := accept(fresh, stored(b.Source)); err != nil {
		t.Fatalf("after %s: what was stored is refused: %v\n%s", after, err, stored(b.Source))
	}
	fresh.begin()
	if d := cmp.Diff(contents(st), contents(b.store), equal...); d != "" {
		t.Fatalf("after %s: objects differ: %s", after, d)
	}
	x, y := fresh.doc, b.document()
	for _, d := range []string{
		cmp.Diff(setsOf(x.farmsAt), setsOf(y.farmsAt)), cmp.Diff(setsOf(x.farmsOf), setsOf(y.farmsOf)), cmp.Diff(setsOf(x.addrsOf), setsOf(y.addrsOf)),
		cmp.Diff(maps.Collect(x.loggers.All()), maps.Collect(y.loggers.All())),
		cmp.Diff(frontsOf(x.fronts), frontsOf(y.fronts)),
	} {
		if d != "" {
			t.Fatalf("after %s: indexes differ: %s", after, d)
		}
	}
	count := marks{}
	for _, f := range y.farms.All() {
		for _, one := range f.backends {
			count.count(one.Mark, true)
		}
	}
	if !maps.Equal(maps.Collect(count.used.All()), maps.Collect(y.marks.used.All())) {
		t.Fatalf("after %s: marks are miscounted", after)
	}
}

func setsOf(x cow.Map[string, set]) map[string]map[string]struct{} {
	all := map[string]map[string]struct{}{}
	for key, members := range x.All() {
		all[key] = maps.Collect(members.All())
	}
	return all
}

func frontsOf(x fronts) map[string]string {
	all := map[string]string{}
	for k, list := range x.All() {
		all[fmt.Sprint(k)] = fmt.Sprint(list)
	}
	return all
}

// contents are all objects of a store.
func contents(s *store.Store) map[string]any {
	all := map[string]any{}
	s.Read(func(v *store.View) {
		for _, kind := range []model.Kind{model.FarmKind, model.FarmListKind} {
			for name := range v.All().Objects[kind] {
				all[string(kind)+" "+name.Name] = v.Object(model.Ref{Kind: kind, Name: name})
			}
		}
	})
	return all
}

// TestTogether makes requests, reports and looks at the same time; the race detector judges.
func TestTogether(t *testing.T) {
	c := &checker{}
	b := prepare(t, Options{State: t.TempDir() + "/state"})
	b.UseChecker(c)
	b.run()
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			w := writer{rand.New(rand.NewPCG(5, uint64(i)))}
			for range 100 {
				method, path, body := w.request()
				if w.IntN(2) == 0 {
					method, path, body = "POST", "/farms", web(`"slow-start":"3","health-check":{"type":"tcp"},`)
				}
				if code, text := b.ask(method, path, body); code >= 500 {
					t.Errorf("%s %s %s: %d %s", method, path, body, code, text)
				}
				b.Report([]health.Result{{Key: health.Key{Farm: "web", Backend: w.backendName()}, Up: w.IntN(2) == 0, Why: "refused"}})
				if code, _ := b.ask("GET", w.one("/farms", "/policies", "/addresses"), ""); code != 200 {
					t.Errorf("GET: %d", code)
				}
				b.Status()
			}
		})
	}
	group.Wait()
	b.do("DELETE", "/farms", "")
	b.do("POST", "/farms", web(""))
	compare(t, b, "all")
}
