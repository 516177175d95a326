package plan

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Workload is an object that makes pods.
type Workload struct {
	Kind            string // Deployment, ReplicaSet, StatefulSet, DaemonSet or Pod
	Namespace, Name string
	Replicas        int // meaningless for a DaemonSet
	Template        corev1.PodTemplateSpec
	Subdomain       string // a StatefulSet's governing Service
	First           int    // a StatefulSet's first ordinal
}

func (w *Workload) scales() bool { return w.Kind != "DaemonSet" && w.Kind != "Pod" }

func workload(kind string, meta metav1.ObjectMeta, replicas *int32, t corev1.PodTemplateSpec) Workload {
	w := Workload{Kind: kind, Namespace: orDefault(meta.Namespace), Name: meta.Name, Replicas: 1, Template: t}
	if replicas != nil {
		w.Replicas = int(*replicas)
	}
	return w
}

func podWorkload(p *corev1.Pod) Workload {
	t := corev1.PodTemplateSpec{ObjectMeta: p.ObjectMeta, Spec: p.Spec}
	return workload("Pod", p.ObjectMeta, nil, t)
}

func statefulWorkload(s *appsv1.StatefulSet) Workload {
	w := workload("StatefulSet", s.ObjectMeta, s.Spec.Replicas, s.Spec.Template)
	w.Subdomain = s.Spec.ServiceName
	if s.Spec.Ordinals != nil {
		w.First = int(s.Spec.Ordinals.Start)
	}
	return w
}

// replica is one pod of a workload: its name, and its node if that is fixed.
type replica struct{ name, node string }

// replicas lists a workload's pods. Deployments count from 1 and skip names that are taken.
func (w *Workload) replicas(nodes []Node, taken func(string) bool) []replica {
	var rs []replica
	switch w.Kind {
	case "Pod":
		rs = append(rs, replica{w.Name, ""})
	case "DaemonSet":
		for _, n := range nodes {
			rs = append(rs, replica{w.Name + "-" + n.Name, n.Name})
		}
	case "StatefulSet":
		for i := range w.Replicas {
			rs = append(rs, replica{fmt.Sprintf("%s-%d", w.Name, w.First+i), ""})
		}
	default:
		for i := 1; len(rs) < w.Replicas; i++ {
			if name := fmt.Sprintf("%s-%d", w.Name, i); !taken(name) {
				rs = append(rs, replica{name, ""})
			}
		}
	}
	return rs
}

// place makes the workloads' pods. An existing pod keeps its node, its addresses and its condition;
// a pod that cannot be placed is left out, with a note.
func (c *Cluster) place() {
	old := map[string]*corev1.Pod{}
	for _, p := range c.Pods {
		old[key(p.Namespace, p.Name)] = p
	}
	pl := placement{c: c, addrs: map[netip.Addr]bool{}, ports: map[hostPort]bool{}, owner: map[string]string{}}
	wanted := make([][]replica, len(c.Workloads))
	// Fixed names go first, so that Deployments can avoid them.
	for _, numbered := range []bool{false, true} {
		for i := range c.Workloads {
			if w := &c.Workloads[i]; w.numbered() == numbered {
				wanted[i] = pl.claim(w)
			}
		}
	}
	for i := range c.Workloads {
		for _, r := range wanted[i] {
			if p := old[key(c.Workloads[i].Namespace, r.name)]; p != nil {
				pl.keep(p)
			}
		}
	}
	c.Pods = nil
	for i := range c.Workloads {
		for _, r := range wanted[i] {
			w := &c.Workloads[i]
			p := old[key(w.Namespace, r.name)]
			var err error
			if p == nil {
				p, err = pl.pod(w, r)
			}
			if err != nil {
				c.note("pod %s/%s is left out: %v", w.Namespace, r.name, err)
				continue
			}
			c.Pods = append(c.Pods, p)
		}
	}
}

// claim lists the pods of a workload whose names are free, and takes these names.
func (pl *placement) claim(w *Workload) []replica {
	taken := func(name string) bool { return pl.owner[key(w.Namespace, name)] != "" }
	return slices.DeleteFunc(w.replicas(pl.c.Nodes, taken), func(r replica) bool {
		k := key(w.Namespace, r.name)
		if other := pl.owner[k]; other != "" {
			pl.c.note("pod %s of %s %s is left out: %s has one of that name", k, w.Kind, w.Name, other)
			return true
		}
		pl.owner[k] = w.Kind + " " + w.Name
		return false
	})
}

// numbered reports whether the workload can choose its pods' names.
func (w *Workload) numbered() bool { return w.Kind == "Deployment" || w.Kind == "ReplicaSet" }

// placement is the state of one call of place.
type placement struct {
	c     *Cluster
	addrs map[netip.Addr]bool // taken
	ports map[hostPort]bool   // taken by pods on their node's network
	owner map[string]string   // a pod's workload
}

type hostPort struct {
	node     string
	protocol corev1.Protocol
	port     int32
}

// noteHostPorts notes ports that a cluster's network plugin would forward from the node to the pod.
func (c *Cluster) noteHostPorts(w *Workload, p *corev1.Pod) {
	for _, ctr := range containers(p) {
		for _, port := range ctr.Ports {
			if port.HostPort != 0 && !p.Spec.HostNetwork {
				c.note("%s %s/%s: the lab does not forward hostPort %d", w.Kind, w.Namespace, w.Name, port.HostPort)
			}
		}
	}
}

// keep records what an existing pod occupies.
func (pl *placement) keep(p *corev1.Pod) {
	if p.Spec.HostNetwork {
		for _, hp := range hostPorts(p, p.Spec.NodeName) {
			pl.ports[hp] = true
		}
		return
	}
	for _, a := range Addrs(p) {
		pl.addrs[a] = true
	}
}

// pod makes a new pod: its node, its addresses, and the status of a running pod.
func (pl *placement) pod(w *Workload, r replica) (*corev1.Pod, error) {
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: *w.Template.ObjectMeta.DeepCopy(),
		Spec:       *w.Template.Spec.DeepCopy(),
	}
	p.Namespace, p.Name, p.GenerateName = w.Namespace, r.name, ""
	p.CreationTimestamp = metav1.Time{Time: pl.c.Created}
	if w.Kind != "Pod" {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: w.Kind, Name: w.Name}}
	}
	if w.Kind == "StatefulSet" {
		p.Spec.Hostname, p.Spec.Subdomain = r.name, w.Subdomain
	}
	if r.node != "" {
		p.Spec.NodeName = r.node
	}
	p.Spec.ServiceAccountName = cmp.Or(p.Spec.ServiceAccountName, "default") // as admission does in a cluster
	node, err := pl.node(p)
	if err != nil {
		return nil, err
	}
	p.Spec.NodeName = node.Name
	addrs := node.IPs
	if !p.Spec.HostNetwork {
		if addrs, err = pl.allocate(node); err != nil {
			return nil, err
		}
	}
	p.Status = status(node, addrs, pl.c.Created)
	pl.c.noteHostPorts(w, p)
	pl.keep(p)
	return p, nil
}

// node chooses the pod's node: the named one, or the next in turn among those that its node
// selector and its host ports allow.
func (pl *placement) node(p *corev1.Pod) (*Node, error) {
	c := pl.c
	if name := p.Spec.NodeName; name != "" {
		if n := c.Node(name); n != nil {
			return n, nil
		}
		c.note("pod %s/%s asks for node %s, which the lab does not have: placed by turn", p.Namespace, p.Name, name)
	}
	fits := func(n *Node, selector bool) bool {
		labels := n.Object(c.Created).Labels
		for k, v := range p.Spec.NodeSelector {
			if selector && labels[k] != v {
				return false
			}
		}
		return !p.Spec.HostNetwork || !slices.ContainsFunc(hostPorts(p, n.Name), func(hp hostPort) bool { return pl.ports[hp] })
	}
	for _, selector := range []bool{true, false} {
		for i := range c.Nodes {
			if n := &c.Nodes[(c.Turn+i)%len(c.Nodes)]; fits(n, selector) {
				c.Turn = (c.Turn + i + 1) % len(c.Nodes)
				if !selector {
					c.note("pod %s/%s: no node has the labels of its nodeSelector: placed by turn", p.Namespace, p.Name)
				}
				return n, nil
			}
		}
	}
	return nil, errors.New("its ports on the node's network are taken on every node; use more --nodes")
}

// allocate takes a free address of each of the node's pod CIDRs.
func (pl *placement) allocate(n *Node) ([]netip.Addr, error) {
	for i := 2; i < 255; i++ { // .1 stays free for a node with a bridge
		addrs := hosts(n.PodCIDRs, i)
		if !pl.addrs[addrs[0]] {
			return addrs, nil
		}
	}
	return nil, fmt.Errorf("all addresses of %s on %s are taken; use more --nodes", n.PodCIDRs[0], n.Name)
}

func hostPorts(p *corev1.Pod, node string) []hostPort {
	var hps []hostPort
	for _, c := range containers(p) {
		for _, port := range c.Ports {
			hps = append(hps, hostPort{node, protocol(port.Protocol), port.ContainerPort})
		}
	}
	return hps
}

func status(n *Node, addrs []netip.Addr, created time.Time) corev1.PodStatus {
	s := corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: conditions(true, created),
		HostIP:     n.IPs[0].String(),
	}
	setAddrs(&s, addrs)
	return s
}

func setAddrs(s *corev1.PodStatus, addrs []netip.Addr) {
	s.PodIP, s.PodIPs = addrs[0].String(), nil
	for _, a := range addrs {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: a.String()})
	}
}

func conditions(ready bool, since time.Time) []corev1.PodCondition {
	state := corev1.ConditionFalse
	if ready {
		state = corev1.ConditionTrue
	}
	var cs []corev1.PodCondition
	for _, t := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		cs = append(cs, corev1.PodCondition{Type: t, Status: state, LastTransitionTime: metav1.Time{Time: since}})
	}
	return cs
}

func key(namespace, name string) string { return namespace + "/" + name }
