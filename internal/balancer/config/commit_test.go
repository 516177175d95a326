package config

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/list"
)

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain until ", what)
		}
	}
}

// TestRefused has the kernel refuse one of several changes that wait for it together.
func TestRefused(t *testing.T) {
	b := prepare(t, Options{State: t.TempDir() + "/state"})
	b.kernel.refuse = "bad"
	b.run()
	b.do("POST", "/farms", web(""))
	b.mu.RLock()
	before := b.doc.fronts.Len()
	b.mu.RUnlock()
	b.kernel.gate = make(chan struct{})
	var wait sync.WaitGroup
	answers := make([]string, 4)
	for i, name := range []string{"one", "bad", "two", "three"} {
		wait.Go(func() {
			body := fmt.Sprintf(`{"farms":[{"name":"%s","virtual-addr":"198.51.100.%d","virtual-ports":"1-9","backends":[{"name":"b","ip-addr":"10.0.0.1"}]}]}`, name, i)
			_, answers[i] = b.ask("POST", "/farms", body)
		})
	}
	answered := make(chan struct{})
	go func() {
		wait.Wait()
		close(answered)
	}()
	for waiting := true; waiting; {
		select {
		case b.kernel.gate <- struct{}{}:
		case <-answered:
			waiting = false
		}
	}
	for i, want := range []string{"success", "error generating rules. The kernel refuses the change, and nothing was changed: no such device", "success", "success"} {
		if answers[i] != `{"response": "`+want+`"}` {
			t.Errorf("answer %d is %s", i, answers[i])
		}
	}
	if farmIn(b.store, "bad") != nil || farmIn(b.store, "three") == nil {
		t.Error("the store has what was refused, or lacks what was not")
	}
	b.stop()
	if n := b.doc.fronts.Len(); n != before+3 {
		t.Errorf("%d fronts are known, want %d", n, before+3)
	}
	if b.doc.farms.Get("bad") != nil || b.doc.addresses.Get("bad-addr") != nil || b.doc.marks.used.Get(6) != 0 {
		t.Error("something is left of what was refused")
	}
	again := prepare(t, b.options)
	if err := again.Load(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	again.run()
	if farmIn(again.store, "bad") != nil || farmIn(again.store, "two") == nil {
		t.Error("the state file has what was refused, or lacks what was not")
	}
}

// TestFaults refuses what brings a fault, and nothing that finds it there.
func TestFaults(t *testing.T) {
	b := start(t, Options{State: t.TempDir() + "/state"})
	b.do("POST", "/farms", web(""))
	b.do("POST", "/farms", `{"farms":[{"name":"other"}]}`)
	b.kernel.faulty = "new"
	if code, text := b.ask("POST", "/farms", `{"farms":[{"name":"new"}]}`); code != 409 || !strings.Contains(text, "error generating rules. The change can't be carried out, and nothing was changed: Farm new: no such network") || farmIn(b.store, "new") != nil {
		t.Errorf("%d %s", code, text)
	}
	b.kernel.faulty = "web" // its network has gone
	b.do("POST", "/farms", `{"farms":[{"name":"other","mode":"dnat"}]}`)
	code, text := b.ask("POST", "/farms", `{"farms":[{"name":"web","backends":[{"name":"a","state":"off"}]}]}`)
	if code != 200 || text != `{"response": "success. Farm web: no such network"}` || farmIn(b.store, "web").Backends[0].State != model.BackendDraining {
		t.Errorf("%d %s", code, text)
	}
	if kept, err := os.ReadFile(b.options.State); err != nil || !strings.Contains(string(kept), `"off"`) {
		t.Errorf("the state file holds %s, %v", kept, err)
	}
}

// TestState restarts with a state file.
func TestState(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(web("")), 0o600); err != nil {
		t.Fatal(err)
	}
	b := prepare(t, Options{State: file})
	if err := b.Load(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	b.run()
	b.do("POST", "/farms", `{"policies":[{"name":"p","type":"whitelist","elements":[{"data":"10.0.0.0/8"}],"feed":{"file":"/none","interval":9}}],
		"farms":[{"name":"web","family":"ipv4","log-prefix":"a\"b","responsettl":"7","policies":[{"name":"p"}],"persistence":"srcip",
			"health-check":{"type":"command","command":["/bin/x","a b"]},"sessions":[{"client":"1.2.3.4","backend":"a"}]},
			{"name":"six","virtual-addr":"2001:db8::1","virtual-ports":"","scheduler":"maglev","state":"down"}]}`)
	var before []string
	for _, path := range []string{"/farms", "/policies", "/addresses"} {
		_, text := b.ask("GET", path, "")
		before = append(before, text)
	}
	b.stop()
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the state file is %v, %v", info, err)
	}
	again := prepare(t, Options{State: file})
	if err := again.Load(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	again.run()
	for i, path := range []string{"/farms", "/policies", "/addresses"} {
		if _, text := again.ask("GET", path, ""); text != before[i] {
			t.Errorf("GET %s after a restart is %s, was %s", path, text, before[i])
		}
	}
	again.stop()
	// A balancer that was killed while it wrote leaves this.
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), ".state.123"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, broken := range []string{"{", "null", "", " \n", "[]", "{}", `{"policies":[],"addresses":[]}`} {
		if err := os.WriteFile(file, []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := prepare(t, Options{State: file}).Load(t.Context(), config); err == nil || !strings.Contains(err.Error(), "move it away") || strings.Count(err.Error(), file) != 1 {
			t.Errorf("a state file of %q: %v", broken, err)
		}
	}
	for _, o := range []Options{{}, {State: filepath.Dir(file)}} {
		if err := prepare(t, o).Load(t.Context(), filepath.Dir(file)); err == nil || strings.Count(err.Error(), filepath.Dir(file)) != 1 {
			t.Errorf("a folder in place of a file: %v", err)
		}
	}
	if left, _ := filepath.Glob(filepath.Dir(file) + "/.*"); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// TestLostState refuses a change that can't be kept.
func TestLostState(t *testing.T) {
	b := start(t, Options{State: filepath.Join(t.TempDir(), "none", "state")})
	if code, text := b.ask("POST", "/farms", web("")); code != 503 || !strings.Contains(text, "nothing was changed") || farmIn(b.store, "web") != nil {
		t.Errorf("%d %s", code, text)
	}
}

// TestCheck has the program refuse what the machine can't do.
func TestCheck(t *testing.T) {
	b := start(t, Options{Check: func(f *model.Farm) error {
		if f.Mode == model.DSR {
			return fmt.Errorf("mode: this kernel can't do it")
		}
		return nil
	}})
	b.do("POST", "/farms", web(""))
	if code, text := b.ask("POST", "/farms", `{"farms":[{"name":"web","mode":"dsr"}]}`); code != 400 || !strings.Contains(text, "farms[web]: mode: this kernel can't do it") {
		t.Errorf("%d %s", code, text)
	}
}

// TestLoadAll loads what the machine can't do, where the kernel names it; changes are refused.
func TestLoadAll(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, []byte(web("")), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{Check: func(*model.Farm) error { return fmt.Errorf("mode: it can't") }}
	if err := prepare(t, o).Load(t.Context(), config); err == nil || !strings.Contains(err.Error(), "farms[web]: mode: it can't") {
		t.Error(err)
	}
	o.LoadAll = true
	b := prepare(t, o)
	if err := b.Load(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	b.run()
	if farmIn(b.store, "web") == nil {
		t.Error("the farm is not loaded")
	}
	if code, text := b.ask("POST", "/farms", `{"farms":[{"name":"web","mode":"dsr"}]}`); code != 400 {
		t.Errorf("%d %s", code, text)
	}
}

// TestPrepare makes the machine ready for what is served, and for nothing that is refused.
func TestPrepare(t *testing.T) {
	var ready []string
	b := start(t, Options{
		Check: func(f *model.Farm) error {
			if f.Mode == model.DSR {
				return fmt.Errorf("mode: this kernel can't do it")
			}
			return nil
		},
		Prepare: func(f *model.Farm) { ready = append(ready, f.Name) },
	})
	if code, text := b.ask("POST", "/farms", `{"farms":[{"name":"a"},{"name":"b","mode":"dsr","scheduler":"hash"}]}`); code != 400 || len(ready) > 0 {
		t.Errorf("%d %s; ready for %v", code, text, ready)
	}
	b.do("POST", "/farms", `{"farms":[{"name":"a"},{"name":"c","state":"down"}]}`)
	if !slices.Equal(ready, []string{"a"}) {
		t.Errorf("ready for %v", ready)
	}
}

// checker notes what it is to check.
type checker struct {
	mu   sync.Mutex
	sets []map[health.Key]*health.Target
}

func (c *checker) Set(changes map[health.Key]*health.Target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sets = append(c.sets, changes)
}

// clock is a time that a test sets.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func states(f *model.Farm) (all []model.BackendState) {
	for _, b := range f.Backends {
		all = append(all, b.State)
	}
	return all
}

func weights(f *model.Farm) (all []int) {
	for _, b := range f.Backends {
		all = append(all, b.Weight)
	}
	return all
}

// TestHealth reports results, and looks at what is delivered, printed and said.
func TestHealth(t *testing.T) {
	c := &checker{}
	b := prepare(t, Options{})
	b.UseChecker(c)
	b.run()
	b.do("POST", "/farms", web(`"health-check":{"type":"tcp"},`))
	if len(c.sets) != 1 || len(c.sets[0]) != 2 || c.sets[0][health.Key{Farm: "web", Backend: "a"}].Port != 8080 {
		t.Fatalf("to check: %v", c.sets)
	}
	report := func(backend string, up bool) {
		b.Report([]health.Result{{Key: health.Key{Farm: "web", Backend: backend}, Up: up, Why: "connection refused"}})
	}
	delivered := func(want ...model.BackendState) {
		t.Helper()
		if got := states(farmIn(b.store, "web")); !slices.Equal(got, want) {
			t.Errorf("states are %v, want %v", got, want)
		}
	}
	report("a", true)
	delivered(model.BackendUp, model.BackendUp)
	report("a", false)
	report("nobody", false)
	delivered(model.BackendDown, model.BackendUp)
	if text := farmPrinted(b); strings.Count(text, `"reason": "connection refused"`) != 1 || !strings.Contains(text, `"state": "down",`) {
		t.Error(text)
	}
	b.Report([]health.Result{{Key: health.Key{Farm: "web", Backend: "a"}, Why: "no answer within 2s"}})
	if text := farmPrinted(b); !strings.Contains(text, `"reason": "no answer within 2s"`) || farmIn(b.store, "web").Backends[0].Why != "no answer within 2s" {
		t.Error("the newest reason is not shown: ", text)
	}
	report("b", false)
	delivered(model.BackendDown, model.BackendDown)
	if issues := b.Status().Issues; len(issues) != 1 || issues[0].Object.Name.Name != "web" {
		t.Errorf("issues are %v", issues)
	}
	b.do("POST", "/farms", `{"farms":[{"name":"web","all-down":"keep"}]}`)
	delivered(model.BackendUp, model.BackendUp)
	report("b", true)
	delivered(model.BackendDown, model.BackendUp)
	b.do("POST", "/farms", `{"farms":[{"name":"web","health-check":{"type":"tcp","fall":"9"}}]}`)
	delivered(model.BackendDown, model.BackendUp) // until the new check finds it up
	if last := c.sets[len(c.sets)-1]; len(last) != 2 || last[health.Key{Farm: "web", Backend: "a"}].Check.Fall != 9 {
		t.Errorf("to check: %v", last)
	}
	b.do("POST", "/farms", `{"farms":[{"name":"web","backends":[{"name":"a","port":"9"}]}]}`) // another server, perhaps
	delivered(model.BackendUp, model.BackendUp)
	if last := c.sets[len(c.sets)-1]; len(last) != 1 || last[health.Key{Farm: "web", Backend: "a"}].Port != 9 {
		t.Errorf("to check: %v", last)
	}
	report("a", false)
	b.do("POST", "/farms", `{"farms":[{"name":"web","all-down":"refuse","backends":[{"name":"a","unchecked":"on"}]}]}`)
	report("a", false)
	report("b", false)
	delivered(model.BackendUp, model.BackendDown) // a server of last resort serves in any case
	if issues := b.Status().Issues; len(issues) != 1 || issues[0].InForce != "the backends that are not checked" {
		t.Errorf("issues are %v", issues)
	}
	if last := c.sets[len(c.sets)-1]; len(last) != 1 || last[health.Key{Farm: "web", Backend: "a"}] != nil {
		t.Errorf("to check: %v", last)
	}
	if text := farmPrinted(b); strings.Count(text, `"unchecked": "on"`) != 1 {
		t.Error(text)
	}
	b.do("POST", "/farms", `{"farms":[{"name":"web","backends":[{"name":"a","unchecked":"off"}]}]}`)
	b.do("POST", "/farms", `{"farms":[{"name":"web","health-check":{"type":"none"}}]}`)
	if last := c.sets[len(c.sets)-1]; len(last) != 2 || last[health.Key{Farm: "web", Backend: "a"}] != nil {
		t.Errorf("to check: %v", last)
	}
}

// TestSlowStart raises the weight of a backend that comes up.
func TestSlowStart(t *testing.T) {
	now := &clock{at: time.Unix(1e9, 0)}
	b := start(t, Options{Now: now.now})
	b.do("POST", "/farms", web(`"health-check":{"type":"tcp"},"slow-start":"20",`))
	for _, up := range []bool{false, true} {
		b.Report([]health.Result{{Key: health.Key{Farm: "web", Backend: "a"}, Up: up}})
	}
	for _, want := range [][]int{{1, 10}, {2, 10}, {3, 10}, {4, 10}, {5, 10}, {6, 10}, {7, 10}, {8, 10}, {9, 10}, {10, 10}, {1, 1}} {
		b.riseDue()
		if got := weights(farmIn(b.store, "web")); !slices.Equal(got, want) {
			t.Errorf("weights are %v, want %v", got, want)
		}
		now.add(2 * time.Second)
	}
	if wait := b.riseDue(); wait != time.Hour || len(b.found) > 0 {
		t.Errorf("something still rises: %v, %v", wait, b.found)
	}
}

// TestFeed follows a file.
func TestFeed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "list")
	b := start(t, Options{ReadList: list.Read})
	b.do("POST", "/policies", `{"policies":[{"name":"p","elements":[{"data":"192.0.2.1"}],"feed":{"file":"`+file+`","interval":1}}]}`)
	until(t, "the missing file is an issue", func() bool { return len(b.Status().Issues) == 1 })
	if n := len(listIn(b.store, "p").Ranges); n != 1 {
		t.Errorf("%d ranges are left of the last good ones", n)
	}
	if err := os.WriteFile(file, []byte("10.0.0.0/8 # ours\n2001:db8::/32\n192.0.2.7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []model.AddressRange{prefixRange(netip.MustParsePrefix("10.0.0.0/8")), prefixRange(netip.MustParsePrefix("192.0.2.7/32"))}
	until(t, "the list is read", func() bool { return slices.Equal(listIn(b.store, "p").Ranges, want) })
	until(t, "the issue is gone", func() bool { return len(b.Status().Issues) == 0 })
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(" \n")
	until(t, "the empty file is an issue", func() bool { return len(b.Status().Issues) == 1 })
	if got := listIn(b.store, "p").Ranges; !slices.Equal(got, want) {
		t.Errorf("%v is left of the last good ones", got)
	}
	write("# nobody at present\n")
	until(t, "the list is empty on purpose", func() bool { return len(listIn(b.store, "p").Ranges) == 0 })
	until(t, "this issue is gone, too", func() bool { return len(b.Status().Issues) == 0 })
	b.do("POST", "/policies", `{"policies":[{"name":"p","feed":{}}]}`)
	if b.mu.RLock(); len(b.feeds) != 0 {
		t.Error("a feed that is gone is still followed")
	}
	b.mu.RUnlock()
}

// TestFeedAtStart begins with what feeds hold. Of those that cannot be read, the kernel is asked
// beside the configuration, and the state file alone where there is one.
func TestFeedAtStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := `{"policies":[`
	for i, feed := range []string{"good", "blank", "gone"} {
		if i > 0 {
			text += ","
		}
		text += `{"name":"` + feed + `","elements":[{"data":"192.0.2.1"}],"feed":{"file":"` + filepath.Join(dir, feed) + `"}}`
	}
	config, state := filepath.Join(dir, "config"), filepath.Join(dir, "state")
	for file, text := range map[string]string{config: text + `,{"name":"fixed"}]}`, filepath.Join(dir, "good"): "10.0.0.0/8\n", filepath.Join(dir, "blank"): " "} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	o := Options{ReadList: list.Read, State: state, Listed: func(_ context.Context, lists []string) (map[string][]netip.Prefix, error) {
		asked++
		if slices.Sort(lists); !slices.Equal(lists, []string{"blank", "gone"}) {
			t.Errorf("the kernel is asked for %q", lists)
		}
		return map[string][]netip.Prefix{"gone": {netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("fd00::/8")}}, nil
	}}
	holds := func(b *bed, list, want string) {
		t.Helper()
		var all []string
		for _, r := range listIn(b.store, list).Ranges {
			all = append(all, rangeText(r))
		}
		if got := strings.Join(all, " "); got != want {
			t.Errorf("%s holds %q, want %q", list, got, want)
		}
	}
	for range 2 {
		b := prepare(t, o)
		if err := b.Load(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		b.run()
		until(t, "what cannot be read is an issue", func() bool { return len(b.Status().Issues) == 2 })
		holds(b, "good", "10.0.0.0/8")
		holds(b, "blank", "192.0.2.1")
		holds(b, "gone", "10.9.0.0/16 192.0.2.1")
		holds(b, "fixed", "")
		b.do("POST", "/policies", `{"policies":[{"name":"other"}]}`) // the state file is written
		b.stop()
	}
	if asked != 1 {
		t.Errorf("the kernel is asked %d times", asked)
	}
}

// TestFeedSecret keeps the password of a feed out of what is said of it.
func TestFeedSecret(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	b := start(t, Options{ReadList: list.Read})
	b.do("POST", "/policies", `{"policies":[{"name":"p","feed":{"url":"`+strings.Replace(server.URL, "//", "//reader:hidden@", 1)+`/list"}}]}`)
	until(t, "the missing list is an issue", func() bool { return len(b.Status().Issues) == 1 })
	if text := fmt.Sprint(b.Status().Issues); strings.Contains(text, "hidden") || !strings.Contains(text, "//reader:xxxxx@") || !strings.Contains(text, "404") {
		t.Error(text)
	}
}

// TestStop answers those who wait when the source stops.
func TestStop(t *testing.T) {
	b := start(t, Options{})
	b.stop()
	if code, _ := b.ask("POST", "/farms", web("")); code != 503 {
		t.Errorf("a stopped source answers %d", code)
	}
	if err := b.Flush(context.Background()); err == nil {
		t.Error("a stopped source can be flushed")
	}
}
