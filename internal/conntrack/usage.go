package conntrack

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Count is the number of entries in the table of the Conn's namespace. It is safe for concurrent
// use.
func (c *Conn) Count() (int, error) { return c.read("/proc/sys/net/netfilter/nf_conntrack_count") }

// read reads a number from /proc/sys/net, which shows the namespace of the thread that reads.
// (Asking ctnetlink instead would not do: its answer claims to be one of several, whose end never
// comes.)
func (c *Conn) read(file string) (n int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var inside bool
		if inside, err = c.inside(); err == nil && !inside {
			err = unix.Setns(int(c.ns.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			return
		}
		var b []byte
		if b, err = os.ReadFile(file); err == nil {
			n, err = strconv.Atoi(string(bytes.TrimSpace(b)))
		}
		if inside {
			runtime.UnlockOSThread() // any other thread ends with the goroutine
		}
	}()
	<-done
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", file, err)
	}
	return n, nil
}
