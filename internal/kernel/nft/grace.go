package nft

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// AwaitPackets returns once all packets that were in a chain when it was called have left it.
// Netfilter runs in read-side critical sections of read-copy-update (RCU), and a global memory
// barrier (membarrier(2)) waits for a grace period and does nothing else. Kernels with processors
// that are never interrupted (nohz_full=) lack it, and with a single processor it does nothing:
// there a sleep stands in for it.
func AwaitPackets() {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno != 0 || runtime.NumCPU() == 1 {
		time.Sleep(graceWithout)
	}
}

const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL of linux/membarrier.h

// graceWithout is longer than any packet is on its way between two hooks.
const graceWithout = 20 * time.Millisecond
