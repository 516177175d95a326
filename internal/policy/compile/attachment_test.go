package compile

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// An address belongs to the pod and the interface that its attachment says, whatever the links and
// the other pods say that claim it.
func TestAttachments(t *testing.T) {
	s := store.New()
	c := New(Config{Node: "here"})
	apply := func(objects ...model.Object) {
		var events []store.Event
		for _, o := range objects {
			events = append(events, store.Event{Kind: o.Ref().Kind, Name: o.Ref().Name, Object: o})
		}
		s.Apply(events)
		dirty := s.Take()
		s.Read(func(v *store.View) { c.Step(v, dirty, nil, all) })
	}
	step := func() { s.Read(func(v *store.View) { c.Step(v, store.Dirty{}, nil, all) }) }
	shows := func(what, want string) {
		t.Helper()
		if got := show(c.Policy()); got != want {
			t.Errorf("%s:\ngot  %swant %s", what, got, want)
		}
	}
	a := netip.MustParseAddr("10.1.0.1")
	links := func(device int) {
		c.SetLinks(model.Links{
			Links:  []model.Link{{Index: device, Name: "veth", Pod: true}},
			Routes: []model.LinkRoute{{Prefix: netip.PrefixFrom(a, 32), Link: device}},
		})
	}
	web := &model.Pod{Name: model.Name{Namespace: "shop", Name: "web"}, Node: "here"}
	old := &model.Pod{Name: model.Name{Namespace: "shop", Name: "a-pod-before"}, Node: "here", IPs: []netip.Addr{a}}
	at := func(index int, pod *model.Pod) *model.Attachment {
		return &model.Attachment{Device: "veth" + string(rune('0'+index)), Index: index, Node: "here", Pod: pod.Name, Addrs: []netip.Addr{a}}
	}
	links(3)
	apply(web, old)
	shows("the API alone", "10.1.0.1 shop/a-pod-before dev 3\n")
	apply(at(4, web))
	shows("an attachment", "10.1.0.1 shop/web dev 4\n")
	links(5)
	step()
	shows("others links", "10.1.0.1 shop/web dev 4\n")
	apply(at(6, old))
	shows("a newer attachment", "10.1.0.1 shop/a-pod-before dev 6\n")
	s.Apply([]store.Event{{Kind: model.AttachmentKind, Name: at(6, old).Ref().Name}})
	apply()
	shows("the newer one is gone", "10.1.0.1 shop/web dev 4\n")
	s.Apply([]store.Event{{Kind: model.AttachmentKind, Name: at(4, web).Ref().Name}})
	apply()
	shows("both are gone", "10.1.0.1 shop/a-pod-before dev 5\n")
}
