package established

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/bpf"
	devices "sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/state"
)

// look has the program run at all interfaces that it can, in step with what they are now.
func (d *Driver) look() {
	d.looking.Lock()
	defer d.looking.Unlock()
	d.mu.Lock()
	runs := d.program != nil
	d.mu.Unlock()
	if !runs {
		return
	}
	err := d.here.Do(func() error {
		fit, left, err := d.fit()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.program == nil || err != nil {
			return err
		}
		d.left = left
		if err := d.tune(); err != nil {
			return err
		}
		return d.attach(fit)
	})
	if err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.fail(err)
	}
}

// tune has the program use connection tracking's time-outs.
func (d *Driver) tune() error {
	for key, want := range Sysctls {
		if is, err := sysctl.Read(key); err != nil || is != want {
			return errors.Join(err, fmt.Errorf("it needs the kernel parameter %s=%s", key, want))
		}
	}
	var failed []error
	milliseconds := func(key string) uint32 {
		seconds, err := sysctl.Number("net.netfilter.nf_conntrack_" + key)
		failed = append(failed, err)
		return uint32(min(uint64(seconds)*1000, 1<<32-1))
	}
	established := milliseconds("tcp_timeout_established")
	unacknowledged := min(milliseconds("tcp_timeout_unacknowledged"), established)
	udp := milliseconds("udp_timeout_stream")
	if err := errors.Join(failed...); err != nil {
		return err
	}
	return errors.Join(d.program.TcpTimeout.Set(established), d.program.TcpUnacknowledged.Set(unacknowledged), d.program.UdpTimeout.Set(udp))
}

// place is an interface that the program can run at.
type place struct {
	bpfDevice
	name string
}

// fit returns those, by index, and why the program cannot run at others.
func (d *Driver) fit() (fit map[int]place, left map[int]string, err error) {
	gates, err := devices.Here.Gates()
	if err != nil {
		return nil, nil, err
	}
	checked, seen := map[int]bool{}, map[int]bool{}
	d.Held(func(s *state.State) {
		if s.Policy != nil {
			checked, seen = judged(s.Policy)
		}
	})
	fit, left = map[int]place{}, map[int]string{}
	for index, g := range gates {
		strict, err := answers(g.Name)
		switch {
		case err != nil: // it has gone
		case seen[index]:
			left[index] = fmt.Sprintf("not at %s: deny lists or doNotTrack policies are to see each packet", g.Name)
		case g.Filtered:
			left[index] = fmt.Sprintf("not at %s: filters of tc are there", g.Name)
		default:
			fit[index] = place{bpfDevice{Direct: toByte(g.Pod && g.Pair), Strict: toByte(g.Pod || checked[index] || strict)}, g.Name}
		}
	}
	return fit, left, nil
}

func toByte(is bool) uint8 {
	if is {
		return 1
	}
	return 0
}

// judged returns the interfaces of which the driver asks whether a packet may come from there at
// all, and those where it judges each packet.
func judged(p *state.Policy) (checked, seen map[int]bool) {
	checked, seen = map[int]bool{}, map[int]bool{}
	for i := range p.PodDevices {
		checked[i] = true
	}
	for _, w := range p.Workloads {
		checked[w.Device] = true
	}
	for i, h := range p.Hosts {
		seen[i] = h.UntrackedIn != "" || h.UntrackedOut != ""
	}
	if len(p.Denied.Lists) > 0 {
		for _, at := range p.Denied.Devices {
			seen[at.Index] = true
		}
	}
	return checked, seen
}

// answers reports whether an interface takes packets only from where answers to them go by it.
func answers(name string) (bool, error) {
	all, err := sysctl.Number("net.ipv4.conf.all.rp_filter")
	if err != nil {
		return false, err
	}
	own, err := sysctl.Number("net.ipv4.conf." + sysctl.Interface(name) + ".rp_filter")
	return max(all, own) == 1, err
}

// attach has the program run at these interfaces, and at no others.
func (d *Driver) attach(fit map[int]place) error {
	info, err := d.program.Established.Info()
	if err != nil {
		return err
	}
	own, _ := info.ID()
	for index := range d.links {
		if _, is := fit[index]; !is {
			if err := d.detach(index); err != nil {
				return err
			}
		}
	}
	for index, at := range fit {
		others, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
		if errors.Is(err, unix.ENODEV) { // it has gone
			continue
		}
		if err != nil {
			return fmt.Errorf("find others' programs: %w", err)
		}
		if slices.ContainsFunc(others.Programs, func(p link.AttachedProgram) bool { return p.ID != own }) {
			d.left[index] = fmt.Sprintf("not at %s: another program has one of its own there (tcx)", at.name)
			if err := d.detach(index); err != nil {
				return err
			}
			continue
		}
		if d.links[index] == nil {
			l, err := d.folder.Attach(bpf.At(index), d.program.Established, func() (link.Link, error) {
				return link.AttachTCX(link.TCXOptions{Interface: index, Program: d.program.Established, Attach: ebpf.AttachTCXIngress})
			})
			if errors.Is(err, unix.ENODEV) {
				continue
			}
			if err != nil {
				return fmt.Errorf("attach: %w", err)
			}
			d.links[index] = l
		}
		if err := d.program.Devices.Put(uint32(index), at.bpfDevice); err != nil {
			return err
		}
	}
	return nil
}

// detach has the program run at an interface no more.
func (d *Driver) detach(index int) error {
	err := d.program.Devices.Delete(uint32(index))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = nil
	}
	l := d.links[index]
	delete(d.links, index)
	if l != nil {
		err = errors.Join(err, d.folder.Detach(bpf.At(index)), l.Close())
	}
	return err
}
