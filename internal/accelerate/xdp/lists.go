package xdp

import (
	"cmp"
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
)

// lists are the networks that programs look sources up in. They outlive programs, as they may be
// long.
type lists struct {
	members [2]*ebpf.Map // of IPv4 and IPv6
	numbers map[length]uint32
	held    map[string]*list
}

// list is one of networks. But for lengths, it does not change.
type list struct {
	ranges  []model.AddressRange // sorted
	then    uint8                // what becomes of a packet whose source is on it
	lengths [2][129]int          // prefixes that maps hold, by length
}

// length is a length of prefixes of a list.
type length struct {
	list string
	bits int
}

// What becomes of a packet whose source is on a list, as drop.h has it.
const (
	allowed = iota
	dropped
	undecided // the base does more than to drop it
	shown     // dropped, but for some that the base shows to people
	unlessFailsafe
	unlessKnown
)

// farmList is a balancer's.
func farmList(l *model.FarmList) *list {
	switch {
	case l.Allow:
		return &list{ranges: l.Ranges, then: allowed}
	case l.Log:
		return &list{ranges: l.Ranges, then: undecided}
	}
	return &list{ranges: l.Ranges, then: dropped}
}

func newLists() *lists { return &lists{numbers: map[length]uint32{}, held: map[string]*list{}} }

func (l *lists) close() (err error) {
	for i, m := range l.members {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
		l.members[i] = nil
	}
	clear(l.held)
	return err
}

// follow has the maps hold lists of these names, or not where now has none. Where there is no room
// the error is errFull: then they are to be held anew.
func (l *lists) follow(now map[string]*list, names []string) error {
	if l.members[0] == nil && len(now) > 0 {
		return errFull
	}
	for _, name := range names {
		was, next := cmp.Or(l.held[name], &list{}), cmp.Or(now[name], &list{})
		if was == next {
			continue
		}
		next.lengths = was.lengths
		gone, come := model.DiffRanges(was.ranges, next.ranges)
		if err := errors.Join(l.change(name, next, gone, -1), l.change(name, next, come, 1)); err != nil {
			delete(l.held, name) // what the maps have of it is not known
			return err
		}
		if l.held[name] = next; now[name] == nil {
			delete(l.held, name)
		}
	}
	return nil
}

// change has ranges of a list go, or come.
func (l *lists) change(name string, of *list, ranges []model.AddressRange, by int) error {
	for i, is4 := range []bool{true, false} {
		b := batch{m: l.members[i], is4: is4, remove: by < 0}
		for _, r := range ranges {
			for p := range r.Prefixes() {
				if p.Addr().Is4() != is4 {
					continue
				}
				of.lengths[i][p.Bits()] += by
				if err := b.add(l.number(name, p.Bits()), p.Addr()); err != nil {
					return err
				}
			}
		}
		if err := b.flush(); err != nil {
			return err
		}
	}
	return nil
}

func (l *lists) number(name string, bits int) uint32 {
	n, has := l.numbers[length{name, bits}]
	if !has {
		n = uint32(len(l.numbers))
		l.numbers[length{name, bits}] = n
	}
	return n
}

// anew makes other maps for these lists.
func (l *lists) anew(now map[string]*list) error {
	if err := l.close(); err != nil {
		return err
	}
	spec, err := loadBpf()
	if err != nil {
		return err
	}
	var n [2]uint32
	names := make([]string, 0, len(now))
	for name, list := range now {
		names = append(names, name)
		for _, r := range list.ranges {
			for range r.Prefixes() {
				n[familyOf(r.First)]++
			}
		}
	}
	for i, name := range []string{bpfMapMembers4, bpfMapMembers6} {
		m := spec.Maps[name]
		m.MaxEntries = n[i] + n[i]/32 + 1024 // they are the largest by far
		if l.members[i], err = ebpf.NewMap(m); err != nil {
			return errors.Join(err, l.close())
		}
	}
	return l.follow(now, names)
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// checks are what a farm that names lists is to look up, in the order in which the base does. Not
// ok: it is more than a program does for a packet.
func (l *lists) checks(names []string, is4 bool) (all []bpfCheck, of []string, ok bool) {
	family := 0
	if !is4 {
		family = 1
	}
	for _, name := range names {
		list := l.held[name]
		if list == nil {
			continue
		}
		for bits, n := range list.lengths[family] {
			if n == 0 {
				continue
			}
			all, of = append(all, bpfCheck{List: l.number(name, bits), Bits: uint8(bits), Then: list.then}), append(of, name)
		}
	}
	return all, of, len(all) <= mostChecks
}

const mostChecks = 33 // MOST_CHECKS of drop.h

// batch has elements come or go, many at once.
type batch struct {
	m      *ebpf.Map
	is4    bool
	remove bool
	keys4  []bpfMember4
	keys6  []bpfMember6
}

const atOnce = 1 << 16

func (b *batch) add(list uint32, a netip.Addr) error {
	if b.is4 {
		b.keys4 = append(b.keys4, bpfMember4{List: list, Addr: words(a)[0]})
	} else {
		b.keys6 = append(b.keys6, bpfMember6{List: list, Addr: words(a)})
	}
	if len(b.keys4)+len(b.keys6) < atOnce {
		return nil
	}
	return b.flush()
}

func (b *batch) flush() error {
	var keys any = b.keys4
	n := len(b.keys4)
	if !b.is4 {
		keys, n = b.keys6, len(b.keys6)
	}
	var err error
	switch {
	case n == 0:
	case b.remove:
		_, err = b.m.BatchDelete(keys, nil)
	default:
		_, err = b.m.BatchUpdate(keys, make([]uint8, n), nil)
	}
	b.keys4, b.keys6 = b.keys4[:0], b.keys6[:0]
	if errors.Is(err, unix.E2BIG) {
		return errFull
	}
	return err
}
