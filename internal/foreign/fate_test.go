package foreign_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/test/world"
)

// A client, a router with rules, and a server behind it: what is said of a packet is what becomes
// of it.
func TestFateOfPackets(t *testing.T) {
	router, client, server := world.NewHost(t, "router"), world.NewHost(t, "client"), world.NewHost(t, "server")
	router.Join("in0", client, "eth0")
	router.Join("out0", server, "eth0")
	router.Address("in0", "10.7.0.1/24", "fd07::1/64")
	router.Address("out0", "10.8.0.1/24", "fd08::1/64")
	client.Address("eth0", "10.7.0.2/24", "fd07::2/64")
	server.Address("eth0", "10.8.0.2/24", "fd08::2/64")
	client.Gateway("10.7.0.1", "fd07::1")
	server.Gateway("10.8.0.1", "fd08::1")
	router.Forward()
	server.Serve("server", ":80", ":8080")
	router.Serve("router", ":80", ":8080")
	in, out := router.Device("in0").Attrs().Index, router.Device("out0").Attrs().Index

	const filter = "table inet f { %s\n}"
	forward := func(rules string) string {
		return fmt.Sprintf(filter, "chain c { type filter hook forward priority 0; "+rules+"; }")
	}
	type fate int
	const passes, ends, may = fate(0), fate(1), fate(2)
	for _, c := range []struct {
		name, program, rules string
		to                   string // 10.8.0.2:80 where it is empty
		network              string // tcp
		want                 fate
		says                 string
	}{
		{"no rules", "nft", "", "", "", passes, ""},
		{"another address", "nft", forward("ip daddr 10.8.0.3 drop"), "", "", passes, ""},
		{"its address", "nft", forward("counter; ip daddr 10.8.0.2 drop"), "", "", ends, "rule 2 of nftables chain inet f c (forward) drops it"},
		{"its comment", "nft", forward(`ip daddr 10.8.0.2 drop comment "closed"`), "", "", ends, `rule 1 ("closed") of`},
		{"its network", "nft", forward("ip saddr 10.7.0.0/24 tcp dport 80 reject"), "", "", ends, "rejects it"},
		{"another network", "nft", forward("ip saddr 10.6.0.0/15 ip daddr != 10.8.0.0/16 drop"), "", "", passes, ""},
		{"a set of ports", "nft", forward("tcp dport { 22, 80, 443 } drop"), "", "", ends, "drops it"},
		{"a set of other ports", "nft", forward("tcp dport { 22, 443, 8080-8090 } drop"), "", "", passes, ""},
		{"a range of ports", "nft", forward("tcp dport { 22, 79-90 } drop"), "", "", ends, "drops it"},
		{"adjacent ranges", "nft", forward("tcp dport { 70-79, 81-90 } drop"), "", "", passes, ""},
		{"none of a set", "nft", forward("tcp dport != { 22, 443 } drop"), "", "", ends, "drops it"},
		{"a range", "nft", forward("tcp dport 1-1023 drop"), "", "", ends, "drops it"},
		{"not in a range", "nft", forward("tcp dport != 1-1023 drop"), "", "", ends, "the answer: "},
		{"more than", "nft", forward("tcp dport > 80 drop"), "", "", ends, "the answer: "},
		{"a concatenation", "nft", forward("ip saddr . tcp dport { 10.7.0.2 . 80, 10.7.0.3 . 81 } drop"), "", "", ends, "drops it"},
		{"another concatenation", "nft", forward("ip saddr . tcp dport { 10.7.0.2 . 81, 10.7.0.3 . 80 } drop"), "", "", passes, ""},
		{"ranges in a concatenation", "nft", forward("ip saddr . tcp dport { 10.7.0.0/24 . 70-90 } drop"), "", "", ends, "drops it"},
		{"other ranges in a concatenation", "nft", forward("ip saddr . tcp dport { 10.7.0.0/24 . 81-90, 10.6.0.0/24 . 80 } drop"), "", "", passes, ""},
		{"a named set", "nft", fmt.Sprintf(filter, "set s { type ipv4_addr; flags interval; elements = { 10.7.0.0/25, 192.0.2.1 }; }\n chain c { type filter hook forward priority 0; ip saddr @s drop; }"), "", "", ends, "drops it"},
		{"a named set without it", "nft", fmt.Sprintf(filter, "set s { type ipv4_addr; flags interval; elements = { 10.7.0.128/25, 192.0.2.1 }; }\n chain c { type filter hook forward priority 0; ip saddr @s drop; }"), "", "", passes, ""},
		{"an empty set", "nft", fmt.Sprintf(filter, "set s { type ipv4_addr; }\n chain c { type filter hook forward priority 0; ip saddr @s drop; }"), "", "", passes, ""},
		{"a map of verdicts", "nft", forward("tcp dport vmap { 22 : accept, 80 : drop }"), "", "", ends, "drops it"},
		{"a map of verdicts without it", "nft", forward("tcp dport vmap { 22 : drop, 80 : accept }; tcp sport != 80 drop"), "", "", passes, ""},
		{"a map that jumps", "nft", fmt.Sprintf(filter, "chain x { tcp dport 80 drop; }\n chain c { type filter hook forward priority 0; iifname vmap { \"in0\" : jump x }; }"), "", "", ends, "rule 1 of chain x, to which nftables chain inet f c (forward) jumps, drops it"},
		{"states", "nft", forward("ct state vmap { established : accept, related : accept, invalid : drop }; tcp dport 22 accept; drop"), "", "", ends, "rule 3 "},
		{"new connections", "nft", forward("ct state new tcp dport 80 drop"), "", "", ends, "drops it"},
		{"invalid ones", "nft", forward("ct state invalid drop"), "", "", passes, ""},
		{"no SYN", "nft", forward("tcp flags & (fin|syn|rst|ack) != syn ct state new drop"), "", "", passes, ""},
		{"SYN", "nft", forward("tcp flags syn drop"), "", "", ends, "drops it"},
		{"fragments", "nft", forward("ip frag-off & 0x1fff != 0 drop"), "", "", passes, ""},
		{"the interface", "nft", forward(`iifname "in0" oifname "out0" drop`), "", "", ends, "drops it"},
		{"another interface", "nft", forward(`iifname "out0" ct state new drop`), "", "", passes, ""},
		{"interfaces that begin so", "nft", forward(`iifname "in*" drop`), "", "", ends, "drops it"},
		{"the interface's index", "nft", forward("oif out0 drop"), "", "", ends, "drops it"},
		{"UDP", "nft", forward("meta l4proto udp drop"), "", "", passes, ""},
		{"UDP, asked by UDP", "nft", forward("udp dport 80 drop"), "", "udp", ends, "drops it"},
		{"the other family", "nft", forward("meta nfproto ipv6 drop"), "", "", passes, ""},
		{"IPv6", "nft", forward("ip6 saddr fd07::/64 drop"), "[fd08::2]:80", "", ends, "drops it"},
		{"IPv6, another", "nft", forward("ip6 saddr { fd09::/64, fd0a::/64 } drop"), "[fd08::2]:80", "", passes, ""},
		{"a table of the other family", "nft", "table ip6 f { chain c { type filter hook forward priority 0; policy drop; }\n}", "", "", passes, ""},
		{"a policy", "nft", forward("policy drop; tcp dport 22 accept"), "", "", ends, "none of its rules accepts it"},
		{"a policy and what it accepts", "nft", forward("policy drop; ct state established accept; tcp dport 80 accept"), "", "", passes, ""},
		{"accepted first, elsewhere", "nft", "table inet g { chain c { type filter hook forward priority -10; accept; }\n}\n" + forward("drop"), "", "", ends, "nftables chain inet f c"},
		{"returns before it", "nft", fmt.Sprintf(filter, "chain x { tcp dport 80 return; tcp sport 80 return; drop; }\n chain c { type filter hook forward priority 0; jump x; }"), "", "", passes, ""},
		{"goes to a chain", "nft", fmt.Sprintf(filter, "chain x { tcp dport 22 drop; }\n chain c { type filter hook forward priority 0; goto x; drop; }"), "", "", passes, ""},
		{"a policy after goto", "nft", fmt.Sprintf(filter, "chain x { tcp dport 22 drop; }\n chain c { type filter hook forward priority 0; policy drop; goto x; accept; }"), "", "", ends, "none of its rules"},
		{"a rate", "nft", forward("limit rate over 1000/second drop"), "", "", may, "may drop it"},
		{"a mark that nobody sets", "nft", forward("meta mark 0x10 drop"), "", "", passes, ""},
		{"a mark", "nft", fmt.Sprintf(filter, "chain a { type filter hook prerouting priority -150; meta mark set 0x10; }\n chain c { type filter hook forward priority 0; meta mark & 0x10 == 0x10 drop; }"), "", "", may, "may drop it"},
		{"before routing", "nft", fmt.Sprintf(filter, "chain c { type filter hook prerouting priority -300; ip daddr 10.8.0.0/24 tcp dport 80 drop; }"), "", "", ends, "(prerouting) drops it"},
		{"behind routing", "nft", fmt.Sprintf(filter, "chain c { type filter hook postrouting priority 0; oifname \"out0\" tcp dport 80 drop; }"), "", "", ends, "(postrouting) drops it"},
		{"answers", "nft", forward("ip saddr 10.8.0.2 tcp sport 80 drop"), "", "", ends, "the answer: rule 1 of"},
		{"answers, by their interface", "nft", forward(`iifname "out0" drop`), "", "", ends, "the answer: "},
		{"answers of others", "nft", forward("ip saddr 10.8.0.3 tcp sport 80 drop"), "", "", passes, ""},
		{"what is for the router", "nft", fmt.Sprintf(filter, "chain c { type filter hook input priority 0; tcp dport 80 drop; }"), "10.7.0.1:80", "", ends, "(input) drops it"},
		{"what is not for the router", "nft", fmt.Sprintf(filter, "chain c { type filter hook input priority 0; policy drop; }"), "", "", passes, ""},
		{"what the router answers", "nft", fmt.Sprintf(filter, "chain c { type filter hook output priority 0; tcp sport 80 drop; }"), "10.7.0.1:80", "", ends, "the answer: "},

		{"a device's chain", "nft", "table netdev f { chain c { type filter hook ingress device in0 priority 0; ip daddr 10.8.0.2 tcp dport 80 drop; }\n}", "", "", may, "(ingress) may drop it"},
		{"a device's chain, another address", "nft", "table netdev f { chain c { type filter hook ingress device in0 priority 0; ip daddr 10.8.0.3 drop; }\n}", "", "", passes, ""},
		{"a device's chain of inet", "nft", fmt.Sprintf(filter, "chain c { type filter hook ingress device in0 priority 0; tcp dport 80 drop; }"), "", "", may, "(ingress) may drop it"},
		{"another destination", "nft", fmt.Sprintf(filter, "chain c { type nat hook prerouting priority -100; ip daddr 10.8.0.2 tcp dport 80 dnat ip to 10.8.0.3; }"), "", "", may, "gives it another address"},
		{"another destination, of another address", "nft", fmt.Sprintf(filter, "chain c { type nat hook prerouting priority -100; ip daddr 10.8.0.4 tcp dport 80 dnat ip to 10.8.0.3; }"), "", "", passes, ""},
		{"another source", "nft", fmt.Sprintf(filter, "chain c { type nat hook postrouting priority 100; ip saddr 10.7.0.0/24 masquerade; }"), "", "", may, "gives it another address"},
		{"not tracked", "nft", fmt.Sprintf(filter, "chain c { type filter hook prerouting priority -300; ip daddr 10.8.0.0/24 notrack; }"), "", "", may, "takes it from connection tracking"},
		{"not tracked and accepted", "nft", fmt.Sprintf(filter, "chain c { type filter hook forward priority 0; ip daddr 10.8.0.0/24 notrack accept; ip saddr 10.8.0.0/24 accept; drop; }"), "", "", may, "takes it from connection tracking"},
		{"iptables: not tracked", "iptables-nft", "COMMIT\n*raw\n-A PREROUTING -d 10.8.0.2/32 -j CT --notrack", "", "", may, "takes it from connection tracking"},
		{"legacy: not tracked", "iptables-legacy", "COMMIT\n*raw\n-A PREROUTING -d 10.8.0.2/32 -j CT --notrack", "", "", may, "takes it from connection tracking"},
		{"iptables: another source", "iptables-nft", "COMMIT\n*nat\n-A POSTROUTING -s 10.7.0.0/24 ! -o lo -j MASQUERADE", "", "", may, "rule 1 of nftables chain ip nat POSTROUTING (postrouting) gives it another address"},
		{"legacy: another destination", "iptables-legacy", "COMMIT\n*nat\n-A PREROUTING -d 10.8.0.2/32 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.8.0.3:80", "", "", may, "gives it another address"},

		{"iptables: a port", "iptables-nft", "-A FORWARD -p tcp -m tcp --dport 80 -j DROP", "", "", ends, "see that rule: iptables-nft -t filter -S FORWARD 1"},
		{"iptables: another port", "iptables-nft", "-A FORWARD -p tcp -m tcp --dport 81 -j DROP", "", "", passes, ""},
		{"iptables: ports", "iptables-nft", "-A FORWARD -p tcp -m multiport --dports 22,80:90 -j REJECT", "", "", ends, "rejects it"},
		{"iptables: other ports", "iptables-nft", "-A FORWARD -p tcp -m multiport ! --ports 22,80:90 -j REJECT", "", "", passes, ""},
		{"iptables: states", "iptables-nft", "-A FORWARD -m conntrack --ctstate INVALID -j DROP\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -m comment --comment \"no more\" -j DROP", "", "", ends, `rule 3 ("no more")`},
		{"iptables: not new", "iptables-nft", "-A FORWARD -m conntrack ! --ctstate NEW,ESTABLISHED -j DROP", "", "", passes, ""},
		{"iptables: no SYN", "iptables-nft", "-A FORWARD -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -m conntrack --ctstate NEW -j DROP", "", "", passes, ""},
		{"iptables: a chain", "iptables-nft", ":NO - [0:0]\n-A FORWARD -i in+ -j NO\n-A NO -s 10.7.0.0/24 ! -d 10.8.0.3 -j DROP", "", "", ends, "chain NO, to which"},
		{"iptables: a chain that returns", "iptables-nft", ":NO - [0:0]\n-A FORWARD -i in+ -j NO\n-A NO -d 10.8.0.2/32 -j RETURN\n-A NO -j DROP", "", "", passes, ""},
		{"iptables: a mark", "iptables-nft", "-A FORWARD -m mark --mark 0x8000/0x8000 -j DROP", "", "", passes, ""},
		{"iptables: a rate", "iptables-nft", "-A FORWARD -m limit --limit 1/hour -j ACCEPT\n-A FORWARD -j DROP", "", "", may, "may drop it"},
		{"iptables: the address's type", "iptables-nft", "-A FORWARD -m addrtype --dst-type BROADCAST -j DROP", "", "", may, "may drop it"},

		{"legacy: a port", "iptables-legacy", "-A FORWARD -p tcp -m tcp --dport 80 -j DROP", "", "", ends, "see that rule: iptables-legacy -t filter -S FORWARD 1"},
		{"legacy: another port", "iptables-legacy", "-A FORWARD -p tcp -m tcp --dport 81 -j DROP", "", "", passes, ""},
		{"legacy: ports", "iptables-legacy", "-A FORWARD -p tcp -m multiport --dports 22,80:90 -j REJECT", "", "", ends, "rejects it"},
		{"legacy: other ports", "iptables-legacy", "-A FORWARD -p tcp -m multiport ! --ports 22,80:90 -j REJECT", "", "", passes, ""},
		{"legacy: states", "iptables-legacy", "-A FORWARD -m conntrack --ctstate INVALID -j DROP\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -m comment --comment \"no more\" -j DROP", "", "", ends, `rule 3 ("no more")`},
		{"legacy: not new", "iptables-legacy", "-A FORWARD -m conntrack ! --ctstate NEW,ESTABLISHED -j DROP", "", "", passes, ""},
		{"legacy: no SYN", "iptables-legacy", "-A FORWARD -p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -m conntrack --ctstate NEW -j DROP", "", "", passes, ""},
		{"legacy: a chain", "iptables-legacy", ":NO - [0:0]\n-A FORWARD -i in+ -j NO\n-A NO -s 10.7.0.0/24 ! -d 10.8.0.3/32 -j DROP", "", "", ends, "chain NO, to which"},
		{"legacy: goes to a chain", "iptables-legacy", ":NO - [0:0]\n-A FORWARD -i in+ -g NO\n-A FORWARD -s 10.7.0.2/32 -j DROP\n-A NO -d 10.8.0.2/32 -j RETURN\n-A NO -j DROP", "", "", passes, ""},
		{"legacy: a mark", "iptables-legacy", "-A FORWARD -m mark --mark 0x8000/0x8000 -j DROP", "", "", passes, ""},
		{"legacy: a fragment", "iptables-legacy", "-A FORWARD -f -j DROP\n-A FORWARD -o out0 -p udp -j DROP", "", "", passes, ""},
		{"legacy: a rate", "iptables-legacy", "-A FORWARD -m limit --limit 1/hour -j ACCEPT\n-A FORWARD -j DROP", "", "", may, "may drop it"},
		{"legacy: answers", "iptables-legacy", "-A FORWARD -p tcp -m tcp --sport 80 -j DROP", "", "", ends, "the answer: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.network == "" {
				c.network = "tcp"
			}
			if c.to == "" {
				c.to = "10.8.0.2:80"
			}
			set(t, router, c.program, c.rules)
			to := netip.MustParseAddrPort(c.to)
			way := foreign.Way{Source: netip.MustParseAddr("10.7.0.2"), Destination: to.Addr(), Asked: to, DestinationPort: to.Port(), Protocol: 6, In: in, Out: out, Inside: true}
			if c.network == "udp" {
				way.Protocol = 17
			}
			if to.Addr().Is6() {
				way.Source = netip.MustParseAddr("fd07::2")
			}
			if to.Addr() == netip.MustParseAddr("10.7.0.1") {
				way.ToNode, way.Out = true, 0
			}
			var maybe []foreign.Obstacle
			var does *foreign.Obstacle
			found, err := foreign.Read(t.Context(), router.NS.NS)
			if err == nil {
				maybe, does, err = found.Meets(way)
			}
			if err != nil {
				t.Fatal(err)
			}
			said, text := passes, ""
			switch {
			case does != nil:
				said, text = ends, does.Seen+"; "+does.Do
			case len(maybe) > 0:
				said, text = may, maybe[0].Seen
			}
			if said != c.want || !strings.Contains(text, c.says) {
				t.Errorf("it is said %d, %q; want %d, %q", said, text, c.want, c.says)
			}
			limit := world.Patience
			if c.want != passes {
				limit = 100 * time.Millisecond
			}
			if _, err := client.Ask(c.network, "", c.to, limit); c.want != may && (err == nil) != (c.want == passes) {
				t.Errorf("the packet: %v", err)
			}
		})
	}
}

// set gives a host rules in place of those that it has.
func set(t *testing.T, host *world.Host, program, rules string) {
	t.Helper()
	host.Exec("nft", "flush ruleset")
	for _, table := range []string{"filter", "nat", "raw"} {
		host.Exec("iptables-legacy", "-t", table, "-F")
		host.Exec("iptables-legacy", "-t", table, "-X")
	}
	if program == "nft" {
		host.Exec("nft", rules)
		return
	}
	host.Exec("sh", "-c", fmt.Sprintf("printf '*filter\\n%%s\\nCOMMIT\\n' '%s' | %s-restore", rules, program))
}
