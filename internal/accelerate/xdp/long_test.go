package xdp

import (
	"encoding/binary"
	"flag"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
)

var entries = flag.Int("entries", 50_000, "how many addresses TestLongList has; with a million, its goals are asked for")

// TestLongList has a list of single addresses be loaded, changed and freed, and sees how long that
// takes, how much memory it is, and how long processors have been kept from all else.
func TestLongList(t *testing.T) {
	newBench(t) // it skips the test where that cannot be
	bad := &list{then: dropped}
	for i := range *entries {
		a := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 1<<24+uint32(i)*2)))
		bad.ranges = append(bad.ranges, model.AddressRange{First: a, Last: a})
	}
	now := map[string]*list{"bad": bad}
	l := newLists()
	began, busy := time.Now(), processorTime()
	if err := l.anew(now); err != nil {
		t.Fatal(err)
	}
	loaded := time.Since(began)
	busy = processorTime() - busy
	info, err := l.members[0].Info()
	if err != nil {
		t.Fatal(err)
	}
	bytes, _ := info.Memlock()
	shorter := &list{then: dropped, ranges: bad.ranges[1:]}
	began = time.Now()
	if err := l.follow(map[string]*list{"bad": shorter}, []string{"bad"}); err != nil {
		t.Fatal(err)
	}
	changed := time.Since(began)
	if err := l.members[0].Lookup(bpfMember4{List: l.number("bad", 32), Addr: words(bad.ranges[0].First)[0]}, new(uint8)); err == nil {
		t.Error("an address that has gone is there")
	}
	stall := stalled(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
		time.Sleep(300 * time.Millisecond) // the kernel frees it in the background
	})
	t.Logf("%d addresses: loaded in %v (%v of processor time), %.1f MB, one removed in %v, freed with no processor busy for more than %v", *entries, loaded, busy, float64(bytes)/1e6, changed, stall)
	if *entries >= 1_000_000 && (busy > time.Second || bytes > 100e6 || stall > 10*time.Millisecond) {
		t.Error("a goal is missed")
	}
}

// processorTime is what this process has taken.
func processorTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// stalled returns for how long at the most a processor has not let the most urgent thread run while
// f did.
func stalled(f func()) time.Duration {
	var most atomic.Int64
	var over atomic.Bool
	var watchers sync.WaitGroup
	for cpu := range runtime.NumCPU() {
		watchers.Go(func() {
			runtime.LockOSThread() // and the thread ends with it
			var set unix.CPUSet
			set.Set(cpu)
			_ = unix.SchedSetaffinity(0, &set)
			_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 50}, 0)
			for !over.Load() {
				began := time.Now()
				_ = unix.Nanosleep(&unix.Timespec{Nsec: 500_000}, nil)
				if late := int64(time.Since(began) - 500*time.Microsecond); late > most.Load() {
					most.Store(late)
				}
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	f()
	over.Store(true)
	watchers.Wait()
	return time.Duration(most.Load())
}
