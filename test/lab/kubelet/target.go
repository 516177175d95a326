package kubelet

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/test/lab/echo"
)

// targets are the ports that a Service sends to by number. A container need not declare its ports,
// so a pod is expected to listen there.
type targets struct {
	selector map[string]string
	ports    []echo.Port
}

// services is the store that the reflector of Services fills. It keeps a Service's targets.
type services struct {
	k    *kubelet
	read chan struct{} // closed when all have been read once
	once bool
	all  map[string]map[string]targets // by namespace and name
}

// Add receives a new Service.
func (s *services) Add(obj any) error { return s.Update(obj) }

// Update receives the newest version of a Service.
func (s *services) Update(obj any) error {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return fmt.Errorf("follow services: got a %T", obj)
	}
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	s.handleService(svc)
	return nil
}

// Delete receives a deleted Service. Servers go on listening, as a container would.
func (s *services) Delete(obj any) error {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return fmt.Errorf("follow services: got a %T", obj)
	}
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	delete(s.all[svc.Namespace], svc.Name)
	return nil
}

// Replace receives all Services.
func (s *services) Replace(list []any, _ string) error {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	s.all = map[string]map[string]targets{}
	for _, obj := range list {
		svc, ok := obj.(*corev1.Service)
		if !ok {
			return fmt.Errorf("follow services: got a %T", obj)
		}
		s.handleService(svc)
	}
	if !s.once {
		s.once = true
		close(s.read)
	}
	return nil
}

// Resync has nothing to do.
func (s *services) Resync() error { return nil }

// handleService records a Service and informs the pods that it selects. The kubelet's mu is held.
func (s *services) handleService(svc *corev1.Service) {
	t := targetsOf(svc)
	if len(t.ports) == 0 {
		delete(s.all[svc.Namespace], svc.Name)
		return
	}
	if s.all[svc.Namespace] == nil {
		s.all[svc.Namespace] = map[string]targets{}
	}
	s.all[svc.Namespace][svc.Name] = t
	for name, r := range s.k.runners {
		if name.Namespace == svc.Namespace && t.selects(r.labels) {
			r.sendTargets(t.ports)
		}
	}
}

// of lists the ports that Services send to by number on a pod. The kubelet's mu is held.
func (s *services) of(name types.NamespacedName, labels map[string]string) []echo.Port {
	var ports []echo.Port
	for _, t := range s.all[name.Namespace] {
		if t.selects(labels) {
			ports = append(ports, t.ports...)
		}
	}
	return ports
}

func targetsOf(svc *corev1.Service) targets {
	t := targets{selector: svc.Spec.Selector}
	if len(t.selector) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName {
		return t
	}
	for _, p := range svc.Spec.Ports {
		if p.TargetPort.StrVal == "" && p.TargetPort.IntVal > 0 && p.Protocol != corev1.ProtocolSCTP {
			t.ports = append(t.ports, echo.Port{Protocol: string(p.Protocol), Port: uint16(p.TargetPort.IntVal)})
		}
	}
	return t
}

func (t *targets) selects(labels map[string]string) bool {
	for k, v := range t.selector {
		if had, ok := labels[k]; !ok || had != v {
			return false
		}
	}
	return true
}

// sendTargets passes ports to the runner to listen on. Like update, it never waits, and only one
// goroutine may call it at a time.
func (r *runner) sendTargets(ports []echo.Port) {
	select {
	case before := <-r.newTargets:
		ports = append(before, ports...)
	default:
	}
	r.newTargets <- ports
}

// addTargets records ports to listen on.
func (r *runner) addTargets(ports []echo.Port) {
	for _, p := range ports {
		if _, known := r.targets[p]; !known {
			r.targets[p] = false
		}
	}
}

// listen opens the ports that Services send to and no container declares, and returns when to check
// again. What cannot be opened is tried again: on the node's network, another pod may still have
// the port.
func (r *runner) listen() time.Duration {
	wait := never
	for p, reported := range r.targets {
		if slices.ContainsFunc(r.serves(), func(s echo.Pod) bool { return slices.Contains(s.Ports, p) }) {
			delete(r.targets, p)
			continue
		}
		s := echo.Pod{
			Namespace: r.pod.Namespace, Name: r.pod.Name, Container: fmt.Sprintf("%s %d", p.Protocol, p.Port), Node: r.k.Node,
			NetNS: r.netns(), Addrs: r.life.addrs, Ports: []echo.Port{p},
		}
		if err := r.k.server.Put(s); err != nil {
			r.k.server.Remove(s) // for UDP, some addresses may be open
			if !reported {
				r.k.event(r.pod, corev1.EventTypeWarning, "CannotListen", "port %d that a Service sends to: %v", p.Port, err)
			}
			r.targets[p], wait = true, time.Second
			continue
		}
		r.undeclared = append(r.undeclared, s)
		delete(r.targets, p)
	}
	return wait
}
