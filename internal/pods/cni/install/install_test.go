package install

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func options(t *testing.T, cidrs ...string) Options {
	t.Helper()
	dir := t.TempDir()
	o := Options{Binary: filepath.Join(dir, "sluice-cni"), BinDir: filepath.Join(dir, "bin"), ConfDir: filepath.Join(dir, "net.d")}
	if err := os.WriteFile(o.Binary, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, text := range cidrs {
		o.PodCIDRs = append(o.PodCIDRs, netip.MustParsePrefix(text))
	}
	return o
}

// What the plugin would refuse of each pod is not installed.
func TestRefused(t *testing.T) {
	for says, c := range map[string]struct {
		cidrs []string
		mtu   int
	}{
		"no pod CIDRs":                             {},
		"10.244.1.0/31 is too small":               {cidrs: []string{"10.244.1.0/31"}},
		"fd00::/127 is too small":                  {cidrs: []string{"10.244.1.0/30", "fd00::/127"}},
		"10.244.0.0/16 and 10.244.1.0/24 overlap":  {cidrs: []string{"10.244.0.0/16", "10.244.1.0/24"}},
		"pod CIDR 224.0.0.0/24 has 224.0.0.0, a":   {cidrs: []string{"10.244.1.0/24", "224.0.0.0/24"}},
		"pod CIDR fe80::/64 has fe80::, a link":    {cidrs: []string{"fe80::/64"}},
		"pod CIDR 169.254.1.0/30 has 169.254.1":    {cidrs: []string{"169.254.1.0/30"}},
		"MTU 100: it is 576 to 65535":              {cidrs: []string{"10.244.1.0/24"}, mtu: 100},
		"MTU 1000: it is 1280 to 65535 with these": {cidrs: []string{"10.244.1.0/24", "fd00::/64"}, mtu: 1000},
		"MTU 70000": {cidrs: []string{"10.244.1.0/24"}, mtu: 70000},
	} {
		o := options(t, c.cidrs...)
		o.MTU = c.mtu
		if written, err := Run(o); err == nil || !strings.Contains(err.Error(), says) || len(written) > 0 {
			t.Errorf("got %v, %v, want %q", written, err, says)
		}
	}
}

// All that was installed is removed, also what a Run left that was killed, and nothing of others.
func TestRemove(t *testing.T) {
	o := options(t, "10.244.1.0/24")
	if written, err := Run(o); err != nil || len(written) != 2 {
		t.Fatal(written, err)
	}
	others := []string{filepath.Join(o.ConfDir, "10-other.conflist"), filepath.Join(o.BinDir, "other")}
	for _, path := range append(others, filepath.Join(o.ConfDir, ".sluice-1"), filepath.Join(o.BinDir, ".sluice-2")) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Remove(o); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(o.BinDir), "*", "*"))
	if hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(o.BinDir), "*", ".*")); err != nil || len(hidden) > 0 {
		t.Errorf("left: %v, %v", hidden, err)
	}
	if strings.Join(left, " ") != others[1]+" "+others[0] {
		t.Errorf("left: %v", left)
	}
}
