package image

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/netns"
)

// With or without sockets of SCTP in the kernel, what agnhost sends is SCTP to netfilter.
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
	if out, err := ns.Run("nft", "table inet n { chain c { type nat hook output priority -100; sctp dport 90 redirect to :82; }; }"); err != nil {
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
	all := []string{"127.0.0.1:82", "[::1]:82", "127.0.0.1:90", "[::1]:90"} // the last two by NAT
	for range 2 {
		for _, to := range all {
			if err := connect(to, "20s"); err != nil {
				t.Error(err)
			}
		}
		if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP); err == nil {
			_ = unix.Close(fd)
			break // with such a socket, the server ends by a client that ends in the midst
		}
		for range 5 {
			_ = connect("127.0.0.1:82", "5ms")
			_ = connect("[::1]:82", "5ms")
		}
	}
	for _, rules := range []string{"ip saddr 127.0.0.1 sctp dport 82 counter drop", "ip6 saddr ::1 sctp dport 82 counter drop"} {
		if out, err := ns.Run("nft", "table inet t { chain c { type filter hook input priority 0; "+rules+"; }; }"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	for _, to := range append(all, "127.0.0.1:83") { // nobody serves the last
		if err := connect(to, "500ms"); err == nil {
			t.Errorf("%s answers", to)
		}
	}
	if out, err := ns.Run("nft", "list", "table", "inet", "t"); err != nil || strings.Count(string(out), "counter packets") != 2 || strings.Contains(string(out), "packets 0 ") {
		t.Errorf("not all packets were SCTP to netfilter: %v\n%s", err, out)
	}
}
