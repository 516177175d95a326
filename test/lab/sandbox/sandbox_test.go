package sandbox

import (
	"encoding/json"
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
