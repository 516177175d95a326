package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/cli"
	fabric "sluice.dev/sluice/internal/fabric/kernel"
	spaces "sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/test/netns"
)

func TestNodeKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "wireguard.key")
	key, err := nodeKey(path)
	if err != nil {
		t.Fatal(err)
	}
	own, err := spaces.Own(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(own, 0o644); err != nil { // somebody is careless
		t.Fatal(err)
	}
	again, err := nodeKey(path)
	if err != nil || again != key || key == [32]byte{} {
		t.Errorf("%v, another key: %v", err, again != key)
	}
	if fi, err := os.Stat(own); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + "/*"); len(left) != 1 {
		t.Errorf("files: %q", left)
	}
	text, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	former, _, _ := strings.Cut(string(text), "\n") // as earlier releases had it for all namespaces
	if err := errors.Join(os.Remove(own), os.WriteFile(path, []byte(former+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if planned, err := readKey(path); err != nil || planned != key {
		t.Errorf("%v, another key is planned than an earlier release has left: %v", err, planned != key)
	}
	if again, err := nodeKey(path); err != nil || again != key {
		t.Errorf("%v, another key than an earlier release has left: %v", err, again != key)
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + "/*"); !slices.Equal(left, []string{own}) {
		t.Errorf("files: %q", left)
	}
	if err := os.WriteFile(own, []byte(former+"\nof another namespace, which had the inode\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := nodeKey(path); err != nil || again == key {
		t.Errorf("%v, the key of a namespace that is gone: %v", err, again == key)
	}
	if err := os.WriteFile(own, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := nodeKey(path); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("of a file without a key: %v", err)
	}
	if _, err := nodeKey(filepath.Join(own, "below")); err == nil {
		t.Error("a key was written below a file")
	}
}

// A disk that is full leaves no half of a key, which the next start would have to refuse.
func TestNodeKeyOnFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	full := filepath.Join(dir, "full")
	if err := os.WriteFile(full, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "wireguard.key")
	if _, err := nodeKey(path); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("on a full disk: %v", err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("files: %q", left)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	if _, err := nodeKey(path); err != nil {
		t.Errorf("once there is room: %v", err)
	}
}

const encryptedNodes = `
apiVersion: v1
kind: Node
metadata: {name: node-a, annotations: {projectcalico.org/WireguardPublicKey: %q}}
spec: {podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-b, annotations: {projectcalico.org/WireguardPublicKey: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAGM=}}
spec: {podCIDRs: [10.244.2.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}
`

// Once the own Node says the node's key, packets to the other's pods are encrypted. The test runs
// in the guest; a kernel without WireGuard is named.
func TestEncrypt(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	dir := folder(t, map[string]string{"nodes.yaml": fmt.Sprintf(encryptedNodes, "")})
	socket := filepath.Join(t.TempDir(), "s.sock")
	if fabric.WireGuard.Met(t.Context()) != nil {
		err := ns.Do(func() error {
			if code, _, errs := sluice(t, "run", "--manifests", dir, "--node", "node-a", "--socket", socket, "--metrics-address", "", "--healthz-address", "", "--fabric", "native", "--encrypt"); code == cli.ExitOK || !strings.Contains(errs, "--encrypt: WireGuard: not supported by this kernel") {
				return fmt.Errorf("status %d: %s", code, errs)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return
	}
	ip := func(args string) string {
		t.Helper()
		out, err := ns.Run("ip", strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if err := netns.Veth(ns, "eth0", ns, "far"); err != nil {
		t.Fatal(err)
	}
	ip("addr add 192.0.2.1/24 dev eth0")
	route := func(want string) {
		t.Helper()
		eventually(t, "the route "+want, func() bool {
			out, _ := ns.Run("ip", "route", "show", "10.244.2.0/24")
			return strings.Contains(string(out), want)
		})
	}
	stop := startAgent(t, dir, socket, ns.Do, "--fabric", "native", "--encrypt")
	route("via 192.0.2.2 dev eth0")
	if out := ip("link show sluice.wg"); !strings.Contains(out, "mtu 1440") {
		t.Error(out)
	}
	var key [32]byte
	err := ns.Do(func() (err error) { key, err = nodeKey(keyPath(socket)); return err })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nodes.yaml"), fmt.Appendf(nil, encryptedNodes, fabric.PublicKey(key)), 0o600); err != nil {
		t.Fatal(err)
	}
	route("dev sluice.wg")
	stop()
	route("dev sluice.wg")
	stop = startAgent(t, dir, socket, ns.Do, "--fabric", "native") // and turned off
	route("via 192.0.2.2 dev eth0")
	stop()
	err = ns.Do(func() error {
		if code, out, _ := sluice(t, "cleanup", "--socket", socket); code != cli.ExitOK {
			return fmt.Errorf("cleanup: %s", out)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(keyPath(socket) + "*"); len(left) > 0 {
		t.Errorf("cleanup left %q", left)
	}
}
