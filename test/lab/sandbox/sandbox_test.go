package sandbox

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func confFile(t *testing.T, plugins string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pods.conflist")
	if err := os.WriteFile(file, []byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [`+plugins+`]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// The addresses that a user's plugins give out are noted in the lab, unless the file says where.
func TestStoreOfItsOwn(t *testing.T) {
	n, err := Open(Config{Dir: "/lab/node1", File: confFile(t, `{"type": "ptp", "mtu": 1400, "ipam": {"type": "host-local", "routes": []}},
		{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "/mine"}}, {"type": "vlan", "ipam": {"type": "dhcp"}}, {"type": "portmap"}`)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range n.list.Plugins {
		var conf struct {
			MTU  int
			IPAM struct{ Type, DataDir string }
		}
		if err := json.Unmarshal(p.Bytes, &conf); err != nil {
			t.Fatal(err)
		}
		got = append(got, conf.IPAM.DataDir)
		if p.Network.Type == "ptp" && conf.MTU != 1400 {
			t.Errorf("the rest is lost: %s", p.Bytes)
		}
	}
	if want := []string{"/lab/node1/addresses", "/mine", "", ""}; !slices.Equal(got, want) {
		t.Errorf("stores: %q, want %q", got, want)
	}
}

// What no pod could be attached with is said before there is a lab, and once.
func TestCheck(t *testing.T) {
	for says, file := range map[string]string{
		"no such file":               "/no/such/file",
		`failed to find plugin "no"`: confFile(t, `{"type": "no"}`),
		"invalid character":          confFile(t, `nothing`),
		"missing 'type'":             confFile(t, `{}`),
		"no plugins in list":         confFile(t, ``),
		"cannot unmarshal number":    confFile(t, `{"type": 1}`),
	} {
		if err := Check(t.Context(), Config{File: file, Dir: t.TempDir(), Path: []string{t.TempDir()}}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// A node's host-local gives addresses of the node's pod CIDRs, unless the file says of which.
func TestConfiguration(t *testing.T) {
	file := confFile(t, `{"type": "ptp", "mtu": 1400, "ipam": {"type": "host-local"}}, {"type": "bridge", "ipam": {"type": "host-local", "subnet": "192.0.2.0/24"}}, {"type": "portmap"}`)
	text, plugins, err := Configuration(file, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00::/64")})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"cniVersion":"1.0.0","name":"pods","plugins":[{"ipam":{"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]],"type":"host-local"},"mtu":1400,"type":"ptp"},` +
		`{"ipam":{"subnet":"192.0.2.0/24","type":"host-local"},"type":"bridge"},{"type":"portmap"}]}`
	if string(text) != want {
		t.Errorf("the configuration is %s", text)
	}
	if want := []string{"ptp", "host-local", "bridge", "host-local", "portmap"}; !slices.Equal(plugins, want) {
		t.Errorf("plugins: %q, want %q", plugins, want)
	}
	if _, _, err := Configuration("/no/such/file", nil); err == nil {
		t.Error("a file that is not there is read")
	}
}
