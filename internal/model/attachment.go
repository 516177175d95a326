package model

import (
	"net/netip"
	"slices"
	"strings"
)

// Attachment is an interface of this node that leads to a pod, as who made it says: before the API
// tells the pod's addresses, and after they have changed.
type Attachment struct {
	Device string // the name of the node's end, by which the attachment is known
	Index  int    // of the node's end
	Node   string // this one
	Pod    Name
	Addrs  []netip.Addr
}

// Ref implements Object.
func (a *Attachment) Ref() Ref { return Ref{AttachmentKind, Name{Name: a.Device}} }

// Attachments finds the interfaces whose alias says which pod they lead to, as "namespace/name".
func (l *Links) Attachments(node string) (found []*Attachment) {
	for _, link := range l.Links {
		namespace, name, ok := strings.Cut(link.Alias, "/")
		if !link.Pod || !ok || namespace == "" || name == "" {
			continue
		}
		at := &Attachment{Device: link.Name, Index: link.Index, Node: node, Pod: Name{namespace, name}}
		for _, r := range l.Routes {
			if r.Link == link.Index && r.Prefix.IsSingleIP() {
				at.Addrs = append(at.Addrs, r.Prefix.Addr())
			}
		}
		found = append(found, at)
	}
	return found
}

// Attached is the pod with the addresses of its attachments, in place of those that its object has:
// those that both have come first. A pod without an address of its own stays as it is.
func (p *Pod) Attached(list []*Attachment) *Pod {
	if p == nil || p.HostNetwork || p.Finished {
		return p
	}
	var addrs []netip.Addr
	for _, at := range list {
		if at.Node == p.Node {
			addrs = append(addrs, at.Addrs...)
		}
	}
	if len(addrs) == 0 {
		return p
	}
	attached := *p
	attached.IPs = slices.DeleteFunc(slices.Clone(p.IPs), func(a netip.Addr) bool { return !slices.Contains(addrs, a) })
	for _, a := range addrs {
		if !slices.Contains(attached.IPs, a) {
			attached.IPs = append(attached.IPs, a)
		}
	}
	return &attached
}
