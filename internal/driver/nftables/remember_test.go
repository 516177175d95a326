package nftables

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// A new table begins with what another program remembers of clients, as far as it is right; one
// that is there does not ask.
func TestRememberOthers(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	one, two := netip.MustParseAddrPort("10.244.1.2:8080"), netip.MustParseAddrPort("10.244.2.2:8080")
	service := model.Name{Namespace: "a", Name: "web"}
	client := netip.MustParseAddr("192.0.2.7")
	s := state.New()
	backends := []netip.AddrPort{one, two}
	for port, sticky := range map[uint16]time.Duration{80: 3 * time.Hour, 81: 0} {
		s.Services.Frontends[state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.TCP, Port: port}] = &state.Frontend{
			Service: service, Port: "http", Backends: backends, Alive: backends, Serving: backends, Affinity: sticky}
	}
	asked := 0
	d := openIn(t, ns, Options{Options: driver.Options{Remembered: func(context.Context) ([]state.Remembered, error) {
		asked++
		right := state.Remembered{Service: service, Port: "http", Protocol: model.TCP, Client: client, Backend: two, Left: time.Hour}
		gone, other, unknown, twice := right, right, right, right
		gone.Client, gone.Backend = client.Next(), netip.MustParseAddrPort("10.244.3.2:8080")
		other.Client, other.Service.Name = client.Next(), "other"
		unknown.Client, unknown.Service, unknown.Left = client.Prev(), model.Name{}, 0
		twice.Backend = one
		return []state.Remembered{right, gone, other, unknown, twice}, nil
	}}})
	for range 2 {
		plan, err := d.Adopt(t.Context(), s, driver.Keep{})
		if err != nil {
			t.Fatal(err)
		}
		if err := plan.Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times, want once", asked)
	}
	out, err := ns.Run("nft", "list", "map", "inet", ruleset.TableName, "ip-affinity")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := strings.Join(strings.Fields(string(out)), " ")
	for _, want := range []string{"192.0.2.7 . 10.96.0.1 . tcp . 80 timeout 3h expires 59m", "192.0.2.6 . 10.96.0.1 . tcp . 80 timeout 3h expires 2h59m"} {
		if !strings.Contains(text, want) || !strings.Contains(text, ": 10.244.2.2 . 8080") {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(text, "192.0.2.8") || strings.Contains(text, ". 81") || strings.Contains(text, ": 10.244.1.2") {
		t.Errorf("what is not right is remembered:\n%s", out)
	}
}

// Frontends are listed by a driver that has adopted nothing.
func TestFrontendsOfAnother(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	d := openIn(t, ns, Options{Shared: true})
	if found, err := d.Frontends(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("without a table: %v, %v", found, err)
	}
	to := []netip.AddrPort{netip.MustParseAddrPort("[fd00::2]:8080")}
	served := state.FrontendKey{Addr: netip.MustParseAddr("fd00::1"), Protocol: model.UDP, Port: 53}
	refused := state.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: model.TCP, Port: 80}
	s := state.New()
	s.Services.Frontends[served] = &state.Frontend{Backends: to, Alive: to, Serving: to}
	s.Services.Frontends[refused] = &state.Frontend{Reject: true}
	plan, err := d.Adopt(t.Context(), s, driver.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err := openIn(t, ns, Options{Shared: true}).Frontends(t.Context())
	if err != nil || len(found) != 2 || !found[served] || found[refused] {
		t.Errorf("%v, %v", found, err)
	}
}

// Packets enter a new table with its second transaction, when all that they look up is there.
func TestNewTableIsWholeBeforePacketsEnter(t *testing.T) {
	t.Parallel()
	d := openIn(t, testNS(t), Options{Options: driver.Options{Policy: true}})
	d.CanOwn()       // which is tried once in a process, by a transaction of its own
	var hooked []int // chains with a hook in each transaction
	d.Sock.Refuse = func(messages [][]byte, _ []string) error {
		hooked = append(hooked, 0)
		nft.EachMessage(slices.Concat(messages...), func(typ uint16, _ uint32, body []byte) {
			if typ == unix.NFT_MSG_NEWCHAIN && attr.Find(body, unix.NFTA_CHAIN_HOOK) != nil {
				hooked[len(hooked)-1]++
			}
		})
		return nil
	}
	want := state.New()
	want.Policy = state.NewPolicy()
	adopt(t, d, want)
	if len(hooked) != 2 || hooked[0] != 0 || hooked[1] < 4 {
		t.Errorf("chains with a hook in the two transactions: %v", hooked)
	}
}
