package config

import (
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// TestPaths walks through the table of verbs and paths.
func TestPaths(t *testing.T) {
	const (
		success = `{"response": "success"}`
		invalid = `{"response": "invalid request"}`
	)
	said := func(text string) string { return `{"response": "` + text + `"}` }
	b := start(t, Options{})
	b.do("POST", "/farms", `{"policies":[{"name":"p","elements":[{"data":"10.0.0.0/8"},{"data":"1.2.3.4"}]},{"name":"q"}]}`)
	b.do("POST", "/policies", web(`"persistence":"srcip srcport","policies":[{"name":"p"}],"sessions":[{"client":"1.2.3.4 . 90","backend":"a"},{"client":"1.2.3.5 . 90","backend":"b"}],`))
	for _, test := range []struct {
		verb, path, body string
		code             int
		answer           string // * at the end: and more
	}{
		{"GET", "/farms", "", 200, "{\n        \"farms\": [\n                {\n                        \"name\": \"web\",\n*"},
		{"GET", "/farms/", "", 200, "{\n*"},
		{"GET", "/farms/web/", "", 200, "{\n*"},
		{"GET", "/farms/nobody", "", 404, invalid},
		{"GET", "/farms/web/sessions", "", 200, "{\n        \"sessions\": [\n*"},
		{"GET", "/farms/nobody/sessions", "", 404, invalid},
		{"GET", "/farms/web/backends", "", 400, invalid},
		{"GET", "/policies/nobody", "", 200, "{\n        \"policies\": []\n}"},
		{"GET", "/policies/p/elements", "", 200, "{\n        \"policies\": [\n*"},
		{"GET", "/addresses/web-addr", "", 200, "{\n        \"addresses\": [\n*"},
		{"GET", "//farms", "", 404, invalid},
		{"GET", "/farms//sessions", "", 404, invalid},
		{"GET", "/", "", 404, invalid},
		{"GET", "/bogus", "", 400, invalid},
		{"HEAD", "/farms", "", 400, ""},
		{"OPTIONS", "/farms", "", 400, ""},
		{"POST", "/farms/web", "{}", 404, invalid},
		{"POST", "/bogus", "{}", 404, invalid},
		{"POST", "/farms", "{}", 200, success},
		{"POST", "/farms", "[]", 200, success},
		{"PUT", "/addresses", `{"farms":[]}`, 200, success},
		{"PATCH", "/farms/web", "{}", 404, invalid},
		{"PATCH", "/policies/nobody", "{}", 404, said("the object to modify is unknown. Unknown policy 'nobody'")},
		{"PATCH", "/policies/p/elements", `{"policies":[{"name":"p","elements":[{"data":"10.0.0.0/8"},{"data":"1.2.3.9"}]}]}`, 200, success},
		{"PATCH", "/policies/p/elements", `{"policies":[{"name":"p","elements":[]}]}`, 200, success},
		{"PATCH", "/farms/web/policies", `{"farms":[{"name":"web","policies":[{"name":"q"}]}]}`, 200, success},
		{"DELETE", "/policies/p/elements/1.2.3.4", "", 404, said("error deleting policy element. Unknown element '1.2.3.4' in policy 'p'")},
		{"DELETE", "/policies/p/elements/10.0.0.0/8", "", 200, success},
		{"DELETE", "/policies/nobody/elements", "", 404, said("could not get the policy elements. Unknown policy 'nobody'")},
		{"DELETE", "/policies", `{"policies":[{"name":"p","elements":[{"data":"1.2.3.9"}]}]}`, 200, success},
		{"DELETE", "/policies/nobody", "", 404, said("error stopping policy. Unknown policy 'nobody'")},
		{"DELETE", "/addresses/nobody", "", 404, said("error stopping address. Unknown address 'nobody'")},
		{"DELETE", "/farms/nobody", "", 404, said("error deleting farm. Unknown farm 'nobody'")},
		{"DELETE", "/farms/nobody/backends/b", "", 404, said("error deleting backend. Unknown farm 'nobody'")},
		{"DELETE", "/farms/web/backends/x", "", 404, said("error deleting backend. Unknown backend 'x' in farm 'web'")},
		{"DELETE", "/farms/web/addresses/x", "", 404, said("error deleting farm address. Unknown farm address 'x' in farm 'web'")},
		{"DELETE", "/farms/web/policies/x", "", 404, said("error deleting farm policy. Unknown farm policy 'x' in farm 'web'")},
		{"DELETE", "/farms//backends", "", 404, invalid},
		{"DELETE", "/farms/web/bogus", "", 400, invalid},
		{"DELETE", "/bogus", "", 404, invalid},
		{"DELETE", "/farms/web/sessions/9.9.9.9_._9", "", 200, success},
		{"DELETE", "/farms/web/sessions/1.2.3.4_._90", "", 200, success},
		{"DELETE", "/farms/web/backends/b/sessions", "", 200, success},
		{"DELETE", "/farms/web/policies/q", "", 200, success},
		{"DELETE", "/farms/web/backends/a", "", 200, success},
		{"DELETE", "/farms/web/addresses", "", 200, success},
		{"GET", "/addresses", "", 200, "{\n        \"addresses\": []\n}"},
		{"DELETE", "/farms/web/backends", "", 200, success},
		{"DELETE", "/policies/p", "", 200, success},
		{"DELETE", "/policies", "", 200, success},
		{"DELETE", "/addresses", "", 200, success},
		{"DELETE", "/farms", "", 200, success},
		{"GET", "/farms", "", 200, "{\n        \"farms\": []\n}"},
	} {
		code, text := b.ask(test.verb, test.path, test.body)
		want, more := strings.CutSuffix(test.answer, "*")
		if code != test.code || text != want && !(more && strings.HasPrefix(text, want)) {
			t.Errorf("%s %s %s: %d %s, want %d %s", test.verb, test.path, test.body, code, text, test.code, test.answer)
		}
	}
	if len(b.kernel.forgets) != 2 {
		t.Errorf("the kernel was told to forget %v", b.kernel.forgets)
	}
}

// TestSuccessive goes through a farm's life by states, as the API shows them.
func TestSuccessive(t *testing.T) {
	b := start(t, Options{})
	b.do("POST", "/farms", web(""))
	state := func(backend string) string {
		_, rest, _ := strings.Cut(farmPrinted(b), `"name": "`+backend+`"`)
		_, rest, _ = strings.Cut(rest, `"state": "`)
		text, _, _ := strings.Cut(rest, `"`)
		return text
	}
	for _, step := range []struct{ body, a, b, c, level string }{
		{`{"farms":[{"name":"web","backends":[{"name":"c","ip-addr":"10.0.0.3","priority":"2"}]}]}`, "up", "up", "available", "1"},
		{`{"farms":[{"name":"web","backends":[{"name":"a","state":"off"}]}]}`, "off", "up", "up", "2"},
		{`{"farms":[{"name":"web","backends":[{"name":"b","state":"down"}]}]}`, "off", "down", "up", "3"},
		{`{"farms":[{"name":"web","backends":[{"name":"a","state":"up"},{"name":"b","action":"start"}]}]}`, "up", "up", "available", "1"},
		{`{"farms":[{"name":"web","backends":[{"name":"a","state":"draining"}]}]}`, "off", "up", "up", "2"},
	} {
		b.do("PUT", "/farms", step.body)
		if state("a") != step.a || state("b") != step.b || state("c") != step.c || !strings.Contains(farmPrinted(b), `"priority": "`+step.level+`",
                        "state": "up"`) {
			t.Errorf("after %s: %s", step.body, farmPrinted(b))
		}
	}
	b.do("PUT", "/farms", `{"farms":[{"name":"web","newname":"shop"}]}`)
	if f := farmIn(b.store, "shop"); f == nil || farmIn(b.store, "web") != nil {
		t.Error("the farm was not renamed")
	}
	if _, text := b.ask("GET", "/addresses", ""); !strings.Contains(text, "shop-addr") || strings.Contains(text, "web-addr") {
		t.Error("the farm's own address was not renamed", text)
	}
	b.do("PUT", "/farms", `{"farms":[{"name":"shop","state":"down"}]}`)
	if farmIn(b.store, "shop") != nil {
		t.Error("a farm that is down is delivered")
	}
	b.do("POST", "/farms", web("")) // its address is free now
	if code, _ := b.ask("PUT", "/farms", `{"farms":[{"name":"shop","state":"up"}]}`); code != 409 {
		t.Error("two farms may serve one port")
	}
	b.do("PUT", "/farms", `{"farms":[{"name":"shop","state":"up"},{"name":"web","state":"down"}]}`)
}

func TestKeys(t *testing.T) {
	b := start(t, Options{ReadKeys: []string{"look"}})
	for _, test := range []struct {
		verb, path, key string
		code            int
	}{
		{"GET", "/farms", secret, 200}, {"GET", "/farms", "look", 200}, {"GET", "/farms", "", 401}, {"GET", "/farms", "guess", 401},
		{"POST", "/farms", secret, 200}, {"POST", "/farms", "look", 401}, {"DELETE", "/farms", "", 401}, {"GET", "/openapi.json", "", 200},
	} {
		q := httptest.NewRequest(test.verb, test.path, strings.NewReader("{}"))
		q.Header.Set("Key", test.key)
		w := httptest.NewRecorder()
		b.Handler().ServeHTTP(w, q)
		if w.Code != test.code || w.Code == 401 && w.Body.Len() > 0 {
			t.Errorf("%s %s with %q: %d %s", test.verb, test.path, test.key, w.Code, w.Body)
		}
	}
	open := New(nowhere{}, Options{})
	w := httptest.NewRecorder()
	if open.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/farms", nil)); w.Code != 401 {
		t.Error("a source without a key lets everybody in")
	}
}

func TestLiveSessions(t *testing.T) {
	b := start(t, Options{})
	b.do("POST", "/farms", web(`"persistence":"srcip","sessions":[{"client":"1.2.3.4","backend":"a"}],`))
	client := model.FlowValues{SrcIP: netip.MustParseAddr("192.0.2.77")}
	b.kernel.live = []model.LiveSession{
		{FarmSession: model.FarmSession{Client: client, Backend: "b"}, Left: 8*time.Minute + 59*time.Second + 400*time.Millisecond},
		{FarmSession: model.FarmSession{Client: client, Backend: "gone"}, Left: time.Second},
	}
	_, text := b.ask("GET", "/farms/web/sessions", "")
	for _, want := range []string{`"client": "1.2.3.4"`, `"client": "192.0.2.77"`, `"expiration": "8m59s400ms"`, `"backend": "UNDEFINED"`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in %s", want, text)
		}
	}
	b.do("DELETE", "/farms/web/backends/b/sessions", "")
	if len(b.kernel.forgets) != 1 || b.kernel.forgets[0] != client {
		t.Errorf("the kernel was told to forget %v", b.kernel.forgets)
	}
}

func TestEmptyBody(t *testing.T) {
	b := start(t, Options{})
	b.do("POST", "/farms", web(""))
	b.do("POST", "/policies", `{"policies":[{"name":"p"}]}`)
	for _, q := range [][2]string{{"PUT", "/farms"}, {"POST", "/policies"}, {"PATCH", "/policies/p"}, {"PATCH", "/farms/web/policies"}} {
		if code, text := b.ask(q[0], q[1], " \n"); code != 400 || !strings.Contains(text, "the structure is invalid. The body is empty") {
			t.Errorf("%v: %d %s", q, code, text)
		}
	}
}

func TestTooLarge(t *testing.T) {
	b := start(t, Options{})
	if code, text := b.ask("POST", "/farms", strings.Repeat(" ", mostBody+1)); code != 413 {
		t.Errorf("%d %s", code, text)
	}
}
