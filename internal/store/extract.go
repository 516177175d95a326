package store

import "sluice.dev/sluice/internal/model"

// Extract returns a new store that holds some pods with their namespaces and service accounts, some
// services with their slices, and all objects of other kinds. It shares the objects with v.
func (v *View) Extract(pods []*model.Pod, services []*model.Service) *Store {
	s := New()
	for _, pod := range pods {
		namespace := model.Ref{Kind: model.NamespaceKind, Name: model.Name{Name: pod.Name.Namespace}}
		account := model.Ref{Kind: model.ServiceAccountKind, Name: model.Name{Namespace: pod.Name.Namespace, Name: pod.ServiceAccount}}
		for _, ref := range []model.Ref{namespace, account} {
			if o := v.Object(ref); o != nil {
				s.apply(Event{ref.Kind, ref.Name, o})
			}
		}
		s.apply(Event{model.PodKind, pod.Name, pod})
	}
	addService := func(svc *model.Service) {
		s.apply(Event{model.ServiceKind, svc.Name, svc})
		for _, slice := range v.Slices(svc.Name) {
			s.apply(Event{model.EndpointSliceKind, slice.Name, slice})
		}
	}
	for _, svc := range services {
		addService(svc)
	}
	for kind, objects := range v.objects {
		if kind == model.NamespaceKind || kind == model.ServiceAccountKind {
			continue
		}
		for name, o := range objects {
			s.apply(Event{kind, name, o})
		}
	}
	for name, svc := range v.former {
		addService(svc)
		s.apply(Event{Kind: model.ServiceKind, Name: name})
	}
	return s
}
