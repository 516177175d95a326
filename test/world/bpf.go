package world

import (
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/bpf"
)

// MountBPF mounts the BPF file system where it belongs, unless it is there.
func MountBPF(t testing.TB) {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(bpf.Root, &fs); err == nil && fs.Type == unix.BPF_FS_MAGIC {
		return
	}
	if err := unix.Mount("bpf", bpf.Root, "bpf", 0, ""); err != nil {
		t.Fatalf("mount the BPF file system: %v", err)
	}
}
