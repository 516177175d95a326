package store_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

func addrs(texts ...string) (list []netip.Addr) {
	for _, a := range texts {
		list = append(list, netip.MustParseAddr(a))
	}
	return list
}

func attachment(index int, pod string, ips ...string) *model.Attachment {
	return &model.Attachment{Device: fmt.Sprint("veth", index), Index: index, Node: "here", Pod: name(pod), Addrs: addrs(ips...)}
}

func at(node string, p *model.Pod, ips ...string) *model.Pod {
	p.Node, p.IPs = node, addrs(ips...)
	return p
}

// A pod has the addresses of its attachments in place of those that its object has.
func TestAttachments(t *testing.T) {
	host := at("here", pod("web"), "192.0.2.1")
	host.HostNetwork = true
	finished := at("here", pod("web"), "10.0.0.9")
	finished.Finished = true
	for what, tt := range map[string]struct {
		pod  *model.Pod
		at   []*model.Attachment
		want string
	}{
		"before the API tells an address":  {at("here", pod("web")), []*model.Attachment{attachment(7, "web", "10.0.0.1", "fd00::1")}, "[10.0.0.1 fd00::1]"},
		"the API says the same":            {at("here", pod("web"), "fd00::1", "10.0.0.1"), []*model.Attachment{attachment(7, "web", "10.0.0.1", "fd00::1")}, "[fd00::1 10.0.0.1]"},
		"the API says an old one":          {at("here", pod("web"), "10.0.0.9"), []*model.Attachment{attachment(7, "web", "10.0.0.1")}, "[10.0.0.1]"},
		"two interfaces":                   {at("here", pod("web"), "10.0.0.1"), []*model.Attachment{attachment(8, "web", "10.9.0.1"), attachment(7, "web", "10.0.0.1")}, "[10.0.0.1 10.9.0.1]"},
		"another pod's":                    {at("here", pod("web"), "10.0.0.1"), []*model.Attachment{attachment(7, "db", "10.0.0.2")}, "[10.0.0.1]"},
		"the pod is on another node now":   {at("there", pod("web"), "10.2.0.1"), []*model.Attachment{attachment(7, "web", "10.0.0.1")}, "[10.2.0.1]"},
		"a pod of the host's network":      {host, []*model.Attachment{attachment(7, "web", "10.0.0.1")}, "[192.0.2.1]"},
		"a pod that has finished":          {finished, []*model.Attachment{attachment(7, "web", "10.0.0.1")}, "[10.0.0.9]"},
		"an attachment without an address": {at("here", pod("web"), "10.0.0.1"), []*model.Attachment{attachment(7, "web")}, "[10.0.0.1]"},
	} {
		t.Run(what, func(t *testing.T) {
			s := store.New()
			s.Apply([]store.Event{event(tt.pod)})
			for _, a := range tt.at {
				s.Apply([]store.Event{event(a)})
			}
			if got := fmt.Sprint(view(s).Pod(name("web")).IPs); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			for _, a := range tt.at {
				s.Apply([]store.Event{gone(a)})
			}
			if got := view(s).Pod(name("web")); fmt.Sprint(*got) != fmt.Sprint(*tt.pod) {
				t.Errorf("without attachments: %+v", *got)
			}
		})
	}
}

// Whatever the order in which pods and attachments come and go, what is known in the end is the
// same, and an address leads to the pod that has it.
func TestAttachmentsInAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		last := map[model.Ref]store.Event{}
		s := store.New()
		for range 1 + random.IntN(20) {
			var e store.Event
			n := random.IntN(3)
			if random.IntN(2) == 0 {
				e = event(at([]string{"here", "there"}[random.IntN(2)], pod(fmt.Sprint("p", n)), [][]string{nil, {fmt.Sprintf("10.0.0.%d", n)}}[random.IntN(2)]...))
			} else {
				e = event(attachment(random.IntN(4), fmt.Sprint("p", n), fmt.Sprintf("10.0.0.%d", 10+random.IntN(3))))
			}
			if random.IntN(4) == 0 {
				e.Object = nil
			}
			last[model.Ref{Kind: e.Kind, Name: e.Name}] = e
			s.Apply([]store.Event{e})
		}
		again := store.New()
		for _, e := range last {
			again.Apply([]store.Event{e})
		}
		for n := range 3 {
			got, want := view(s).Pod(name(fmt.Sprint("p", n))), view(again).Pod(name(fmt.Sprint("p", n)))
			if (got == nil) != (want == nil) || got != nil && fmt.Sprint(*got) != fmt.Sprint(*want) {
				t.Fatalf("got %+v, want %+v", got, want)
			}
			if got != nil && len(got.IPs) > 0 && view(s).PodByAddr(got.IPs[0]) == nil {
				t.Errorf("nobody has %s", got.IPs[0])
			}
		}
	}
}

// Of several pods that claim an address, it is that of the one that is attached with it.
func TestPodByAttachedAddr(t *testing.T) {
	s := store.New()
	s.Apply([]store.Event{event(at("here", pod("a"), "10.0.0.1")), event(at("here", pod("b"))), event(attachment(7, "b", "10.0.0.1"))})
	if got := view(s).PodByAddr(addrs("10.0.0.1")[0]); got == nil || got.Name.Name != "b" {
		t.Errorf("it is that of %+v", got)
	}
	s.Apply([]store.Event{gone(attachment(7, "b"))})
	if got := view(s).PodByAddr(addrs("10.0.0.1")[0]); got == nil || got.Name.Name != "a" {
		t.Errorf("it is that of %+v", got)
	}
}
