package store

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// View is one consistent version of all objects. What its methods return is
// shared and must not be changed; it may be kept after Read has returned.
type View struct {
	services  map[model.Name]*model.Service
	former    map[model.Name]*model.Service // that are gone, and that policies name
	slices    map[model.Name]*model.EndpointSlice
	byService map[model.Name][]*model.EndpointSlice // sorted by name; replaced, never changed in place
	pods      map[model.Name]*model.Pod
	selectors selectorIndex
	labels    labelIndex
	addrs     addrIndex

	objects map[model.Kind]map[model.Name]any // of all other kinds
}

func newView() View {
	return View{
		services:  map[model.Name]*model.Service{},
		former:    map[model.Name]*model.Service{},
		slices:    map[model.Name]*model.EndpointSlice{},
		byService: map[model.Name][]*model.EndpointSlice{},
		pods:      map[model.Name]*model.Pod{},
		selectors: selectorIndex{},
		labels:    labelIndex{},
		addrs:     addrIndex{},

		objects: map[model.Kind]map[model.Name]any{},
	}
}

// All names every object there is: the dirty set of a compiler that has seen
// nothing yet. Endpoint slices are named by their services.
func (v *View) All() Dirty {
	d := Dirty{Services: keys(v.services), Objects: map[model.Kind]map[model.Name]struct{}{model.PodKind: keys(v.pods)}}
	for kind, objects := range v.objects {
		d.Objects[kind] = keys(objects)
	}
	return d
}

func keys[K comparable, V any](m map[K]V) map[K]struct{} {
	set := make(map[K]struct{}, len(m))
	for k := range m {
		set[k] = struct{}{}
	}
	return set
}

// Services names every service; the caller owns the set.
func (v *View) Services() map[model.Name]struct{} { return keys(v.services) }

// Service returns nil if there is none of that name.
func (v *View) Service(name model.Name) *model.Service { return v.services[name] }

// NamedService is Service for those whose rules name one: if that is deleted, what it was last.
func (v *View) NamedService(name model.Name) *model.Service {
	return cmp.Or(v.services[name], v.former[name])
}

// Slices returns the service's endpoint slices, sorted by name.
func (v *View) Slices(service model.Name) []*model.EndpointSlice { return v.byService[service] }

// Selected returns the pods that the service's selector matches, sorted by
// name; none if it has no selector.
func (v *View) Selected(svc *model.Service) []*model.Pod {
	return v.labels.selected(svc)
}

// Object returns an object of any kind but Service, EndpointSlice and Pod; nil if there is none.
func (v *View) Object(ref model.Ref) any { return v.objects[ref.Kind][ref.Name] }

func get[T any](v *View, ref model.Ref) *T {
	if o := v.Object(ref); o != nil {
		return o.(*T)
	}
	return nil
}

// Node returns nil if there is none of that name.
func (v *View) Node(name string) *model.Node {
	return get[model.Node](v, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: name}})
}

// Namespace returns nil if there is none of that name.
func (v *View) Namespace(name string) *model.Namespace {
	return get[model.Namespace](v, model.Ref{Kind: model.NamespaceKind, Name: model.Name{Name: name}})
}

// ServiceAccount returns nil if there is none of that name.
func (v *View) ServiceAccount(name model.Name) *model.ServiceAccount {
	return get[model.ServiceAccount](v, model.Ref{Kind: model.ServiceAccountKind, Name: name})
}

// Pod returns nil if there is none of that name.
func (v *View) Pod(name model.Name) *model.Pod { return v.pods[name] }

// PodByAddr returns the pod that has the address; nil if none has. Pods that have finished, and
// those on their host's network, have none of their own. Of several that claim it, the one that is
// attached with it comes first, then one that is not terminating, then the first by name.
func (v *View) PodByAddr(addr netip.Addr) *model.Pod {
	claims := v.addrs[addr.Unmap()]
	if len(claims) == 0 {
		return nil
	}
	if len(claims) > 1 {
		for _, at := range slices.Backward(v.Attachments()) {
			if pod := v.pods[at.Pod]; slices.Contains(at.Addrs, addr.Unmap()) && slices.Contains(claims, pod) {
				return pod
			}
		}
	}
	return claims[0]
}

// Policy returns nil if there is none of that key.
func (v *View) Policy(key model.PolicyKey) *model.Policy { return get[model.Policy](v, key) }

// Tier returns nil if none of that name was declared.
func (v *View) Tier(name string) *model.Tier {
	return get[model.Tier](v, model.Ref{Kind: model.TierKind, Name: model.Name{Name: name}})
}

// NetworkSet returns nil if there is none of that key.
func (v *View) NetworkSet(key model.NetworkSetKey) *model.NetworkSet {
	return get[model.NetworkSet](v, key)
}

// HostEndpoint returns nil if there is none of that name.
func (v *View) HostEndpoint(name string) *model.HostEndpoint {
	return get[model.HostEndpoint](v, model.Ref{Kind: model.HostEndpointKind, Name: model.Name{Name: name}})
}

// ServiceNames returns the names of all services, sorted.
func (v *View) ServiceNames() []model.Name {
	return slices.SortedFunc(maps.Keys(v.services), model.Name.Compare)
}

// Pods returns all pods, sorted by name.
func (v *View) Pods() []*model.Pod {
	return slices.SortedFunc(maps.Values(v.pods), comparePods)
}

// Counts returns the number of objects by kind: "Service", "EndpointSlice", "Pod", "Node",
// "Namespace", and of the others those that there are any of.
func (v *View) Counts() map[string]int {
	n := map[string]int{
		string(model.ServiceKind):       len(v.services),
		string(model.EndpointSliceKind): len(v.slices),
		string(model.PodKind):           len(v.pods),
		string(model.NodeKind):          0,
		string(model.NamespaceKind):     0,
	}
	for kind, objects := range v.objects {
		if len(objects) > 0 {
			n[string(kind)] = len(objects)
		}
	}
	return n
}

func comparePods(a, b *model.Pod) int { return a.Name.Compare(b.Name) }

// The same questions, each asked of the version that is current at its time.

func ask[Q, A any](s *Store, answer func(*View, Q) A, question Q) A {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return answer(&s.view, question)
}

// PodByAddr is View.PodByAddr.
func (s *Store) PodByAddr(addr netip.Addr) *model.Pod { return ask(s, (*View).PodByAddr, addr) }

// Pod is View.Pod.
func (s *Store) Pod(name model.Name) *model.Pod { return ask(s, (*View).Pod, name) }

// Node is View.Node.
func (s *Store) Node(name string) *model.Node { return ask(s, (*View).Node, name) }

// Attachments is View.Attachments.
func (s *Store) Attachments() []*model.Attachment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.view.Attachments()
}

// Counts is View.Counts.
func (s *Store) Counts() map[string]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.view.Counts()
}
