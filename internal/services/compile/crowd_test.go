package compile_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
)

func crowdName(i int) model.Name { return model.Name{Namespace: "lb", Name: fmt.Sprintf("c%06d", i)} }

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// nestedAt is a prefix of each length in turn, so that prefixes lie in each other.
func nestedAt(i int) netip.Prefix {
	return netip.PrefixFrom(benchAddr(10, i*7919), 8+i%25).Masked()
}

func ranged(a netip.Addr) model.AddressRange { return model.AddressRange{First: a, Last: a} }

func crowdPool(i int, ranges ...model.AddressRange) *model.IPAddressPool {
	return &model.IPAddressPool{Name: crowdName(i), Ranges: ranges, Services: model.Everything()}
}

// crowds are many objects of a kind, or one large one, which cost most.
var crowds = []struct {
	name string
	make func(n int) []any
}{
	{"nothing", func(int) []any { return nil }},
	{"IPAddressPool, one of many ranges", func(n int) []any {
		p := crowdPool(0)
		for i := range n {
			p.Ranges = append(p.Ranges, ranged(benchAddr(198, 2*i)))
		}
		return []any{p}
	}},
	{"IPAddressPool, many of one address", func(n int) (list []any) {
		for i := range n {
			list = append(list, crowdPool(i, ranged(benchAddr(198, 2*i))))
		}
		return list
	}},
	{"IPAddressPool, many that overlap", func(n int) (list []any) {
		for i := range n {
			list = append(list, crowdPool(i, model.AddressRange{First: benchAddr(198, i), Last: benchAddr(198, i+n)}))
		}
		return list
	}},
	{"IPAddressPool and Namespace, selected", func(n int) (list []any) {
		for i := range n {
			p := crowdPool(i, ranged(benchAddr(198, 2*i)))
			p.Confined, p.NamespaceSelector = true, model.Equal("team", "red")
			list = append(list, p, &model.Namespace{Name: crowdName(i).Name, Labels: map[string]string{"team": "red"}})
		}
		return list
	}},
	{"L2Advertisement", func(n int) []any {
		list := []any{crowdPool(0, model.AddressRange{First: benchAddr(198, 0), Last: benchAddr(198, 1<<16)})}
		for i := range n {
			list = append(list, &model.L2Advertisement{Name: crowdName(i), Advertised: model.Advertised{Pools: []string{crowdName(0).Name}, Nodes: model.Everything(), Services: model.Everything()}})
		}
		return list
	}},
	{"L2Advertisement, of no node by selector", func(n int) []any {
		list := []any{crowdPool(0, model.AddressRange{First: benchAddr(198, 0), Last: benchAddr(198, 1<<16)})}
		for i := range n {
			none := model.And(model.Not(model.Has("kubernetes.io/os")), model.Not(model.Equal("kubernetes.io/hostname", fmt.Sprint("node-", i))))
			list = append(list, &model.L2Advertisement{Name: crowdName(i), Advertised: model.Advertised{Pools: []string{crowdName(0).Name}, Nodes: none, Services: model.Everything()},
				Preferred: []model.PreferredNodes{{Weight: 1, Nodes: none}}})
		}
		return list
	}},
	{"L2Advertisement and IPAddressPool", func(n int) (list []any) {
		for i := range n {
			list = append(list, crowdPool(i, ranged(benchAddr(198, 2*i))),
				&model.L2Advertisement{Name: crowdName(i), Advertised: model.Advertised{Pools: []string{crowdName(i).Name, "none"}, Nodes: model.Everything(), Services: model.Everything()}})
		}
		return list
	}},
	{"BGPAdvertisement", func(n int) []any {
		list := []any{crowdPool(0, model.AddressRange{First: benchAddr(198, 0), Last: benchAddr(198, 1<<16)})}
		for i := range n {
			list = append(list, &model.BGPAdvertisement{Name: crowdName(i), LocalPref: uint32(i), Length4: 32, Length6: 128, Advertised: model.Advertised{Nodes: model.Everything(), Services: model.Everything()}})
		}
		return list
	}},
	{"BGPAdvertisement and BGPPeer.metallb.io", func(n int) []any {
		list := []any{crowdPool(0, model.AddressRange{First: benchAddr(198, 0), Last: benchAddr(198, 1<<16)})}
		for i := range n {
			list = append(list,
				&model.BGPAdvertisement{Name: crowdName(i), Length4: 32, Length6: 128, Peers: []string{crowdName(i).Name}, Advertised: model.Advertised{Nodes: model.Everything(), Services: model.Everything()}},
				&model.MetalLBPeer{Name: crowdName(i), MyASN: 64512, PeerASN: 64513, Address: benchAddr(172, 1<<20+i), Nodes: model.Everything()})
		}
		return list
	}},
	{"BGPPeer.metallb.io of one address", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.MetalLBPeer{Name: crowdName(i), MyASN: 64512, PeerASN: 64513, Address: benchAddr(172, 1<<20), Nodes: model.Everything()})
		}
		return list
	}},
	{"Community", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.Community{Name: crowdName(i), Aliases: map[string]string{"a": fmt.Sprintf("64500:%d", i%65536)}})
		}
		return list
	}},
	{"IPPool, overlapping", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.IPPool{Name: crowdName(i).Name, CIDR: nestedAt(i), VXLAN: model.Always, NATOutgoing: true, DisableBGPExport: i%2 == 0})
		}
		return list
	}},
	{"IPPool, the same", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.IPPool{Name: crowdName(i).Name, CIDR: netip.MustParsePrefix("10.0.0.0/8"), NATOutgoing: true, DisableBGPExport: i%2 == 0})
		}
		return list
	}},
	{"IPPool, not exported in one", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.IPPool{Name: crowdName(i).Name, CIDR: single(benchAddr(10, 2*i)), DisableBGPExport: true})
		}
		return append(list, &model.IPPool{Name: "all", CIDR: netip.MustParsePrefix("10.0.0.0/8")})
	}},
	{"BlockAffinity of one node", func(n int) (list []any) {
		list = append(list, &model.IPPool{Name: "all", CIDR: netip.MustParsePrefix("10.0.0.0/8")})
		for i := range n {
			list = append(list, &model.BlockAffinity{Name: crowdName(i).Name, CIDR: netip.PrefixFrom(benchAddr(10, 64*i), 26), Node: "node-1"})
		}
		return list
	}},
	{"BlockAffinity of this node", func(n int) (list []any) {
		list = append(list, &model.IPPool{Name: "all", CIDR: netip.MustParsePrefix("10.0.0.0/8")})
		for i := range n {
			list = append(list, &model.BlockAffinity{Name: crowdName(i).Name, CIDR: netip.PrefixFrom(benchAddr(10, 64*i), 26), Node: "node-0"})
		}
		return list
	}},
	{"BlockAffinity, the same of many nodes", func(n int) (list []any) {
		list = append(list, &model.IPPool{Name: "all", CIDR: netip.MustParsePrefix("10.0.0.0/8")})
		for i := range n {
			list = append(list, &model.BlockAffinity{Name: crowdName(i).Name, CIDR: netip.MustParsePrefix("10.1.0.0/26"), Node: crowdName(i).Name},
				&model.Node{Name: crowdName(i).Name, IPs: []netip.Addr{benchAddr(192, 1<<20+i)}})
		}
		return list
	}},
	{"BlockAffinity and IPPool", func(n int) (list []any) {
		for i := range n {
			p := netip.PrefixFrom(benchAddr(10, 64*i), 26)
			list = append(list, &model.BlockAffinity{Name: crowdName(i).Name, CIDR: p, Node: "node-0"}, &model.IPPool{Name: crowdName(i).Name, CIDR: p})
		}
		return list
	}},
	{"Node", func(n int) (list []any) {
		list = append(list, &model.IPPool{Name: "all", CIDR: netip.MustParsePrefix("10.0.0.0/8")})
		for i := range n {
			list = append(list, &model.Node{Name: crowdName(i).Name, IPs: []netip.Addr{benchAddr(192, 1<<20+i)}, PodCIDRs: []netip.Prefix{nestedAt(i)}})
		}
		return list
	}},
	{"Node, of one address and pod CIDR", func(n int) (list []any) {
		list = append(list, &model.IPPool{Name: "all", CIDR: netip.MustParsePrefix("10.0.0.0/8")})
		for i := range n {
			list = append(list, &model.Node{Name: crowdName(i).Name, IPs: []netip.Addr{benchAddr(192, 1<<20)}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}})
		}
		return list
	}},
	{"Node, one of many addresses", func(n int) (list []any) {
		o := &model.Node{Name: "large"}
		for i := range n {
			o.IPs = append(o.IPs, benchAddr(192, 1<<20+i))
		}
		return []any{o}
	}},
	{"Node, this one of many addresses and pod CIDRs", func(n int) (list []any) {
		o := &model.Node{Name: "node-0"}
		for i := range n {
			o.IPs = append(o.IPs, benchAddr(192, i))
			o.PodCIDRs = append(o.PodCIDRs, netip.PrefixFrom(benchAddr(10, 64*i), 26))
		}
		return []any{o, &model.IPPool{Name: "all", CIDR: netip.MustParsePrefix("10.0.0.0/8")}}
	}},
	{"BGPConfiguration, of many ranges", func(n int) []any {
		c := &model.BGPConfiguration{Name: model.BGPDefault, Communities: map[string]string{}}
		for i := range n {
			c.ClusterIPs = append(c.ClusterIPs, single(benchAddr(172, 1<<20+i)))
			c.Communities[fmt.Sprint("c", i)] = "64500:1"
			c.Advertisements = append(c.Advertisements, model.PrefixAdvertisement{CIDR: single(benchAddr(172, 1<<20+i)), Communities: []string{"64500:1"}})
		}
		return []any{c}
	}},
	{"BGPConfiguration, of the nodes", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.BGPConfiguration{Name: model.BGPNodePrefix + crowdName(i).Name})
		}
		return list
	}},
	{"BGPPeer of one address", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.BGPPeer{Name: crowdName(i).Name, Address: benchAddr(172, 1<<20), AS: 64513})
		}
		return list
	}},
	{"BGPPeer, of other nodes", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.BGPPeer{Name: crowdName(i).Name, Node: crowdName(i).Name, Address: benchAddr(172, 1<<20+i), AS: 64513})
		}
		return list
	}},
	{"BGPPeer, of nodes by selector", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.BGPPeer{Name: crowdName(i).Name, Peers: model.Everything()})
		}
		return list
	}},
	{"BGPPeer, of one node each by selector", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.BGPPeer{Name: crowdName(i).Name, Peers: model.Equal("kubernetes.io/hostname", fmt.Sprint("node-", i%1000))})
		}
		return list
	}},
	{"BGPPeer, of no node by selector", func(n int) (list []any) {
		for i := range n {
			none := model.And(model.Not(model.Has("kubernetes.io/os")), model.Not(model.Equal("kubernetes.io/hostname", fmt.Sprint("node-", i))))
			list = append(list, &model.BGPPeer{Name: crowdName(i).Name, Nodes: model.Not(none), Peers: none})
		}
		return list
	}},
	{"BGPPeer, without a password", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.BGPPeer{Name: crowdName(i).Name, Peers: model.Everything(), Password: model.SecretRef{Name: "none", Key: "none"}})
		}
		return list
	}},
	{"BGPPeer of many addresses", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.BGPPeer{Name: crowdName(i).Name, Address: benchAddr(172, 1<<20+i), AS: 64513})
		}
		return list
	}},
	{"BGPFilter, one of many rules for all nodes", func(n int) []any {
		f := &model.BGPFilter{Name: "f"}
		for i := range n {
			f.Import = append(f.Import, model.BGPFilterRule{CIDR: single(benchAddr(10, i))})
		}
		return []any{f, &model.BGPPeer{Name: "all", Peers: model.Everything(), Filters: []string{"f"}}}
	}},
	{"BGPFilter", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.BGPFilter{Name: crowdName(i).Name})
		}
		return list
	}},
	{"Namespace", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.Namespace{Name: crowdName(i).Name, Labels: map[string]string{"a": "b"}})
		}
		return list
	}},
	{"ServiceAccount", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.ServiceAccount{Name: crowdName(i), Labels: map[string]string{"a": "b"}})
		}
		return list
	}},
	{"Tier", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.Tier{Name: crowdName(i).Name})
		}
		return list
	}},
	{"Service, of one external IP", func(n int) (list []any) {
		for i := range n {
			s := benchService(1<<20 + i)
			s.ExternalIPs = []netip.Addr{benchAddr(199, 0)}
			list = append(list, s)
		}
		return list
	}},
	{"Service, of type LoadBalancer", func(n int) (list []any) {
		for i := range n {
			list = append(list, crowdService(1<<20+i))
		}
		return append(list, crowdPool(0, model.AddressRange{First: benchAddr(198, 0), Last: benchAddr(198, 1<<16)}))
	}},
	{"Service, that waits for an address", func(n int) (list []any) {
		for i := range n {
			list = append(list, crowdService(1<<20+i))
		}
		return append(list, crowdPool(0, ranged(benchAddr(198, 0))))
	}},
	{"Service, that shares an address", func(n int) (list []any) {
		for i := range n {
			s := crowdService(1<<20 + i)
			s.LoadBalancer.SharingKey = "k"
			s.Ports[0].Port = uint16(1 + i%60000)
			list = append(list, s)
		}
		return append(list, crowdPool(0, model.AddressRange{First: benchAddr(198, 0), Last: benchAddr(198, 1<<16)}))
	}},
	{"HostEndpoint", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.HostEndpoint{Name: crowdName(i).Name, Node: "node-0", Interface: "eth0", Addresses: []netip.Addr{benchAddr(192, i)}})
		}
		return list
	}},
	{"Pod, of one address", func(n int) (list []any) {
		for i := range n {
			list = append(list, &model.Pod{Name: crowdName(i), Node: "node-1", IPs: []netip.Addr{benchAddr(10, 1)}})
		}
		return list
	}},
	{"Pod, one of many ports", func(n int) (list []any) {
		p := &model.Pod{Name: crowdName(0), Node: "node-1", IPs: []netip.Addr{benchAddr(10, 1)}}
		for i := range n {
			p.Ports = append(p.Ports, model.ContainerPort{Name: fmt.Sprint("p", i), Protocol: model.TCP, Port: uint16(i)})
		}
		return []any{p}
	}},
}

func crowdService(i int) *model.Service {
	s := benchService(i)
	s.LoadBalancer = &model.LoadBalancer{Wanted: true}
	return s
}

func crowdNode(i int) *model.Node {
	name := fmt.Sprint("node-", i)
	return &model.Node{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
		IPs: []netip.Addr{benchAddr(192, i)}, PodCIDRs: []netip.Prefix{netip.PrefixFrom(benchAddr(11, 256*i), 24)}}
}

// worked is how long this process has worked, whatever else the machine did.
func worked(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkCrowd compiles many objects of a kind beside 1,000 Nodes, and says what they cost, and
// one of them, a Service, a Node and all faults beside them.
func BenchmarkCrowd(b *testing.B) {
	for _, crowd := range crowds {
		for _, n := range []int{5_000, 20_000} {
			b.Run(fmt.Sprintf("%s/%d", crowd.name, n), func(b *testing.B) {
				s := benchStore(benchScale{100, 2})
				for i := range 20 {
					s.Apply(events(crowdService(200 + i)))
				}
				for i := range 1000 {
					s.Apply(events(crowdNode(i)))
				}
				c := compile.New(compile.Config{Config: services.Config{Node: "node-0", Fabric: true, NATOutgoing: true}, Policy: true, Addresses: true, BGP: true})
				c.SetUnderlay([]model.HostAddress{{Prefix: netip.PrefixFrom(benchAddr(192, 0), 16), Device: "eth0", MTU: 1500}})
				c.Update(s, s.Take())
				before := heap()
				clock := func(name string, do func()) {
					begin := worked(b)
					do()
					b.ReportMetric(float64((worked(b)-begin).Microseconds())/1000, name+"-ms")
				}
				come := events(crowd.make(n)...)
				clock("come", func() { s.Apply(come); c.Update(s, s.Take()) })
				one := come[len(come)*2/3 : min(len(come), len(come)*2/3+1)]
				gone := slices.Clone(one)
				for i := range gone {
					gone[i].Object = nil
				}
				clock("one-goes", func() { s.Apply(gone); c.Update(s, s.Take()) })
				clock("one-comes", func() { s.Apply(one); c.Update(s, s.Take()) })
				clock("change", func() { s.Apply(events(benchSlice(0, 1))); c.Update(s, s.Take()) })
				clock("lb", func() { v := crowdService(200); v.Ports[0].Port++; s.Apply(events(v)); c.Update(s, s.Take()) })
				clock("node", func() { n := crowdNode(7); n.NotReady = true; s.Apply(events(n)); c.Update(s, s.Take()) })
				clock("label", func() { n := crowdNode(7); n.Labels["rack"] = "1"; s.Apply(events(n)); c.Update(s, s.Take()) })
				clock("namespace", func() { s.Apply(events(&model.Namespace{Name: "new"})); c.Update(s, s.Take()) })
				faults := 0
				clock("issues", func() { faults = len(c.Issues()) })
				b.ReportMetric(float64(faults), "faults")
				b.ReportMetric(float64(heap()-before)/1e6, "MB")
				runtime.KeepAlive(c)
				for i := range come {
					come[i].Object = nil
				}
				clock("go", func() { s.Apply(come); c.Update(s, s.Take()) })
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
