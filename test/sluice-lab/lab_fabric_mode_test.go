package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// One pod, behind a service, and one that only sends.
const modeManifests = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, ports: [{containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: client}
spec:
  template:
    metadata: {labels: {app: client}}
    spec: {containers: [{name: c, ports: [{containerPort: 8080}]}]}
`

// pools are the lab's pods' addresses, in a mode.
func pools(mode string) (texts [][]byte) {
	for i, cidr := range plan.ClusterCIDRs {
		texts = append(texts, fmt.Appendf(nil, "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: pool%d}, spec: {cidr: '%s', vxlanMode: %s, natOutgoing: true}}", i, cidr, mode))
	}
	return texts
}

// The mode of the pod network changes under connections that are established, and all go on: also
// those that a node translates the source of.
func TestLabFabricModeChanges(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "web.yaml")
	if err := os.WriteFile(file, []byte(modeManifests), 0o600); err != nil {
		t.Fatal(err)
	}
	l := upWith(t, "testmode", "--fabric", "native", file)
	setPolicies(t, l, pools("Never")...)
	web := l.Cluster.Pods[slices.IndexFunc(l.Cluster.Pods, func(p *corev1.Pod) bool { return strings.HasPrefix(p.Name, "web") })]
	away := &l.Cluster.Nodes[slices.IndexFunc(l.Cluster.Nodes, func(n plan.Node) bool { return n.Name != web.Spec.NodeName })]
	backend := l.Cluster.Node(web.Spec.NodeName)

	open := standing(t, l, away)
	for _, mode := range []string{"Always", "Never", "CrossSubnet", "Always", "Never"} {
		setPolicies(t, l, pools(mode)...)
		device := uplinkOf(mode)
		for i, is := range []string{"-4", "-6"} {
			if routes := string(execOn(t, l, away.Name, "/sbin/ip", is, "route", "get", web.Status.PodIPs[i].IP)); !strings.Contains(routes, "dev "+device) {
				t.Errorf("%s: the way from %s to %s on %s is %s", mode, away.Name, web.Name, backend.Name, routes)
			}
		}
		for _, c := range open {
			if err := c.ask(); err != nil {
				t.Errorf("%s: %s: %v", mode, c.what, err)
			}
		}
		open = append(open, standing(t, l, away)...)
	}
}

// uplinkOf is how the interface is called, or begins, that pods of other nodes are reached by.
func uplinkOf(mode string) string {
	if mode == "Always" {
		return "sluice.vxlan"
	}
	return "eth0"
}

// standing opens connections of all kinds that pass a node, to a pod of another node, or to the
// outside.
func standing(t *testing.T, l *lab.Lab, node *plan.Node) (open []*lasting) {
	t.Helper()
	svc := l.Cluster.Services[slices.IndexFunc(l.Cluster.Services, func(s *corev1.Service) bool { return s.Name == "web" })]
	client := l.Cluster.Pods[slices.IndexFunc(l.Cluster.Pods, func(p *corev1.Pod) bool {
		return strings.HasPrefix(p.Name, "client") && p.Spec.NodeName == node.Name
	})]
	for i, vip := range plan.ClusterIPs(svc) {
		nodePort := netip.AddrPortFrom(node.IPs[i], uint16(svc.Spec.Ports[0].NodePort))
		service := netip.AddrPortFrom(vip, uint16(svc.Spec.Ports[0].Port))
		for _, c := range []struct {
			what, from string
			to         netip.AddrPort
		}{
			{"from the node to a cluster IP", l.NodeNS(node.Name), service},
			{"from outside to a node port", l.NodeNS(plan.Outside), nodePort},
			{"from the node to its own node port", l.NodeNS(node.Name), nodePort},
			{"from a pod to a cluster IP", l.PodNS(client), service},
			{"from a pod to the outside", l.PodNS(client), outsideServer(t, l, l.Cluster.OutsideIPs[i])},
		} {
			open = append(open, newLasting(t, fmt.Sprintf("%s (%s)", c.what, c.to), c.from, c.to))
		}
	}
	return open
}

// lasting is a connection that is open for longer than a request.
type lasting struct {
	what string
	net.Conn
	answers *bufio.Reader
}

func newLasting(t *testing.T, what, from string, to netip.AddrPort) *lasting {
	t.Helper()
	ns, err := netns.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	c := &lasting{what: what}
	err = ns.Do(func() (err error) {
		c.Conn, err = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: -1}).Dial("tcp", to.String())
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	t.Cleanup(func() { c.Close() })
	c.answers = bufio.NewReader(c)
	if err := c.ask(); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return c
}

// ask sends a request and waits for its answer.
func (c *lasting) ask() error {
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: lab\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var a echo.Answer
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// outsideServer answers on a port of the outside host's.
func outsideServer(t *testing.T, l *lab.Lab, addr netip.Addr) netip.AddrPort {
	t.Helper()
	ns, err := netns.Open(l.NodeNS(plan.Outside))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var at net.Listener
	err = ns.Do(func() (err error) {
		at, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(echo.Answer{Pod: "outside"})
	})}
	go server.Serve(at)
	t.Cleanup(func() { server.Close() })
	return netip.MustParseAddrPort(at.Addr().String())
}
