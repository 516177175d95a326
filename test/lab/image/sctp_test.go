package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"sluice.dev/sluice/test/netns"
)

// Where the kernel has no sockets of SCTP, what agnhost sends in their place is SCTP to netfilter.
func TestSCTP(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make namespaces")
	}
	bin, err := Programs(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	agnhost := filepath.Join(bin, "agnhost")
	ns, err := netns.New(fmt.Sprintf("sctp-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Delete(); err != nil {
			t.Error(err)
		}
	})
	if out, err := ns.Run("nft", "table ip t { chain c { type nat hook output priority -100; sctp dport 90 dnat to 127.0.0.1:82; }; }"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	server := exec.CommandContext(t.Context(), agnhost, "netexec", "--http-port", "80", "--udp-port", "81", "--sctp-port", "82")
	if err := ns.Start(server); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Wait() }) // it was killed
	connect := func(to, timeout string) error {
		out, err := ns.Run(agnhost, "connect", "--protocol", "sctp", "--timeout", timeout, to)
		if err != nil {
			return fmt.Errorf("%s: %w: %s", to, err, out)
		}
		return nil
	}
	for end := time.Now().Add(30 * time.Second); ; {
		if err := connect("127.0.0.1:82", "1s"); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	for _, to := range []string{"[::1]:82", "127.0.0.1:90"} { // the second by NAT
		if err := connect(to, "10s"); err != nil {
			t.Error(err)
		}
	}
	if out, err := ns.Run("nft", "table inet t { chain c { type filter hook input priority 0; sctp dport 82 drop; }; }"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, to := range []string{"127.0.0.1:82", "[::1]:82", "127.0.0.1:90", "127.0.0.1:83"} { // nobody serves the last
		if err := connect(to, "300ms"); err == nil {
			t.Errorf("%s answers", to)
		}
	}
}
