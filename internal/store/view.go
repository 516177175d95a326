package store

import (
	"maps"
	"slices"

	"sluice.dev/sluice/internal/model"
)

// View is one consistent version of all objects. What its methods return is
// shared and must not be changed; it may be kept after Read has returned.
type View struct {
	services   map[model.Name]*model.Service
	slices     map[model.Name]*model.EndpointSlice
	byService  map[model.Name][]*model.EndpointSlice // sorted by name; replaced, never changed in place
	pods       map[model.Name]*model.Pod
	nodes      map[string]*model.Node
	namespaces map[string]*model.Namespace
	selectors  selectorIndex
	labels     labelIndex
}

func newView() View {
	return View{
		services:   map[model.Name]*model.Service{},
		slices:     map[model.Name]*model.EndpointSlice{},
		byService:  map[model.Name][]*model.EndpointSlice{},
		pods:       map[model.Name]*model.Pod{},
		nodes:      map[string]*model.Node{},
		namespaces: map[string]*model.Namespace{},
		selectors:  selectorIndex{},
		labels:     labelIndex{},
	}
}

// All names every service and node there is: the dirty set of a compiler that
// has seen nothing yet.
func (v *View) All() Dirty {
	d := Dirty{
		Services: make(map[model.Name]struct{}, len(v.services)),
		Nodes:    make(map[string]struct{}, len(v.nodes)),
	}
	for name := range v.services {
		d.Services[name] = struct{}{}
	}
	for name := range v.nodes {
		d.Nodes[name] = struct{}{}
	}
	return d
}

// Service returns nil if there is none of that name.
func (v *View) Service(name model.Name) *model.Service { return v.services[name] }

// Slices returns the service's endpoint slices, sorted by name.
func (v *View) Slices(service model.Name) []*model.EndpointSlice { return v.byService[service] }

// Selected returns the pods that the service's selector matches, sorted by
// name; none if it has no selector.
func (v *View) Selected(svc *model.Service) []*model.Pod {
	return v.labels.selected(svc)
}

// Node returns nil if there is none of that name.
func (v *View) Node(name string) *model.Node { return v.nodes[name] }

// Namespace returns nil if there is none of that name.
func (v *View) Namespace(name string) *model.Namespace { return v.namespaces[name] }

// ServiceNames returns the names of all services, sorted.
func (v *View) ServiceNames() []model.Name {
	return slices.SortedFunc(maps.Keys(v.services), model.Name.Compare)
}

// Pods returns all pods, sorted by name.
func (v *View) Pods() []*model.Pod {
	return slices.SortedFunc(maps.Values(v.pods), comparePods)
}

// Counts returns the number of objects by kind: "Service", "EndpointSlice", "Pod", "Node", "Namespace".
func (v *View) Counts() map[string]int {
	return map[string]int{
		Services.String():       len(v.services),
		EndpointSlices.String(): len(v.slices),
		Pods.String():           len(v.pods),
		Nodes.String():          len(v.nodes),
		Namespaces.String():     len(v.namespaces),
	}
}

func comparePods(a, b *model.Pod) int { return a.Name.Compare(b.Name) }

// The same questions, each asked of the version that is current at its time.

// Service is View.Service.
func (s *Store) Service(name model.Name) *model.Service {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.view.Service(name)
}

// Slices is View.Slices.
func (s *Store) Slices(service model.Name) []*model.EndpointSlice {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.view.Slices(service)
}

// Selected is View.Selected.
func (s *Store) Selected(svc *model.Service) []*model.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.view.Selected(svc)
}

// Node is View.Node.
func (s *Store) Node(name string) *model.Node {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.view.Node(name)
}

// ServiceNames is View.ServiceNames.
func (s *Store) ServiceNames() []model.Name {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.view.ServiceNames()
}

// Pods is View.Pods.
func (s *Store) Pods() []*model.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.view.Pods()
}

// Counts is View.Counts.
func (s *Store) Counts() map[string]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.view.Counts()
}
