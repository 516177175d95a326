package cni

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"golang.org/x/sys/unix"
)

// ledger is the store of host-local: a folder with a file for each address that is given, which
// names the container. One process has it open at a time, so nothing else changes it meanwhile.
type ledger struct {
	*disk.Store
	dir   string
	given map[netip.Addr]types.GCAttachment
	// taken says who else has an address, which the store does not know of; "" if nobody has.
	taken func(netip.Addr) string
	// foreign are the addresses of entries that cannot be read, as a folder: nobody gets them, and
	// all others are given and taken back.
	foreign map[netip.Addr]bool
}

// openLedger opens the store of a network in a folder; "" is that of host-local. It waits until
// nobody else has it open.
func openLedger(network, folder string, taken func(netip.Addr) string) (*ledger, error) {
	l := &ledger{dir: filepath.Join(cmp.Or(folder, "/var/lib/cni/networks"), network), given: map[netip.Addr]types.GCAttachment{}, foreign: map[netip.Addr]bool{}}
	l.taken = func(a netip.Addr) string {
		if l.foreign[a] {
			return filepath.Join(l.dir, a.String()) + ", which is no file of the store,"
		}
		return taken(a)
	}
	var err error
	if l.Store, err = disk.New(network, folder); err != nil {
		return nil, l.fault("open", err)
	}
	if err := l.Store.Lock(); err != nil {
		return nil, errors.Join(l.fault("lock", err), l.Close())
	}
	err = l.read()
	if err == nil {
		err = l.boot()
	}
	if err != nil {
		return nil, errors.Join(l.fault("read", err), l.Close())
	}
	return l, nil
}

// read fills given. A file without an owner is of a plugin that ended while it wrote, or of a
// machine that lost power: whoever else writes holds the lock.
func (l *ledger) read() error {
	files, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		a, err := netip.ParseAddr(file.Name())
		if err != nil {
			continue
		}
		var text []byte
		readable := file.Type().IsRegular() // a FIFO would have it wait
		if readable {
			text, err = os.ReadFile(filepath.Join(l.dir, file.Name()))
			readable = err == nil
		}
		if !readable {
			l.foreign[a] = true
			continue
		}
		container, ifname, _ := strings.Cut(strings.Trim(string(text), "\x00 \r\n"), disk.LineBreak)
		if container == "" {
			if err := l.remove(a); err != nil {
				return err
			}
			continue
		}
		l.given[a] = types.GCAttachment{ContainerID: container, IfName: ifname}
	}
	return nil
}

// boot takes back what was given before the machine booted: no container outlives that, and not all
// runtimes call DEL for those that ended with it. What is younger is of this boot, whoever wrote
// it. Where the store does not say of which boot it is, as that of the reference plugin, all is of
// this one; what a loss of power left of the mark is of another.
func (l *ledger) boot() error {
	mark := filepath.Join(l.dir, "boot_id")
	then, missing := os.ReadFile(mark)
	now, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || bytes.Equal(then, now) {
		return nil
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return err
	}
	booted := time.Now().Add(-time.Duration(up.Nano()) - time.Minute) // or up to that before: clocks are set
	for a := range l.given {
		info, err := os.Stat(filepath.Join(l.dir, a.String()))
		if missing != nil || err != nil || !info.ModTime().Before(booted) {
			continue
		}
		if err := l.remove(a); err != nil {
			return err
		}
	}
	_ = os.WriteFile(mark, now, 0o600) // without it the next one does the same
	return nil
}

// of lists the addresses that a container has. Old versions of host-local wrote no interface.
func (l *ledger) of(container, ifname string) (addrs []netip.Addr) {
	for a, o := range l.given {
		if o.ContainerID == container && (o.IfName == ifname || o.IfName == "") {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// remove takes an address back.
func (l *ledger) remove(a netip.Addr) error {
	delete(l.given, a)
	if err := os.Remove(filepath.Join(l.dir, a.String())); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// free reports whether a set of ranges has an address that nobody has. elsewhere counts those that
// it passed over, which the store does not know of.
func (l *ledger) free(set allocator.RangeSet) (found bool, elsewhere int) {
	for _, r := range set {
		last := addrOf(r.RangeEnd)
		for a := addrOf(r.RangeStart); a.Compare(last) <= 0; a = a.Next() {
			if _, given := l.given[a]; given || a == addrOf(r.Gateway) {
				continue
			}
			if l.taken(a) == "" {
				return true, elsewhere
			}
			elsewhere++
		}
	}
	return false, elsewhere
}

// Reserve gives an address, unless somebody else has it. The allocator calls it.
func (l *ledger) Reserve(container, ifname string, ip net.IP, rangeID string) (bool, error) {
	if l.taken(addrOf(ip)) != "" {
		return false, nil
	}
	reserved, err := l.Store.Reserve(container, ifname, ip, rangeID)
	if failed, ok := errors.AsType[*fs.PathError](err); ok && failed.Path != filepath.Join(l.dir, ip.String()) {
		return true, nil // only where the next search begins could not be written down
	}
	return reserved, err
}

// Lock does nothing: the ledger is locked while it is open. The allocator calls it.
func (l *ledger) Lock() error { return nil }

// Unlock does nothing, as Lock.
func (l *ledger) Unlock() error { return nil }

// GetByID knows of nothing: whether a container has an address is seen before the allocator asks.
func (l *ledger) GetByID(string, string) []net.IP { return nil }

// fault is the error of a store that cannot be used.
func (l *ledger) fault(what string, err error) error {
	return fault(types.ErrIOFailure, what+" the store of addresses in "+l.dir+": see that the disk has room and may be written to, or name another folder as ipam.dataDir", err)
}
