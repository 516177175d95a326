package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/store"
)

// nodesFor is how long the nodes' addresses are cached.
const nodesFor = 5 * time.Second

// nodeAddresses finds the node that has an address, for people: of each packet in a stream of
// drops. It scans all nodes now and then.
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

// beside counts the other nodes with addresses of a family on subnets of this one: each takes an
// entry in the kernel's neighbour table.
func (a *Agent) beside(is4 bool) (n int) {
	own := reading(a, func() []netip.Prefix { return slices.Clone(a.Compiler.Services.Config().HostAddresses) })
	a.Store.Read(func(v *store.View) {
		for _, node := range v.Nodes() {
			to := node.Address(is4)
			if node.Name != a.Node && slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(to) }) {
				n++
			}
		}
	})
	return n
}

// misnamed says that there are Nodes, but none of this node's name; "" otherwise. Either --node is
// wrong, or the node is not registered yet. In both cases, the objects declared for this node are
// not known.
func (a *Agent) misnamed() string {
	if a.Store.Node(a.Node) != nil {
		return ""
	}
	var names []string
	a.Store.Read(func(v *store.View) { names = v.NodeNames() })
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("there is no Node object named %s, but there are others (%s): set --node to this node's name", a.Node, model.FirstFew(names, 3))
}

// MissingNode says why this node's Node object is not known.
func (a *Agent) MissingNode() error {
	if slices.Contains(a.Source.Status().Unread, model.NodeKind) {
		return errors.New("no Nodes could be read: 'sluice status' says why")
	}
	if reason := a.misnamed(); reason != "" {
		return errors.New(reason)
	}
	return fmt.Errorf("there is no Node object named %s: it comes when the kubelet registers the node; set --node to the name that it registers", a.Node)
}

// sourceStatus is the source's status, with what is lacking in the objects themselves. If this
// node's object is missing, everything declared for the node is lacking, too.
func (a *Agent) sourceStatus() source.Status {
	s := Await(a.Source.Status(), a.Store)
	if reason := a.misnamed(); reason != "" {
		s.Lacking, s.LackingObjects = append(s.Lacking, reason), nil
	}
	return s
}
