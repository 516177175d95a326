package world

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Flow are datagrams whose right fate never changes.
type Flow struct {
	Name      string // letters, digits and -
	Host      *Host  // who sends them
	From, To  string // an address of the host; an address and a port that no other flow of the address has
	Gets      string // addresses that they leave the node for, as nft writes them; "": they are denied
	As        string // the source that they leave with; "": From
	Untracked bool   // connection tracking does not know them
	Early     bool   // they are denied before anything can count them

	refused atomic.Int64 // by an answer to the sender
}

func (f *Flow) port() string { return f.To[strings.LastIndex(f.To, ":")+1:] }

// Flood has hosts send the flows through a node, over and over, while something is done. What
// leaves the node is counted and dropped there, before a connection is remembered: so each packet
// is the first one of its connection. It returns how many packets there were. The test fails for
// each that left though it is denied, did not leave, or left in another way.
func (h *Host) Flood(flows []*Flow, while func()) (packets int64) {
	h.t.Helper()
	h.probe(flows)
	var over atomic.Bool
	var senders sync.WaitGroup
	of := map[*Host][]*Flow{}
	for _, f := range flows {
		of[f.Host] = append(of[f.Host], f)
	}
	for host, flows := range of {
		senders.Go(func() {
			if err := host.Do(func() error { return send(flows, &over) }); err != nil {
				h.t.Error(err)
			}
		})
	}
	while()
	over.Store(true)
	senders.Wait()
	return h.fates(flows)
}

// probe makes a table that counts packets as they come, and as they leave.
func (h *Host) probe(flows []*Flow) {
	h.t.Helper()
	var probe strings.Builder
	probe.WriteString("table inet probe {\n")
	for _, f := range flows {
		fmt.Fprintf(&probe, "counter %[1]s { }\ncounter come-%[1]s { }\ncounter wrong-%[1]s { }\n", f.Name)
	}
	probe.WriteString("counter wrong { }\nchain coming { type filter hook prerouting priority -460\n")
	var leaving strings.Builder
	for _, f := range flows {
		fmt.Fprintf(&probe, "udp dport %s ip saddr %s counter name come-%s\n", f.port(), f.From, f.Name)
		if f.Gets == "" {
			continue
		}
		as, tracked := f.As, "new"
		if as == "" {
			as = f.From
		}
		if f.Untracked {
			tracked = "untracked"
		}
		fmt.Fprintf(&leaving, "udp dport %s ip saddr %s ip daddr %s ct state %s counter name %s drop\n", f.port(), as, f.Gets, tracked, f.Name)
	}
	for _, f := range flows {
		fmt.Fprintf(&leaving, "udp dport %s ip saddr %s counter name wrong-%s drop\n", f.port(), f.From, f.Name)
	}
	fmt.Fprintf(&probe, "}\nchain leaving { type filter hook postrouting priority 300\nmeta l4proto != udp accept\n%scounter name wrong drop\n}\n}\n", leaving.String())
	file := filepath.Join(h.t.TempDir(), "probe.nft")
	h.must(os.WriteFile(file, []byte(probe.String()), 0o600))
	h.Exec("nft", "-f", file)
}

// send sends packets of flows, from the calling thread's network, until it is over.
func send(flows []*Flow, over *atomic.Bool) error {
	var conns []*net.UDPConn
	for _, f := range flows {
		to, err := netip.ParseAddrPort(f.To)
		if err != nil {
			return err
		}
		c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(f.From)}, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		conns = append(conns, c)
	}
	for !over.Load() {
		for i, c := range conns {
			if _, err := c.Write([]byte("x")); err != nil {
				flows[i].refused.Add(1)
			}
		}
	}
	return nil
}

var probeCounter = regexp.MustCompile(`counter ([\w-]+) \{\s+packets (\d+)`)

// fates compares what has left the node with what has come.
func (h *Host) fates(flows []*Flow) (packets int64) {
	h.t.Helper()
	counted := map[string]int64{}
	for before := map[string]int64(nil); before == nil || !maps.Equal(before, counted); { // the last ones are on their way
		before = maps.Clone(counted)
		for _, m := range probeCounter.FindAllStringSubmatch(h.Exec("nft", "list", "counters", "table", "inet", "probe"), -1) {
			counted[m[1]], _ = strconv.ParseInt(m[2], 10, 64)
		}
	}
	for _, f := range flows {
		come, left, refused := counted["come-"+f.Name], counted[f.Name], f.refused.Load()
		packets += come
		right := come
		if f.Gets == "" {
			right = 0
		}
		wrong := counted["wrong-"+f.Name]
		if left != right || wrong > 0 || refused > 0 && f.Gets != "" {
			h.t.Errorf("%s: %d packets have come, %d have left as they should, want %d; %d have left otherwise, %d were refused", f.Name, come, left, right, wrong, refused)
		}
		if come == 0 && !f.Early {
			h.t.Errorf("%s: no packet has come", f.Name)
		}
	}
	if n := counted["wrong"]; n > 0 {
		h.t.Errorf("%d packets have left that are of no flow, or from another address", n)
	}
	return packets
}
