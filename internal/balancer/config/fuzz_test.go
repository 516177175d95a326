package config

import (
	"bytes"
	"math/rand/v2"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// accept takes over a document without a running source.
func accept(s *Source, text []byte) error {
	r := newRevision(s.doc, s.options)
	if err := merge(text, nil)(r); err != nil {
		return err
	}
	if err := r.finish(); err != nil {
		return err
	}
	s.doc, s.loaded = r.document, append(s.loaded, &request{change: r})
	return nil
}

func stored(s *Source) []byte { return bytes.Join(s.pieces(), nil) }

func printed(t *testing.T, s *Source) string {
	var all strings.Builder
	for _, path := range []string{"/policies", "/addresses", "/farms"} {
		q := httptest.NewRequest("GET", path, nil)
		q.Header.Set("Key", secret)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, q)
		if w.Code != 200 {
			t.Fatalf("GET %s: %d", path, w.Code)
		}
		all.WriteString(w.Body.String())
	}
	return all.String()
}

// FuzzRead reads documents: none may do harm, and what is accepted is the same once it was stored
// and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(web("")))
	f.Add(many(3))
	f.Add([]byte(`{"policies":[{"name":"p","family":"ipv6","elements":[{"data":"::1-::f"},{"data":"::10"}],"feed":{"url":"http://x","interval":"5"}}],
		"addresses":[{"name":"a","ip-addr":"::5","ports":"1-5,9","policies":[{"name":"p"}]}],
		"farms":[{"name":"f","newname":"g","persistence":"srcip srcmac","sessions":[{"client":"1.2.3.4 . 02:00:00:00:00:01","backend":"b"}],"addresses":[{"name":"x"}],
		"backends":[{"name":"b","mark":"0x3"},{"name":"c","newname":"d"}],"policies":[{"name":"p"}],"log":"input","helper":"sip","health-check":{"type":"grpc","port":5}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, lenient := range []bool{false, true} {
			o := Options{Lenient: lenient, Key: secret}
			first := New(nowhere{}, o)
			if err := accept(first, text); err != nil {
				if _, ok := err.(*failure); !ok {
					t.Fatalf("an error of the server: %v", err)
				}
				continue
			}
			once := stored(first)
			second := New(nowhere{}, Options{Key: secret})
			if err := accept(second, once); err != nil {
				t.Fatalf("what was stored is refused: %v\n%s", err, once)
			}
			if again := stored(second); !bytes.Equal(once, again) {
				t.Fatalf("stored\n%s\nand again\n%s", once, again)
			}
			if a, b := printed(t, first), printed(t, second); a != b && !lenientMarks(a, b) {
				t.Fatalf("printed\n%s\nand again\n%s", a, b)
			}
		}
	})
}

// lenientMarks reports whether texts differ in marks alone: those that were not given may be others
// after backends were deleted or renamed in the document.
func lenientMarks(a, b string) bool {
	without := func(text string) string {
		var kept []string
		for line := range strings.Lines(text) {
			if !strings.Contains(line, `"mark": `) {
				kept = append(kept, line)
			}
		}
		return strings.Join(kept, "")
	}
	return without(a) == without(b)
}

// FuzzRequest makes requests: none may be answered as if the server were at fault.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/farms/web/sessions", "")
	f.Add("DELETE", "/policies/p/elements/10.0.0.0/8", "")
	f.Add("DELETE", "/farms/web/sessions/1.2.3.4_._80", "")
	f.Add("PATCH", "/policies/p", `{"policies":[{"name":"p","elements":[{"data":"1.2.3.4"}]}]}`)
	b := start(f, Options{})
	b.do("POST", "/farms", web(`"persistence":"srcip",`))
	f.Fuzz(func(t *testing.T, method, path, body string) {
		q := httptest.NewRequest("GET", "/", strings.NewReader(body))
		u, err := q.URL.Parse(path)
		if err != nil {
			return
		}
		q.Method, q.URL = method, u
		q.Header.Set("Key", secret)
		w := httptest.NewRecorder()
		if b.Handler().ServeHTTP(w, q); w.Code >= 500 {
			t.Errorf("%s %q %q: %d %s", method, path, body, w.Code, w.Body)
		}
	})
}

// TestFronts compares the index of ports with a look at all farms.
func TestFronts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), {}}
	index, farms := fronts{}, map[string]*model.Farm{}
	clashes := 0
	for range 5000 {
		name := string(rune('a' + r.IntN(20)))
		index.remove(farms[name])
		delete(farms, name)
		f := &model.Farm{Name: name}
		for range r.IntN(3) {
			a := model.FarmAddress{Addr: addrs[r.IntN(3)], IPv4: true, IPv6: r.IntN(2) == 0, Protocols: []model.Protocol{model.TCP, model.UDP}[r.IntN(2):]}
			for p, n := 1, r.IntN(3); n > 0; n-- {
				p += r.IntN(20)
				last := p + r.IntN(5)
				a.Ports = append(a.Ports, model.PortSpan{First: uint16(p), Last: uint16(last)})
				p = last + 2
			}
			f.Addresses = append(f.Addresses, a)
		}
		want := overlaps(farms, f)
		before := index
		if got := index.add(f); (got != nil) != want {
			t.Fatalf("%+v beside %+v: %+v", f, farms, got)
		}
		if !want {
			farms[name] = f
		} else {
			clashes++
			index = before
		}
	}
	for _, f := range farms {
		index.remove(f)
	}
	if index.Len() > 0 || clashes == 0 {
		t.Errorf("left: %v; %d clashes", index, clashes)
	}
}

// overlaps reports whether a farm claims a port twice, or one that another has.
func overlaps(farms map[string]*model.Farm, f *model.Farm) bool {
	type port struct {
		frontKey
		port int
	}
	taken := map[port]bool{}
	twice := false
	claim := func(f *model.Farm) {
		eachFront(f, func(k frontKey, s model.PortSpan) {
			for p := int(s.First); p <= int(s.Last); p++ {
				at := port{k, p}
				twice = twice || taken[at]
				taken[at] = true
				if s.Last == 65535 && p == 200 {
					break // no test goes further
				}
			}
		})
	}
	for _, other := range farms {
		claim(other)
	}
	claim(f)
	return twice
}
