package nft

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// AwaitPackets returns once each packet that a rule of ours was looking at has passed: netfilter
// looks at packets in sections that read-copy-update (RCU) waits for, and a global memory barrier
// is the system call that does nothing else (membarrier(2)). Kernels with processors that are never
// interrupted (nohz_full=) do not have it, and with a single processor it does nothing; there a
// while stands for it.
func AwaitPackets() {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno != 0 || runtime.NumCPU() == 1 {
		time.Sleep(graceWithout)
	}
}

const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL of linux/membarrier.h

// graceWithout is longer than any packet is on its way between two hooks.
const graceWithout = 20 * time.Millisecond
