package lint

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/store"
)

// Unserved says why no endpoint of a Service's port can take connections, in a family: "3 ready
// pods, none has a port named \"htp\" of TCP (they have http)". "" says that one can.
func Unserved(v *store.View, svc *model.Service, port *model.ServicePort, is4 bool) string {
	why, sliced := inSlices(v, svc, port, is4)
	if why == "" || len(svc.Selector) == 0 || unread(v, svc) {
		return why
	}
	if pods := inPods(v, svc, port, is4); pods != "" || !sliced {
		return pods
	}
	return why
}

// unread reports whether the view cannot tell which pods a Service selects: it has none at all, as
// without policy or without the right to list Pods, or slices know some where it has none.
func unread(v *store.View, svc *model.Service) bool {
	return v.Counts()[string(model.PodKind)] == 0 || len(v.Selected(svc)) == 0 &&
		slices.ContainsFunc(v.Slices(svc.Name), func(s *model.EndpointSlice) bool { return len(s.Endpoints) > 0 })
}

// inPods is Unserved by the pods that a Service selects alone.
func inPods(v *store.View, svc *model.Service, port *model.ServicePort, is4 bool) string {
	pods := running(v, svc)
	ready := slices.DeleteFunc(slices.Clone(pods), func(p *model.Pod) bool { return !svc.Offers(p) })
	addressed := func(p *model.Pod) bool {
		return slices.ContainsFunc(p.IPs, func(a netip.Addr) bool { return a.Unmap().Is4() == is4 })
	}
	count := model.Count(len(pods), "pod")
	if len(ready) == len(pods) {
		count = model.Count(len(pods), "ready pod")
	}
	switch {
	case len(pods) == 0:
		return fmt.Sprintf("its selector %s selects no pod of namespace %s", selectorText(svc.Selector), svc.Name.Namespace)
	case !slices.ContainsFunc(pods, func(p *model.Pod) bool { return port.On(p) != 0 }):
		return fmt.Sprintf("%s, none has a port named %q of %s%s", count, port.TargetName, port.Protocol, portNames(pods, port.Protocol))
	case !slices.ContainsFunc(pods, addressed):
		return fmt.Sprintf("%s, none has an %s address", count, model.FamilyName(is4))
	case len(ready) == 0:
		return count + ", none is ready"
	case !slices.ContainsFunc(ready, func(p *model.Pod) bool { return addressed(p) && port.On(p) != 0 }):
		return count + ", none of those that have the port is ready"
	}
	return ""
}

// inSlices is Unserved by the EndpointSlices of a Service. Sliced is whether there is one of the
// family; without one, pods count.
func inSlices(v *store.View, svc *model.Service, port *model.ServicePort, is4 bool) (why string, sliced bool) {
	list := v.Slices(svc.Name)
	if len(list) == 0 {
		lacks := "it has no selector"
		if len(svc.Selector) > 0 {
			lacks = "no Pod is known"
		}
		return lacks + ", and no EndpointSlice is of it (label kubernetes.io/service-name)", false
	}
	endpoints, ports, named, portless := 0, map[string]bool{}, false, false
	for _, slice := range list {
		if len(slice.Endpoints) > 0 && slice.Endpoints[0].Addr.Unmap().Is4() != is4 {
			continue
		}
		sliced = true
		portless = portless || len(slice.Endpoints) > 0 && len(slice.Ports) == 0
		of := func(p model.EndpointPort) bool { return p.Name == port.Name && p.Protocol == port.Protocol }
		for _, p := range slice.Ports {
			ports[fmt.Sprintf("%q of %s", p.Name, p.Protocol)] = true
		}
		if !slices.ContainsFunc(slice.Ports, of) {
			continue
		}
		named = true
		for i := range slice.Endpoints {
			if e := &slice.Endpoints[i]; e.Ready || e.Serving && e.Terminating {
				return "", true
			}
			endpoints++
		}
	}
	switch {
	case !sliced:
		return "its EndpointSlices have no " + model.FamilyName(is4) + " address", false
	case !named && len(ports) > 0:
		return fmt.Sprintf("no EndpointSlice has a port named %q of %s (they have %s)", port.Name, port.Protocol, model.FirstFew(slices.Sorted(maps.Keys(ports)), few)), true
	case !named && portless:
		return "its EndpointSlices have no ports", true
	case endpoints == 0:
		return "its EndpointSlices have no endpoint", true
	}
	return model.Count(endpoints, "endpoint") + ", none is ready", true
}

// few is how many names are given of many.
const few = 5

// running are the pods that a Service selects and that have not finished.
func running(v *store.View, svc *model.Service) []*model.Pod {
	return slices.DeleteFunc(slices.Clone(v.Selected(svc)), func(p *model.Pod) bool { return p.Finished })
}

// portNames says, in brackets, what names the pods have of ports, and the protocols that are not
// the one that is asked for.
func portNames(pods []*model.Pod, wanted model.Protocol) string {
	names := map[string]bool{}
	for _, pod := range pods {
		for _, p := range pod.Ports {
			switch {
			case p.Name == "":
			case wanted != 0 && p.Protocol != wanted:
				names[p.Name+" of "+p.Protocol.String()] = true
			default:
				names[p.Name] = true
			}
		}
	}
	if len(names) == 0 {
		return " (they name none)"
	}
	return " (they have " + model.FirstFew(slices.Sorted(maps.Keys(names)), few) + ")"
}

func selectorText(selector map[string]string) string {
	var terms []string
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		terms = append(terms, key+"="+selector[key])
	}
	return strings.Join(terms, ",")
}
