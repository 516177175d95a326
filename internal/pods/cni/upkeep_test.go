package cni_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/pods/attach"
)

// Each error has the specification's code, and says what to do.
func TestErrors(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges))
	c := b.container("x")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	conf := func(version, plugin string) string {
		return `{"cniVersion": "` + version + `", "name": "pods", ` + plugin[1:]
	}
	good := conf("1.1.0", plugin(ranges))
	tests := map[string]struct {
		env   map[string]string
		stdin string
		code  uint
		says  string
	}{
		"a version of the future":     {map[string]string{}, conf("9.0.0", plugin(ranges)), types.ErrIncompatibleCNIVersion, "incompatible CNI versions"},
		"what the plugin cannot do":   {map[string]string{}, conf("1.1.0", plugin(ranges, `"ipMasq": true`)), types.ErrUnsupportedField, "ipMasq: true"},
		"a capability of another":     {map[string]string{}, conf("1.1.0", plugin(ranges, `"capabilities": {"portMappings": true}`)), types.ErrUnsupportedField, "capabilities.portMappings: true"},
		"what host-local has not":     {map[string]string{}, conf("1.1.0", plugin(ranges+`, "resolvConf": "/etc/resolv.conf"`)), types.ErrUnsupportedField, `ipam.resolvConf: "/etc/resolv.conf"`},
		"somebody else's field":       {map[string]string{"CNI_NETNS": "/no/such"}, conf("1.1.0", plugin(ranges, `"example.org/x": true`)), types.ErrUnknownContainer, "CNI_NETNS=/no/such"},
		"no namespace":                {map[string]string{"CNI_NETNS": "/no/such"}, good, types.ErrUnknownContainer, "make it anew"},
		"a file for a namespace":      {map[string]string{"CNI_NETNS": file}, good, types.ErrInvalidEnvironmentVariables, "is no network namespace"},
		"a folder for a namespace":    {map[string]string{"CNI_NETNS": "/"}, good, types.ErrInvalidEnvironmentVariables, "is no network namespace"},
		"another namespace's file":    {map[string]string{"CNI_NETNS": "/proc/self/ns/mnt"}, good, types.ErrInvalidEnvironmentVariables, "is no network namespace"},
		"a FIFO for a namespace":      {map[string]string{"CNI_NETNS": fifo}, good, types.ErrInvalidEnvironmentVariables, "is no network namespace"},
		"CHECK of a FIFO":             {map[string]string{"CNI_NETNS": fifo, "CNI_COMMAND": "CHECK"}, conf("1.1.0", plugin(ranges, `"prevResult": {"cniVersion": "1.1.0"}`)), types.ErrInvalidEnvironmentVariables, "is no network namespace"},
		"a pattern of names":          {map[string]string{"CNI_IFNAME": "eth%d"}, good, types.ErrInvalidEnvironmentVariables, "CNI_IFNAME=eth%d"},
		"a bad pattern of names":      {map[string]string{"CNI_IFNAME": "eth%s"}, good, types.ErrInvalidEnvironmentVariables, "CNI_IFNAME=eth%s"},
		"all interfaces":              {map[string]string{"CNI_IFNAME": "all"}, good, types.ErrInvalidEnvironmentVariables, "CNI_IFNAME=all"},
		"an interface of no name":     {map[string]string{"CNI_IFNAME": "default"}, good, types.ErrInvalidEnvironmentVariables, "CNI_IFNAME=default"},
		"a name with the byte 0xA0":   {map[string]string{"CNI_IFNAME": "voil\u00e0"}, good, types.ErrInvalidEnvironmentVariables, "CNI_IFNAME=voil\u00e0"},
		"a multicast range":           {map[string]string{}, conf("1.1.0", plugin(`"podCIDRs": ["224.0.0.0/24"]`)), types.ErrInvalidNetworkConfig, "224.0.0.0/24 has 224.0.0.0, a multicast address"},
		"a link-local range":          {map[string]string{}, conf("1.1.0", plugin(`"ranges": [[{"subnet": "fe80::/64"}]]`)), types.ErrInvalidNetworkConfig, "fe80::/64 has fe80::, a link-local address"},
		"the gateway's range":         {map[string]string{}, conf("1.1.0", plugin(`"subnet": "169.254.1.0/30"`)), types.ErrInvalidNetworkConfig, "169.254.1.0/30 has 169.254.1.0, a link-local address"},
		"the node's own":              {map[string]string{"CNI_NETNS": b.node.Path()}, good, types.ErrInvalidEnvironmentVariables, "of the node itself"},
		"no container":                {map[string]string{"CNI_CONTAINERID": ""}, good, types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID"},
		"a bad interface":             {map[string]string{"CNI_IFNAME": "much-too-long-for-one"}, good, types.ErrInvalidEnvironmentVariables, "interface name"},
		"bad CNI_ARGS":                {map[string]string{"CNI_ARGS": "IP"}, good, types.ErrInvalidEnvironmentVariables, "CNI_ARGS=IP"},
		"a bad hardware address":      {map[string]string{"CNI_ARGS": "MAC=01:00:5e:00:00:01"}, good, types.ErrInvalidEnvironmentVariables, "MAC in CNI_ARGS"},
		"no text":                     {map[string]string{}, ``, types.ErrDecodingFailure, "unmarshall"},
		"half a text":                 {map[string]string{}, good[:40], types.ErrDecodingFailure, "unmarshall"},
		"a number as text":            {map[string]string{}, conf("1.1.0", plugin(ranges, `"mtu": "large"`)), types.ErrDecodingFailure, "mtu"},
		"no ranges":                   {map[string]string{}, conf("1.1.0", plugin(`"routes": []`)), types.ErrInvalidNetworkConfig, "ipam.podCIDRs"},
		"a range that is none":        {map[string]string{}, conf("1.1.0", plugin(`"podCIDRs": ["10.1"]`)), types.ErrInvalidNetworkConfig, "podCIDRs"},
		"a range of one address":      {map[string]string{}, conf("1.1.0", plugin(`"podCIDRs": ["10.1.0.0/32"]`)), types.ErrInvalidNetworkConfig, "too small"},
		"a range with host bits":      {map[string]string{}, conf("1.1.0", plugin(`"podCIDRs": ["10.1.0.1/24"]`)), types.ErrInvalidNetworkConfig, "host bits"},
		"overlapping ranges":          {map[string]string{}, conf("1.1.0", plugin(`"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "10.1.2.0/24"}]]`)), types.ErrInvalidNetworkConfig, "overlap"},
		"ranges twice":                {map[string]string{}, conf("1.1.0", plugin(ranges+`, "podCIDRs": ["10.1.0.0/24"]`)), types.ErrInvalidNetworkConfig, "leave out one"},
		"no IPAM":                     {map[string]string{}, conf("1.1.0", `{"type": "sluice-cni"}`), types.ErrInvalidNetworkConfig, "ipam.type is missing"},
		"an IPAM that is nowhere":     {map[string]string{}, conf("1.1.0", `{"type": "sluice-cni", "ipam": {"type": "nowhere"}}`), types.ErrInvalidNetworkConfig, "ipam.type: nowhere"},
		"an IPAM outside of the path": {map[string]string{}, conf("1.1.0", `{"type": "sluice-cni", "ipam": {"type": "../../bin/true"}}`), types.ErrInvalidNetworkConfig, "ipam.type: ../../bin/true"},
		"an IPAM that is itself":      {map[string]string{}, conf("1.1.0", `{"type": "sluice-cni", "ipam": {"type": "sluice-cni"}}`), types.ErrInvalidNetworkConfig, "is this plugin"},
		"a hardware address of zeros": {map[string]string{"CNI_ARGS": "MAC=00:00:00:00:00:00"}, good, types.ErrInvalidEnvironmentVariables, "MAC in CNI_ARGS"},
		"addresses of no range":       {map[string]string{}, conf("1.1.0", plugin(ranges, `"runtimeConfig": {"ips": ["10.78.0.5"]}`)), types.ErrInvalidNetworkConfig, "ask for addresses of 10.77.0.1-10.77.0.254 and fd77::1-fd77::"},
		"an MTU too small for IPv6":   {map[string]string{}, conf("1.1.0", plugin(ranges, `"mtu": 1000`)), types.ErrInvalidNetworkConfig, "IPv6 takes 1280"},
		"a small MTU":                 {map[string]string{}, conf("1.1.0", plugin(ranges, `"mtu": 68`)), types.ErrInvalidNetworkConfig, "mtu: 68"},
		"no socket":                   {map[string]string{}, conf("1.1.0", plugin(ranges, `"agent": {}`)), types.ErrInvalidNetworkConfig, "agent.socket is missing"},
		"a time that is none":         {map[string]string{}, conf("1.1.0", plugin(ranges, `"agent": {"socket": "/x", "timeout": "-1s"}`)), types.ErrDecodingFailure, "-1s"},
		"CHECK before 0.4.0":          {map[string]string{"CNI_COMMAND": "CHECK"}, conf("0.3.1", plugin(ranges)), types.ErrIncompatibleCNIVersion, "CHECK"},
		"GC before 1.1.0":             {map[string]string{"CNI_COMMAND": "GC"}, conf("1.0.0", plugin(ranges)), types.ErrIncompatibleCNIVersion, "GC"},
		"CHECK without a result":      {map[string]string{"CNI_COMMAND": "CHECK"}, good, types.ErrInvalidNetworkConfig, "prevResult is missing"},
		"an unknown verb":             {map[string]string{"CNI_COMMAND": "MOVE"}, good, types.ErrInvalidEnvironmentVariables, "MOVE"},
		"STATUS without ranges":       {map[string]string{"CNI_COMMAND": "STATUS"}, conf("1.1.0", plugin(`"routes": []`)), types.ErrPluginNotAvailable, "ipam.podCIDRs"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for k, v := range map[string]string{"CNI_COMMAND": "ADD", "CNI_NETNS": c.NetNS} {
				if _, given := tt.env[k]; !given {
					tt.env[k] = v
				}
			}
			_, failed := b.call(tt.env, tt.stdin)
			if failed.Code != tt.code || !strings.Contains(failed.Msg+failed.Details, tt.says) {
				t.Errorf("got %d %s (%s), want %d and %q", failed.Code, failed.Msg, failed.Details, tt.code, tt.says)
			}
			b.empty()
		})
	}
	if out, failed := b.call(map[string]string{"CNI_COMMAND": "VERSION"}, `{"cniVersion": "1.0.0"}`); failed.Code != 0 || !strings.Contains(string(out), `"1.1.0"`) {
		t.Errorf("VERSION: %s", out)
	}
	// A configuration that ADD refuses is good enough to clean up.
	for _, stdin := range []string{conf("1.1.0", plugin(`"podCIDRs": "none"`, `"mtu": "large", "ipMasq": true`)), conf("1.1.0", plugin(`"routes": []`))} {
		for _, verb := range []string{"DEL", "GC"} {
			if _, failed := b.call(map[string]string{"CNI_COMMAND": verb}, stdin); failed.Code != 0 {
				t.Errorf("%s: %+v", verb, failed)
			}
		}
	}
}

// CHECK finds what a container has lost, and passes over what others may change.
func TestCheck(t *testing.T) {
	tests := map[string]struct {
		inside, node, file string // what ip(8) does in the container or on the node, or what is lost
		says               string // "": it is no harm
	}{
		"another default route":   {inside: "route replace default via 169.254.1.1 dev eth0 onlink mtu 1300"},
		"the container's address": {inside: "addr del 10.77.0.2/32 dev eth0", says: "does not have the address 10.77.0.2"},
		"the container's route":   {inside: "route del default", says: "no default route for 10.77.0.2"},
		"the container's hardware address": {
			inside: "link set eth0 address 0a:00:00:00:00:01", says: "hardware address 0a:00:00:00:00:01",
		},
		"the container's neighbour": {
			inside: "neigh del 169.254.1.1 dev eth0", says: "eth0 has no permanent neighbour 169.254.1.1",
		},
		"the node's neighbour": {
			node: "neigh del 10.77.0.2 dev {veth}", says: "has no permanent neighbour 10.77.0.2",
		},
		"the node's hardware address": {
			node: "link set {veth} address 0a:00:00:00:00:01", says: "has no permanent neighbour",
		},
		"the container's interface": {inside: "link set eth0 down", says: "is "},
		"the node's route":          {node: "route del 10.77.0.2", says: "no route to 10.77.0.2"},
		"the node's interface":      {node: "link del {veth}", says: "not found"},
		"the address":               {file: "pods/10.77.0.2", says: "10.77.0.2 is not given"},
		"all addresses":             {file: "pods", says: "has no address"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newTestbed(t, "1.1.0", plugin(ranges))
			c := b.add("x")
			switch {
			case tt.inside != "":
				c.ns.IP(tt.inside)
			case tt.node != "":
				b.node.IP(strings.ReplaceAll(tt.node, "{veth}", attach.HostInterface(c.ContainerID, c.IfName)))
			default:
				if err := os.Rename(filepath.Join(b.data, tt.file), filepath.Join(t.TempDir(), "lost")); err != nil {
					t.Fatal(err)
				}
			}
			err := b.check(c)
			if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
		})
	}
}

// GC removes the interfaces and addresses of containers that are gone, and of its network alone.
func TestGC(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(ranges))
	x, y := b.add("x"), b.add("y")
	lost := b.add("lost")
	if err := os.RemoveAll(filepath.Join(b.data, "pods", lost.addrs()[0].String())); err != nil { // the interface alone says that it was there
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(b.data, "pods", lost.addrs()[1].String())); err != nil {
		t.Fatal(err)
	}
	leaked := map[string]string{
		"10.77.0.100": "container-gone\r\neth0", // its namespace went without DEL
		"10.77.0.101": "",                       // the machine lost power
		"10.77.0.102": "\x00\x00\x00\x00",
		"10.77.0.103": "container-old",          // as host-local wrote it once
		"10.77.0.104": "container-x",            // the same of one that lives
		"10.77.0.105": "container-x\r\nnet1",    // another interface of one that lives
		"fd77::9":     "container-gone\r\neth0", //
	}
	for a, text := range leaked {
		if err := os.WriteFile(filepath.Join(b.data, "pods", a), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b.node.IP("link add mine type veth peer name mine2", "link set mine group 7")
	if err := b.gc(x, y); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(b.given(), " "); got != "10.77.0.104 10.77.0.2 10.77.0.3 fd77::2 fd77::3" {
		t.Errorf("still given: %s", got)
	}
	if n := len(b.veths()); n != 4 {
		t.Errorf("%d interfaces, want those of two containers and the administrator's two: %v", n, b.veths())
	}
	for _, c := range []*container{x, y} {
		if err := b.check(c); err != nil {
			t.Error(err)
		}
	}
	b.node.IP("link del mine")
	if err := b.gc(); err != nil {
		t.Fatal(err)
	}
	b.empty()
}

// STATUS says whether ADD would work, and why not.
func TestStatus(t *testing.T) {
	b := newTestbed(t, "1.1.0", plugin(`"podCIDRs": ["10.77.0.0/30"]`))
	forward := func(value string) {
		t.Helper()
		for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			if err := b.node.Sysctl(key, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	forward("0")
	says := func(want string) {
		t.Helper()
		if err := b.status(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	says("") // the first ADD turns it on
	x := b.add("x")
	says("1 are given")
	b.use("1.1.0", plugin(`"podCIDRs": ["10.77.0.0/29"]`))
	says("")
	forward("0")
	says("set net.ipv4.ip_forward=1")
	b.use("1.1.0", plugin(`"podCIDRs": ["fd77::/64"]`)) // what is not of its family does not matter
	says("set net.ipv6.conf.all.forwarding=1")
	b.use("1.1.0", plugin(`"podCIDRs": ["10.77.0.0/30"]`))
	b.del(x)
	says("")
}
