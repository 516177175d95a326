package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/inject"
	"sluice.dev/sluice/test/netns"
)

// HAProxy is Debian's haproxy in TCP mode, one thread on one CPU. It ends connections itself, and
// opens others to the backends.
type HAProxy struct{ CPU int }

// Name implements Dataplane.
func (HAProxy) Name() string { return "haproxy" }

// Limit implements Dataplane.
func (HAProxy) Limit() (int, string) {
	return 1, "it listens on each address, and its cost does not depend on how many there are"
}

// NodePorts implements Dataplane.
func (HAProxy) NodePorts() bool { return false }

// Target implements Dataplane.
func (HAProxy) Target(_ cluster.Cluster, first, count int) inject.Target {
	return services(first, count)
}

// Load implements Dataplane.
func (h HAProxy) Load(ctx context.Context, node *netns.NS, c cluster.Cluster) (*Loaded, error) {
	if err := need("haproxy", "haproxy"); err != nil {
		return nil, err
	}
	s, err := newScript()
	if err != nil {
		return nil, err
	}
	path := s.f.Name()
	s.add("global\n nbthread 1\n maxconn 2000")
	s.add("defaults\n mode tcp\n timeout connect 5s\n timeout client 5s\n timeout server 5s")
	for i := range c.Services {
		s.add("listen farm%d\n bind %s:%d\n balance roundrobin", i, cluster.ServiceAddr(i), cluster.ServicePort)
		for j := range c.Endpoints {
			s.add(" server b%d %s", j, c.Endpoint(i, j))
		}
		err = errors.Join(err, ownAddress(node, cluster.ServiceAddr(i)))
	}
	if err := errors.Join(err, s.w.Flush(), s.f.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("prepare haproxy: %w", err), os.Remove(path))
	}
	cmd := exec.CommandContext(ctx, "haproxy", "-db", "-f", path)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	began := time.Now()
	if err := node.Start(cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("start haproxy: %w", err), os.Remove(path))
	}
	stop := func() error {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed: the exit status says only that
		return os.Remove(path)
	}
	var cpus unix.CPUSet
	cpus.Set(h.CPU)
	err = errors.Join(unix.SchedSetaffinity(cmd.Process.Pid, &cpus), accepts(ctx, node, netip.AddrPortFrom(cluster.ServiceAddr(c.Services-1), cluster.ServicePort)))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start haproxy: %w", err), stop(), errors.New(said.String()))
	}
	return &Loaded{Took: time.Since(began), Note: "until it accepts connections", Close: stop}, nil
}

// ownAddress gives a node an address.
func ownAddress(node *netns.NS, addr netip.Addr) error {
	lo, err := node.LinkByName("lo")
	if err != nil {
		return err
	}
	return node.AddrReplace(lo, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}})
}

// accepts waits until something on the node accepts connections.
func accepts(ctx context.Context, node *netns.NS, at netip.AddrPort) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := node.Do(func() error {
			conn, err := net.DialTimeout("tcp", at.String(), time.Second)
			if err == nil {
				err = conn.Close()
			}
			return err
		})
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}
