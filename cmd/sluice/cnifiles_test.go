package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice.dev/sluice/internal/pods/cni/install"
)

// Who removes a file again and again is in a contest; what we come to want otherwise is none.
func TestCNIFilesContested(t *testing.T) {
	dir := t.TempDir()
	o := install.Options{Binary: filepath.Join(dir, "sluice-cni"), BinDir: filepath.Join(dir, "bin"), ConfDir: filepath.Join(dir, "net.d"), PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	if err := os.WriteFile(o.Binary, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	files, now := newCNIFiles(), time.Now()
	remove := func() { _ = os.Remove(filepath.Join(o.ConfDir, "05-sluice.conflist")) }
	for i, step := range []struct {
		do   func()
		lost bool
	}{
		{do: func() {}}, // installed
		{do: func() { _ = os.WriteFile(filepath.Join(o.BinDir, "portmap"), nil, 0o755) }},
		{do: func() { o.PodCIDRs[0] = netip.MustParsePrefix("10.244.2.0/24") }},
		{do: func() { o.MTU = 1400 }},
		{do: remove},
		{do: remove, lost: true},
	} {
		step.do()
		now = now.Add(cniAudit)
		written, err := install.Run(o)
		if err != nil || len(written) == 0 {
			t.Fatalf("step %d: written %v, %v", i, written, err)
		}
		if files.wrote(&o, now); files.Lost(now) != step.lost {
			t.Errorf("step %d: contested: %v", i, !step.lost)
		}
	}
}
