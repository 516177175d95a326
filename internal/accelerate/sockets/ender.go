package sockets

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/passes"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// ender looks for sockets that are connected to an endpoint which is not the service's any more,
// and does what befalls connections that are translated in packets: TCP is reset when the endpoint
// is in no slice and has no Pod; UDP goes to another endpoint when the former serves no more. (A
// socket that is not connected gets another when it sends.)
type ender struct {
	d      *Driver
	files  files
	passes *passes.Passes[struct{}]
}

// lookPause is the least time between two passes, which look at the open files of all processes.
const lookPause = time.Second

func newEnder(d *Driver) (*ender, error) {
	files, err := openFiles(d.maps.List)
	if err != nil {
		return nil, err
	}
	e := &ender{d: d, files: files}
	e.passes = passes.Start(passes.Work[struct{}]{
		Merge: func(*struct{}, struct{}) {},
		Pass:  func(struct{}) error { return e.pass() },
		Pause: func(struct{}) time.Duration { return lookPause },
	})
	return e, nil
}

func (e *ender) close() {
	e.passes.Close()
	_ = e.files.it.Close()
}

// look has sockets be looked at.
func (e *ender) look() { e.passes.Ask(struct{}{}) }

func (e *ender) pass() error {
	all, err := e.files.read()
	if err != nil {
		e.d.log.Warn("sockets may stay connected to endpoints that are gone", "error", err)
		return err
	}
	var stale []bpfFound
	e.d.Held(func(s *state.State) {
		for _, f := range all {
			if f.stale(s.Services) {
				stale = append(stale, f)
			}
		}
	})
	for _, f := range stale {
		if wrong := f.moveOn(); wrong != nil {
			err = errors.Join(err, wrong)
			e.d.log.Warn("a socket stays connected to an endpoint that is gone", "pid", f.Pid,
				"service", f.As.Service.addrPort(), "endpoint", f.As.Backend.addrPort(), "error", wrong)
		}
	}
	return err
}

// files are the open files of all processes that are translated sockets.
type files struct{ it *link.Iter }

func openFiles(program *ebpf.Program) (files, error) {
	it, err := link.AttachIter(link.IterOptions{Program: program})
	if err != nil {
		return files{}, fmt.Errorf("list sockets: %w", err)
	}
	return files{it}, nil
}

func (f files) read() ([]bpfFound, error) {
	r, err := f.it.Open()
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	all := make([]bpfFound, len(raw)/binary.Size(bpfFound{}))
	return all, binary.Read(bytes.NewReader(raw), binary.NativeEndian, all)
}

// stale reports whether the socket may not go on as it is.
func (f bpfFound) stale(s *state.Services) bool {
	if s == nil {
		return false
	}
	service := f.As.Service.addrPort()
	k := state.FrontendKey{Addr: service.Addr(), Protocol: model.Protocol(f.As.Service.Protocol), Port: service.Port()}
	now := s.Frontends[k]
	if now == nil {
		return k.Protocol == model.UDP
	}
	return !state.Has(usable(k, now), f.As.Backend.addrPort())
}

// usable are the endpoints to which sockets may stay connected, sorted; of a frontend that is no
// more none.
func usable(k state.FrontendKey, f *state.Frontend) []netip.AddrPort {
	switch {
	case f == nil:
		return nil
	case k.Protocol == model.UDP:
		return f.Serving
	}
	return f.Alive
}

// moveOn resets a connection of TCP, and has a socket of UDP be connected anew to what it asked
// for. A process or socket that is not there any more is no error.
func (f bpfFound) moveOn() error {
	process, err := unix.PidfdOpen(int(f.Pid), 0)
	if err != nil {
		return unlessGone(err)
	}
	defer func() { _ = unix.Close(process) }()
	fd, err := unix.PidfdGetfd(process, int(f.Fd), 0)
	if err != nil {
		return unlessGone(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil || cookie != f.Cookie {
		return err // the number is another file's now
	}
	if f.As.Service.Protocol == uint16(model.UDP) {
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil {
			return err
		}
		return unix.Connect(fd, sockaddr(domain, f.As.Service.addrPort()))
	}
	// To connect to no address resets the connection. In some kernels it cannot be done while a
	// thread waits for the socket.
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if _, _, failed := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); failed != 0 {
		return unix.Shutdown(fd, unix.SHUT_RDWR)
	}
	return nil
}

func unlessGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EBADF) {
		return nil
	}
	return err
}

// sockaddr is an address and port as a socket of a domain takes it.
func sockaddr(domain int, to netip.AddrPort) unix.Sockaddr {
	if domain == unix.AF_INET {
		return &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	return &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
}

// mayMoveSockets returns an error unless this process may fetch sockets from others: where it may
// not, they would stay at endpoints that are gone.
func mayMoveSockets() error {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_PTRACE) == 0 {
		return errors.New("it needs CAP_SYS_PTRACE, to move sockets on whose endpoint goes")
	}
	return nil
}
