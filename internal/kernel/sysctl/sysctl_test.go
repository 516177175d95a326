package sysctl_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/test/netns"
	"sluice.dev/sluice/test/world"
)

const (
	forward = sysctl.Forward4
)

// inNamespace runs f in a fresh network namespace, whose parameters have the kernel's defaults.
func inNamespace(t *testing.T, f func(h *world.Host)) {
	t.Helper()
	h := world.NewHost(t, "sysctl")
	h.In(func() error { f(h); return nil })
}

func want(t *testing.T, key, value string) {
	t.Helper()
	got, err := sysctl.Read(key)
	if err != nil {
		t.Error(err)
	} else if got != value {
		t.Errorf("%s is %s, want %s", key, got, value)
	}
}

func put(t *testing.T, key, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(key, ".", "/"), []byte(value), 0); err != nil {
		t.Error(err)
	}
}

func same(t *testing.T, what string, got []sysctl.Override, err error, want ...sysctl.Override) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestSetAndRestore(t *testing.T) {
	inNamespace(t, func(*world.Host) {
		record := filepath.Join(t.TempDir(), "run", "sysctls.json")
		both := map[string]string{forward: "1", sysctl.Forward6: "1"}
		four := sysctl.Override{Key: forward, Was: "0", Now: "1"}
		six := sysctl.Override{Key: sysctl.Forward6, Was: "0", Now: "1"}

		got, err := sysctl.Set(record, both)
		same(t, "first Set", got, err, four, six)
		want(t, forward, "1")
		want(t, sysctl.Forward6, "1")

		got, err = sysctl.Set(record, both)
		same(t, "second Set", got, err)
		got, err = sysctl.List(record)
		same(t, "List", got, err, four, six)

		got, err = sysctl.Restore(record)
		same(t, "Restore", got, err, sysctl.Override{Key: forward, Was: "1", Now: "0"}, sysctl.Override{Key: sysctl.Forward6, Was: "1", Now: "0"})
		want(t, forward, "0")
		want(t, sysctl.Forward6, "0")
		if left := files(t, record); len(left) > 0 {
			t.Errorf("the record is still there: %v", left)
		}
		got, err = sysctl.Restore(record)
		same(t, "Restore without a record", got, err)
	})
}

func TestTheFirstFormerValueIsKept(t *testing.T) {
	inNamespace(t, func(*world.Host) {
		record := filepath.Join(t.TempDir(), "sysctls.json")
		const ttl = "net.ipv4.ip_default_ttl"
		for i, value := range []string{"70", "80"} {
			if _, err := sysctl.Set(record, map[string]string{ttl: value}); err != nil {
				t.Errorf("Set %d: %v", i, err)
			}
		}
		got, err := sysctl.List(record)
		same(t, "List", got, err, sysctl.Override{Key: ttl, Was: "64", Now: "80"})
		if _, err := sysctl.Restore(record); err != nil {
			t.Error(err)
		}
		want(t, ttl, "64")
	})
}

func TestRestoreLeavesOthersChangesAlone(t *testing.T) {
	inNamespace(t, func(*world.Host) {
		record := filepath.Join(t.TempDir(), "sysctls.json")
		const ttl = "net.ipv4.ip_default_ttl"
		if _, err := sysctl.Set(record, map[string]string{ttl: "70"}); err != nil {
			t.Error(err)
		}
		put(t, ttl, "99")
		got, err := sysctl.Restore(record)
		same(t, "Restore", got, err)
		want(t, ttl, "99")
	})
}

func TestWhatIsRightAlreadyIsNotNoted(t *testing.T) {
	inNamespace(t, func(*world.Host) {
		record := filepath.Join(t.TempDir(), "sysctls.json")
		put(t, forward, "1")
		got, err := sysctl.Set(record, map[string]string{forward: "1"})
		same(t, "Set", got, err)
		if left := files(t, record); len(left) > 0 {
			t.Errorf("a record of nothing was written: %v", left)
		}
	})
}

func TestOneFailureLeavesTheRest(t *testing.T) {
	inNamespace(t, func(*world.Host) {
		record := filepath.Join(t.TempDir(), "sysctls.json")
		got, err := sysctl.Set(record, map[string]string{"net.ipv4.no_such_thing": "1", forward: "1"})
		if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "net.ipv4.no_such_thing") {
			t.Errorf("the missing parameter is not named: %v", err)
		}
		same(t, "Set", got, nil, sysctl.Override{Key: forward, Was: "0", Now: "1"})
		want(t, forward, "1")
	})
}

// Agents of two namespaces that have the same run directory each have their own record, and so do
// commands in both. An earlier release had one file for all.
func TestEachNamespaceHasItsRecord(t *testing.T) {
	for name, former := range map[string]bool{"own files": false, "a file of an earlier release": true} {
		t.Run(name, func(t *testing.T) {
			record := filepath.Join(t.TempDir(), "sysctls.json")
			one, other := world.NewHost(t, "one"), world.NewHost(t, "other")
			in := func(h *world.Host, f func()) { h.In(func() error { f(); return nil }) }
			four := sysctl.Override{Key: forward, Was: "0", Now: "1"}
			in(one, func() {
				_, err := sysctl.Set(record, map[string]string{forward: "1"})
				if err == nil && former {
					err = os.Rename(files(t, record)[0], record)
				}
				if err != nil {
					t.Error(err)
				}
			})
			in(other, func() {
				put(t, forward, "1") // by its own owner, who wants to keep it
				got, err := sysctl.List(record)
				same(t, "List", got, err)
				got, err = sysctl.Restore(record)
				same(t, "Restore", got, err)
				want(t, forward, "1")
				got, err = sysctl.Set(record, map[string]string{"net.ipv4.ip_default_ttl": "70"})
				same(t, "Set", got, err, sysctl.Override{Key: "net.ipv4.ip_default_ttl", Was: "64", Now: "70"})
			})
			in(one, func() {
				got, err := sysctl.List(record)
				same(t, "List", got, err, four)
				got, err = sysctl.Set(record, map[string]string{sysctl.Forward6: "1"})
				same(t, "Set", got, err, sysctl.Override{Key: sysctl.Forward6, Was: "0", Now: "1"})
				if _, err := sysctl.Restore(record); err != nil {
					t.Error(err)
				}
				want(t, forward, "0")
				want(t, sysctl.Forward6, "0")
				got, err = sysctl.List(record)
				same(t, "List of what was restored", got, err)
			})
			in(other, func() {
				if _, err := sysctl.Restore(record); err != nil {
					t.Error(err)
				}
				want(t, "net.ipv4.ip_default_ttl", "64")
				want(t, forward, "1")
			})
			if left := files(t, record); len(left) > 0 {
				t.Errorf("files are left: %v", left)
			}
		})
	}
}

// files are those of the record, whichever namespace's.
func files(t *testing.T, record string) []string {
	t.Helper()
	all, err := filepath.Glob(record + "*")
	if err != nil {
		t.Error(err)
	}
	return all
}

// The kernel gives the inode of a network namespace that is gone to one of the next, which has
// nothing to do with the record, but takes its place.
func TestRecordOfANamespaceThatIsGoneIsPassedOver(t *testing.T) {
	record := filepath.Join(t.TempDir(), "sysctls.json")
	inNamespace(t, func(*world.Host) {
		if _, err := sysctl.Set(record, map[string]string{forward: "1"}); err != nil {
			t.Error(err)
		}
		gone, name := files(t, record)[0], inode(t)
		t.Run("next", func(t *testing.T) {
			inNamespace(t, func(*world.Host) { // as if this one had been given the same inode
				b, err := os.ReadFile(gone)
				if err != nil {
					t.Error(err)
				}
				number := func(name string) string { return strings.Trim(name, "net:[]") }
				own := strings.Replace(gone, number(name), number(inode(t)), 1)
				if err := os.WriteFile(own, []byte(strings.ReplaceAll(string(b), name, inode(t))), 0o600); err != nil {
					t.Error(err)
				}
				put(t, forward, "1") // by its own owner, who wants to keep it
				got, err := sysctl.List(record)
				same(t, "List", got, err)
				got, err = sysctl.Restore(record)
				same(t, "Restore", got, err)
				want(t, forward, "1")
				before := len(files(t, record))
				if _, err := sysctl.Set(record, map[string]string{"net.ipv4.ip_default_ttl": "70"}); err != nil {
					t.Error(err)
				}
				got, err = sysctl.List(record)
				same(t, "List", got, err, sysctl.Override{Key: "net.ipv4.ip_default_ttl", Was: "64", Now: "70"})
				if now := files(t, record); len(now) != before {
					t.Errorf("there are more files: %v", now)
				}
			})
		})
	})
}

// inode names the calling thread's network namespace as /proc does.
func inode(t *testing.T) string {
	t.Helper()
	ns, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Error(err)
	}
	return ns
}

func TestBrokenRecordIsAnError(t *testing.T) {
	record := filepath.Join(t.TempDir(), "sysctls.json")
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sysctl.List(record); err == nil || !strings.Contains(err.Error(), record) {
		t.Errorf("List of a broken record: %v", err)
	}
}

func TestNeeded(t *testing.T) {
	inNamespace(t, func(h *world.Host) {
		check := func(what string, ipv4, ipv6 bool, keys int, advice string) {
			t.Helper()
			got, err := sysctl.Needed(ipv4, ipv6)
			if len(got) != keys {
				t.Errorf("%s: %v, want %d parameters", what, got, keys)
			}
			if (err == nil) != (advice == "") || err != nil && !strings.Contains(err.Error(), advice) {
				t.Errorf("%s: error %v, want %q", what, err, advice)
			}
		}
		check("IPv4 only", true, false, 1, "")
		check("both, no routes", true, true, 2, "")

		if err := netns.Veth(h.NS, "up.0", h.NS, "peer"); err != nil {
			t.Error(err)
			return
		}
		link, err := h.LinkByName("up.0")
		if err != nil {
			t.Error(err)
			return
		}
		_, all, _ := net.ParseCIDR("::/0")
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Gw: net.ParseIP("fe80::1"), Protocol: unix.RTPROT_RA}
		if err := h.RouteAdd(route); err != nil {
			t.Error(err)
		}
		check("learnt default route", true, true, 1, "net.ipv6.conf.up/0.accept_ra=2")
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/up.0/accept_ra", []byte("2"), 0); err != nil {
			t.Error(err)
		}
		check("learnt default route that is kept", true, true, 2, "")
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/up.0/accept_ra", []byte("1"), 0); err != nil {
			t.Error(err)
		}
		put(t, sysctl.Forward6, "1")
		check("forwarding is on already", true, true, 2, "")
	})
}

// Where the record has no room, as on a full disk, parameters are set all the same, and an error
// says that they will not be restored.
func TestFullDisk(t *testing.T) {
	inNamespace(t, func(*world.Host) {
		for name, record := range map[string]string{
			"no block": filepath.Join(fullFS(t, "size", "4k"), "sysctls.json"),
			"no inode": filepath.Join(fullFS(t, "nr_inodes", "2"), "run", "sysctls.json"),
		} {
			put(t, forward, "0")
			got, err := sysctl.Set(record, map[string]string{forward: "1"})
			if !errors.Is(err, sysctl.ErrNotNoted) || !errors.Is(err, unix.ENOSPC) || len(got) != 1 {
				t.Errorf("%s: Set returns %v, %v", name, got, err)
			}
			want(t, forward, "1")
			if left, err := filepath.Glob(record + "*"); err != nil || len(left) > 0 {
				t.Errorf("%s: Set leaves %v, %v", name, left, err)
			}
			if got, err := sysctl.Restore(record); err != nil || len(got) > 0 {
				t.Errorf("%s: Restore returns %v, %v", name, got, err)
			}
		}
	})
}

// fullFS is a folder in a filesystem of its own, whose limit one file uses up. Nothing of it is
// left when the test ends.
func fullFS(t *testing.T, limit, value string) string {
	t.Helper()
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := errors.Join(unix.FsconfigSetString(fs, limit, value), unix.FsconfigCreate(fs)); err != nil {
		t.Fatal(err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(mount) })
	path := fmt.Sprintf("/proc/self/fd/%d", mount)
	if err := os.WriteFile(path+"/full", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
