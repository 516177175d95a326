package iptables

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/xtables"
)

// trace is what tells at little cost whether rules of ours may be gone: for both families and the
// tables filter, nat, and raw where there is policy.
type trace [2][3]count

// count counts rules of a table. In the variant legacy these are all, and their bytes; in the
// other they are those of ours that others lead to, and how many lead there.
type count struct{ rules, size uint32 }

// doubtInterval is the time between two adoptions for which a change of others may be the reason.
const doubtInterval = 10 * time.Second

// Tampered implements driver.Driver. It sees that rules are gone or added, and not what became of
// elements of sets, or of rules that were replaced.
func (d *Driver) Tampered(ctx context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.adopted == (parts{}) || time.Since(d.compared) < doubtInterval {
		return false, nil
	}
	err := d.look(ctx)
	return d.doubt, err
}

const cannotLook = "cannot look for changes of iptables by others"

// look notes whether the trace is another one than after the last change.
func (d *Driver) look(ctx context.Context) error {
	now, err := d.trace(ctx)
	d.doubt = d.doubt || err == nil && now != d.seen
	if err == nil && d.adopted.policy {
		err = d.lookAtDevices()
	}
	return err
}

// lookAtDevices notes whether an interface has another name than in our rules, or came to have one.
func (d *Driver) lookAtDevices() error {
	before := d.judges[0].names
	if err := d.nameDevices(); err != nil {
		return err
	}
	names := d.judges[0].names
	for _, devices := range []map[int]struct{}{d.state.Policy.PodDevices, d.state.Policy.HostDevices} {
		for index := range devices {
			d.doubt = d.doubt || names[index] != before[index]
		}
	}
	return nil
}

// trace reads the trace.
func (d *Driver) trace(ctx context.Context) (t trace, err error) {
	if err := ctx.Err(); err != nil {
		return t, err
	}
	read := countLegacy
	if d.chosen == xtables.NFTables {
		read = countOurs
	}
	err = d.ns.Do(func() error {
		var errs []error
		for i, f := range d.families {
			for j, table := range []string{"filter", "nat", "raw"} {
				if table == "raw" && !d.policy { // to ask for a table of the variant legacy makes it
					continue
				}
				var err error
				t[i][j], err = read(f, table)
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	return t, err
}

// getInfo is IPT_SO_GET_INFO and IP6T_SO_GET_INFO of the kernel, and tableInfo what it fills.
const getInfo = 64

type tableInfo struct {
	name                 [32]byte
	hooks                uint32
	entries, underflows  [5]uint32
	rules, bytes, unused uint32
}

// countLegacy asks how large a table of the variant legacy is.
func countLegacy(f family, table string) (c count, err error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if f.v6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return c, err
	}
	defer unix.Close(fd)
	var info tableInfo
	copy(info.name[:], table)
	size := uint32(unsafe.Offsetof(info.unused))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), getInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return c, fmt.Errorf("ask for the size of table %s: %w", table, errno)
	}
	return count{info.rules, info.bytes}, nil
}

// countOurs counts rules in nftables: those of the chains that the built-in ones lead to, and those
// that lead there.
func countOurs(f family, table string) (c count, err error) {
	t := &nftables.Table{Name: table, Family: tableFamily(f.v6)}
	names := map[string][]string{
		"filter": {"FORWARD", "INPUT", "OUTPUT", forwardChain, inputChain, unservedChain, passChain, localChain, sentChain, receivedChain},
		"raw":    {"PREROUTING", arrivalChain},
		"nat":    {"PREROUTING", "OUTPUT", "POSTROUTING", servicesChain, postChain, treeChain},
	}
	for _, name := range names[table] {
		rules, err := nft.ForeignRules(t, name)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return c, fmt.Errorf("read chain %s: %w", name, err)
		}
		for _, r := range rules {
			if strings.HasPrefix(name, prefix) {
				c.rules++
			}
			for _, e := range r.Exprs {
				if v, is := e.(*expr.Verdict); is && strings.HasPrefix(v.Chain, prefix) {
					c.size++
				}
			}
		}
	}
	return c, nil
}
