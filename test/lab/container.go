package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/netns"
)

// ContainerRuntime is what MetalLB's tests take for a container runtime, by the command lines of
// Docker that they use: run, exec, inspect, kill, and network create, rm and connect. A container
// is a router: a host of the lab, with Debian's FRR. The network kind is that of the nodes. What
// exec names may be a node, too: then only the node's network is entered. It returns when the
// command has ended, but for exec, which takes this process's place.
//
// All state is the kernel's: a network is a bridge in the underlay, and the interface of a
// container has the name of its network.
func (l *Lab) ContainerRuntime(ctx context.Context, args []string, w io.Writer) error {
	if len(args) < 2 {
		return errors.New("a command and what it is about are needed")
	}
	switch command, args := args[0], args[1:]; command {
	case "run":
		return l.runRouter(ctx, args)
	case "exec":
		return l.execRouter(args[0], args[1:])
	case "inspect":
		return l.inspectRouter(args, w)
	case "kill":
		return l.killRouter(args[0])
	case "network":
		return l.routersNetwork(args)
	default:
		return fmt.Errorf("command %s: there is none", command)
	}
}

// nodesNetwork is the name of the nodes' network, which is one of kind's for MetalLB.
const nodesNetwork = "kind"

// farNetwork are the addresses of any other network, of which routers get those from the second on.
var farNetwork = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("fc00:f853:ccd:e798::/64")}

// frrName is what a router's process is recorded as.
const frrName = "frr"

// startFRR runs FRR with the configuration of a folder, in place of the machine's: its programs
// know their files by fixed paths.
const startFRR = `
mount --bind "$0" /etc/frr
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /var/log
mkdir /run/frr /var/log/frr
chown -R frr:frr /etc/frr /run/frr /var/log/frr
/usr/lib/frr/frrinit.sh start
exec sleep infinity`

func (l *Lab) runRouter(ctx context.Context, args []string) error {
	var name, network, volume string
	var ips []string
	fl := pflag.NewFlagSet("run", pflag.ContinueOnError)
	fl.StringVar(&name, "name", "", "")
	fl.StringVar(&network, "network", "", "")
	fl.StringVar(&volume, "volume", "", "")
	fl.StringArrayVar(&ips, "ip", nil, "")
	for _, ignored := range []string{"privileged", "rm"} {
		fl.Bool(ignored, false, "")
	}
	fl.BoolP("detach", "d", false, "")
	fl.String("ulimit", "", "")
	if err := fl.Parse(args); err != nil {
		return err
	}
	config, _, _ := strings.Cut(volume, ":")
	ns, err := newNS(l.NodeNS(name))
	if err != nil {
		return err
	}
	defer ns.Close()
	addrs := make([]netip.Addr, len(ips))
	for i, ip := range ips {
		if addrs[i], err = netip.ParseAddr(ip); err != nil {
			return err
		}
	}
	if err := forward(ns); err != nil {
		return err
	}
	if err := l.joinNetwork(ns, network, addrs); err != nil {
		return err
	}
	if err := l.start(name, frrName, []string{"unshare", "--mount", "--propagation", "private", "sh", "-ec", startFRR, config}); err != nil {
		return err
	}
	ctx, cancel := within(ctx, serveTimeout)
	defer cancel()
	for {
		if out, err := exec.CommandContext(ctx, "nsenter", l.intoRouter(name, "vtysh", "-c", "show daemons")...).Output(); err == nil && strings.Contains(string(out), "bgpd") {
			return nil
		}
		if err := l.died(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for FRR of %s: %w\nthe end of its log:\n%s", name, ctx.Err(), process.Tail(l.path(name), frrName))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// joinNetwork gives a router an interface on a network, with the addresses. Of a network other than
// the nodes', there may be none: it gets such as are free.
func (l *Lab) joinNetwork(ns *netns.NS, network string, addrs []netip.Addr) error {
	bridge, prefixes := network, farNetwork
	if network == nodesNetwork {
		if bridge, prefixes = "br0", plan.Subnet(0); len(addrs) == 0 {
			return fmt.Errorf("join network %s: say with which addresses, as the lab's hosts have some", network)
		}
	}
	under, err := netns.Open(prefix(l.Name) + "underlay")
	if err != nil {
		return err
	}
	defer under.Close()
	br, err := under.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find network %s: %w", network, err)
	}
	for k := 2; ; k++ {
		at := addrs
		if len(at) == 0 {
			at = []netip.Addr{plan.Nth(prefixes[0], k), plan.Nth(prefixes[1], k)}
		}
		// The name of the port takes the addresses: another may look for some at the same time.
		port := fmt.Sprintf("r%x", at[0].AsSlice())
		err := netns.Veth(ns, network, under, port)
		if errors.Is(err, unix.EEXIST) && len(addrs) == 0 {
			continue
		}
		if err != nil {
			return err
		}
		far, err := under.LinkByName(port)
		if err == nil {
			err = under.LinkSetMaster(far, br)
		}
		for i, a := range at {
			if err == nil {
				err = ns.Address(network, netip.PrefixFrom(a, prefixes[i].Bits()))
			}
		}
		return err
	}
}

// intoRouter are the arguments of nsenter for a command in a router.
func (l *Lab) intoRouter(name string, command ...string) []string {
	return append([]string{"--mount", "--net", "--target", fmt.Sprint(l.process(name, frrName).PID), "--"}, command...)
}

func (l *Lab) execRouter(name string, command []string) error {
	if l.Cluster.Node(name) != nil {
		return l.Exec(name, command)
	}
	if !l.process(name, frrName).Alive() {
		return fmt.Errorf("enter %s: there is no such router", name)
	}
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return err
	}
	return unix.Exec(nsenter, append([]string{"nsenter"}, l.intoRouter(name, command...)...), os.Environ())
}

// inspectRouter prints the addresses of a router as the format asks: all of its networks as JSON,
// or the addresses of one family.
func (l *Lab) inspectRouter(args []string, w io.Writer) error {
	fl := pflag.NewFlagSet("inspect", pflag.ContinueOnError)
	format := fl.StringP("format", "f", "", "")
	if err := fl.Parse(args); err != nil {
		return err
	}
	ns, err := netns.Open(l.NodeNS(fl.Arg(0)))
	if err != nil {
		return err
	}
	defer ns.Close()
	links, err := ns.LinkList()
	if err != nil {
		return err
	}
	type settings struct {
		IPAddress, GlobalIPv6Address     string
		IPPrefixLen, GlobalIPv6PrefixLen int
	}
	networks := map[string]settings{}
	for _, link := range links {
		if link.Type() != "veth" {
			continue
		}
		all, err := ns.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		var s settings
		for _, a := range all {
			bits, _ := a.Mask.Size()
			switch {
			case a.IP.To4() != nil:
				s.IPAddress, s.IPPrefixLen = a.IP.String(), bits
			case a.IP.IsGlobalUnicast():
				s.GlobalIPv6Address, s.GlobalIPv6PrefixLen = a.IP.String(), bits
			}
		}
		networks[link.Attrs().Name] = s
	}
	if strings.Contains(*format, "json") {
		return json.NewEncoder(w).Encode(networks)
	}
	for _, s := range networks {
		a := s.IPAddress
		if strings.Contains(*format, "GlobalIPv6Address") {
			a = s.GlobalIPv6Address
		}
		if _, err := io.WriteString(w, a); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) killRouter(name string) error {
	err := l.process(name, frrName).Signal(syscall.SIGKILL)
	if err == nil {
		err = process.KillIn(l.NodeNS(name))
	}
	if err == nil {
		err = netns.Delete(l.NodeNS(name))
	}
	return firstError(err, os.RemoveAll(l.path(name)))
}

// routersNetwork makes or removes a network, or joins a router to it.
func (l *Lab) routersNetwork(args []string) error {
	under, err := netns.Open(prefix(l.Name) + "underlay")
	if err != nil {
		return err
	}
	defer under.Close()
	la := netlink.NewLinkAttrs()
	la.Name = args[1]
	br := &netlink.Bridge{LinkAttrs: la}
	switch args[0] {
	case "create": // with farNetwork, whatever else is said
		if err := under.LinkAdd(br); err != nil {
			return err
		}
		return under.LinkSetUp(br)
	case "rm":
		return under.LinkDel(br)
	case "connect":
		ns, err := netns.Open(l.NodeNS(args[2]))
		if err != nil {
			return err
		}
		return firstError(l.joinNetwork(ns, args[1], nil), ns.Close())
	}
	return fmt.Errorf("network %s: there is no such command", args[0])
}
