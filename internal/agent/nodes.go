package agent

import (
	"net/netip"
	"sync"
	"time"

	"sluice.dev/sluice/internal/store"
)

// nodesFor is how long the nodes' addresses are taken to stay as they are.
const nodesFor = 5 * time.Second

// nodeAddresses finds the node that has an address. It looks through all nodes now and
// then, as it is asked by people alone.
type nodeAddresses struct {
	mu   sync.Mutex
	read time.Time
	name map[netip.Addr]string
}

func (n *nodeAddresses) of(s *store.Store, addr netip.Addr) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.name == nil || time.Since(n.read) > nodesFor {
		n.name, n.read = map[netip.Addr]string{}, time.Now()
		s.Read(func(v *store.View) {
			for _, name := range v.NodeNames() {
				for _, a := range v.Node(name).IPs {
					n.name[a] = name
				}
			}
		})
	}
	return n.name[addr]
}
