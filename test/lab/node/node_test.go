package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// write writes a file with its folders.
func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o750)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A new disk shares with its base what never changes, and has copies of what does.
func TestClone(t *testing.T) {
	base := t.TempDir()
	c := Config{Disk: filepath.Join(t.TempDir(), "disk")}
	blob, db, link := "io.containerd.content.v1.content/blobs/a", "io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/snapshots/1/fs/bin"
	in := func(disk, path string) string { return filepath.Join(disk, imagesDir, path) }
	write(t, in(base, blob), "layer")
	write(t, in(base, db), "index")
	write(t, in(base, filepath.Join(filepath.Dir(link), "usr/x")), "x")
	if err := os.Symlink("usr", in(base, link)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(in(base, blob)), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := c.clone(base); err != nil {
		t.Fatal(err)
	}
	inode := func(path string) uint64 {
		var s unix.Stat_t
		if err := unix.Lstat(path, &s); err != nil {
			t.Fatal(err)
		}
		return s.Ino
	}
	if inode(in(base, blob)) != inode(in(c.Disk, blob)) {
		t.Error("a layer is a file of its own")
	}
	if inode(in(base, db)) == inode(in(c.Disk, db)) {
		t.Error("an index that is written in place is shared")
	}
	if to, err := os.Readlink(in(c.Disk, link)); err != nil || to != "usr" {
		t.Errorf("a link: %q, %v", to, err)
	}
	if info, err := os.Stat(filepath.Dir(in(c.Disk, blob))); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Errorf("a folder: %v, %v", info.Mode(), err)
	}
	write(t, in(c.Disk, db), "changed")
	if err := c.clone(base); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(in(c.Disk, db)); err != nil || string(text) != "changed" {
		t.Errorf("a disk that has images is made anew: %q, %v", text, err)
	}
}

// The disks of a lab stay for as long as somebody holds them.
func TestDisks(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	make := func() (string, func() error) {
		dir, release, err := NewDisks()
		if err != nil {
			t.Fatal(err)
		}
		long := time.Now().Add(-time.Hour)
		if err := os.Chtimes(dir, long, long); err != nil {
			t.Fatal(err)
		}
		return dir, release
	}
	held, release := make()
	defer func() { _ = release() }()
	left, release := make()
	if err := release(); err != nil {
		t.Fatal(err)
	}
	_, release = make()
	defer func() { _ = release() }()
	if _, err := os.Stat(held); err != nil {
		t.Errorf("disks that are held: %v", err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("disks that nobody holds are left")
	}
}

func TestFiles(t *testing.T) {
	c := Config{Name: "node1", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")}, ClusterDNS: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Registry: "http://10.0.0.2:5000"}
	var kubelet map[string]any
	if err := yaml.UnmarshalStrict([]byte(c.kubeletConfig()), &kubelet); err != nil || kubelet["clusterDNS"].([]any)[0] != "10.96.0.10" {
		t.Errorf("kubelet: %v, %v", kubelet, err)
	}
	if text := c.hosts(); !strings.Contains(text, "10.0.0.1 node1\n") || !strings.Contains(text, "fd00::1 node1\n") {
		t.Errorf("hosts: %s", text)
	}
	// No other registry is asked where this one lacks an image.
	if text := c.registries(); !strings.Contains(text, `server = "http://10.0.0.2:5000"`) || !strings.Contains(text, `[host."http://10.0.0.2:5000"]`) {
		t.Errorf("registries: %s", text)
	}
	path, err := (&Config{Name: "node1", Dir: filepath.Join(t.TempDir(), "node1"), Archives: []string{"a.tar"}}).Save()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil || got.Name != "node1" || got.Archives[0] != "a.tar" || !strings.HasPrefix(got.Group, groupPrefix+"node1-") {
		t.Errorf("read back: %+v, %v", got, err)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a configuration that is not there is read")
	}
	if err := Kill(t.TempDir()); err != nil {
		t.Errorf("a node that has never been is ended: %v", err)
	}
}

// The cgroup that a node had is gone with all below it, and so are those of nodes that were killed.
func TestGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	g := group(newGroup("test"))
	if err := g.make(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.remove(); err != nil {
			t.Error(err)
		}
	})
	all, err := hierarchies()
	if err != nil {
		t.Fatal(err)
	}
	in := func() (n int) {
		for _, h := range all {
			if _, err := os.Stat(filepath.Join(g.path(h), "pods", "a")); err == nil {
				n++
			}
		}
		return n
	}
	for _, h := range all {
		if err := os.MkdirAll(filepath.Join(g.path(h), "pods", "a"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sweep(all) // it is young: a node may be about to start in it
	if n := in(); n != len(all) {
		t.Errorf("a group that was just made is in %d of %d hierarchies", n, len(all))
	}
	err = g.within(func() error {
		for _, h := range all {
			if idle(g.path(h)) {
				t.Errorf("%s is idle with this process in it", g.path(h))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.remove(); err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		if _, err := os.Stat(g.path(h)); err == nil {
			t.Errorf("%s is left", g.path(h))
		}
	}
}
