package main

import (
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/sysctl"
)

// Forwarding that another program turns off, as hardening or a restart of the network does, is
// turned on again; who goes on with it is named.
// https://github.com/rancher/rke2/issues/2021
func TestForwardingIsTurnedOnAgain(t *testing.T) {
	t.Parallel()
	node := nodeNS(t)
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, folder(t, map[string]string{"web.yaml": web}), socket, node.Do, "--set-sysctls=true")
	on := func() (is bool) {
		if err := node.Do(func() error {
			now, err := sysctl.Read(sysctl.Forward4)
			is = now == "1"
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return is
	}
	eventually(t, "forwarding", on)
	eventually(t, "the contest in status", func() bool {
		if on() {
			if err := node.Sysctl("net/ipv4/ip_forward", "0"); err != nil {
				t.Fatal(err)
			}
		}
		_, stdout, _ := sluice(t, "status", "--socket", socket)
		return strings.Contains(stdout, "Node node-a: another program goes on turning off the forwarding of packets")
	})
	eventually(t, "forwarding again", on)
}
