package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/load"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/sandbox"
	"sluice.dev/sluice/test/netns"
)

// migration is the story of a cluster that moves to Sluice and back.
type migration struct {
	*story
	*Migration
	verbose bool

	given map[string]string // the addresses that Services keep, by name
	who   *whoHas           // has that of web
	sent  int64
	again bool // what is typed was shown for another node
}

// Migrate tells how the cluster of a lab moves to Sluice as docs/install.md says, and back, while
// requests go on. The lab was brought up with what m says. With verbose, all that the commands
// print is shown.
func Migrate(ctx context.Context, t *Teller, l *lab.Lab, took time.Duration, m *Migration, verbose bool, next []Hint) error {
	s := &migration{story: &story{Teller: t, name: l.Name, lab: l}, Migration: m, verbose: verbose}
	s.cluster(took)
	s.Say("kubelet, containerd, kube-proxy and MetalLB are the real ones. Of Calico there are objects, and not its programs: " +
		"nobody enforces the policy, the CNI plugin ptp attaches pods, and routes lead to those of the other node.")
	steps := []struct {
		name string
		do   func(context.Context) error
		now  owners
	}{
		{"before", s.before, owners{"nobody", "kube-proxy", "ptp", "MetalLB"}},
		{"policies", s.policies, owners{"Sluice", "Sluice beside kube-proxy", "ptp", "MetalLB"}},
		{"services", s.services, owners{"Sluice", "Sluice", "ptp", "MetalLB"}},
		{"network", s.network, owners{"Sluice", "Sluice", "sluice-cni", "MetalLB"}},
		{"addresses", s.addresses, owners{"Sluice", "Sluice", "sluice-cni", "Sluice"}},
		{"back", s.addressesBack, owners{"Sluice", "Sluice", "sluice-cni", "MetalLB"}},
		{"back", s.networkBack, owners{"Sluice", "Sluice", "ptp", "MetalLB"}},
		{"back", s.servicesBack, owners{"nobody", "kube-proxy", "ptp", "MetalLB"}},
	}
	for _, step := range steps {
		if len(s.failed) == 0 {
			s.step(ctx, step.name, func(ctx context.Context) error {
				if err := step.do(ctx); err != nil {
					return err
				}
				return s.now(ctx, step.now)
			})
		}
	}
	if s.who != nil {
		if err := s.who.close(); err != nil {
			return err
		}
	}
	if len(s.failed) == 0 {
		s.step(ctx, "requests", func(context.Context) error {
			s.Good("0 of %s failed, sent all the time: from pods to the service, and from outside to node ports and to its address", thousands(s.sent))
			return nil
		})
	}
	s.next(ctx, next)
	return s.end(ctx)
}

// web is the Service that requests go to, and its ports: one that a policy denies is its pods'.
const (
	web               = "web"
	webPort, nodePort = 80, 30080
	deniedPort        = 8081
)

// kubectl runs kubectl as the lab's administrator, and returns what it prints.
func (s *migration) kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.lab.Kubernetes.Bin, "kubectl"), append([]string{"--kubeconfig", s.lab.HostKubeconfig()}, args...)...)
	var out, notes bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &notes
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s%s", strings.Join(args, " "), err, out.String(), notes.String())
	}
	return out.String(), nil
}

// types types commands of kubectl and helm, as the page has them.
func (s *migration) types(ctx context.Context, lines ...string) error {
	for _, line := range lines {
		if _, err := s.typed(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

// typed types one, and returns what it prints.
func (s *migration) typed(ctx context.Context, line string) (out string, err error) {
	if !s.again {
		s.Ran(line)
	}
	words := strings.Fields(strings.ReplaceAll(line, "'", "")) // no word has a space
	s.Progress("%s", line)
	files := map[string]string{"deploy/helm/sluice": s.chart, "metallb-native.yaml": s.metalLB, "l2.yaml": s.l2}
	for i, w := range words {
		if file := files[w]; file != "" {
			words[i] = file
		}
	}
	switch {
	case words[0] == "helm":
		out, err = s.lab.Helm(ctx, words[1:]...)
	case line != keepL2: // which is there
		out, err = s.kubectl(ctx, words[1:]...)
	}
	if s.verbose {
		s.Quote(strings.Split(strings.TrimSpace(out), "\n")...)
	}
	return out, err
}

// upgrade is an upgrade of Sluice to further values.
func upgrade(values ...string) string {
	return "helm upgrade sluice deploy/helm/sluice -n kube-system --reset-then-reuse-values --set " + strings.Join(values, " --set ")
}

// rollout is the wait for a rollout of Sluice.
const rollout = "kubectl -n kube-system rollout status daemonset/sluice"

// under does a part of a step while requests go on, of which none may fail: from a pod of a node
// and to the port of that node, and to the Service's address. With short, each has a connection of
// its own.
func (s *migration) under(ctx context.Context, node, what string, short bool, do func() error) error {
	routes, err := s.routes(ctx, node)
	if err != nil {
		return err
	}
	requests, err := load.Start(load.Config{Routes: routes, Every: 10 * time.Millisecond, Short: short})
	if err != nil {
		return err
	}
	defer requests.Stop()
	requests.More(50)
	begin := time.Now()
	if err := do(); err != nil {
		return err
	}
	took := time.Since(begin)
	requests.More(50)
	sent, err := requests.Outcome()
	if err != nil {
		return err
	}
	s.sent += sent
	s.Good("%s after %s; 0 of %s requests failed, and none took longer than %s", what, span(took), thousands(sent), span(requests.Silence()))
	return nil
}

// routes are from a pod of a node to the service's cluster address, and from outside to the node's
// port and to the service's own address.
func (s *migration) routes(ctx context.Context, node string) ([]load.Route, error) {
	s.lab.Status(ctx) // so that the pods' networks have their names
	pod := s.pod("client", node)
	svc := s.service(web)
	if pod == nil || svc == nil {
		return nil, fmt.Errorf("there is no client on %s, or no service", node)
	}
	outside := s.lab.NodeNS(plan.Outside)
	address, err := netip.ParseAddr(s.given[web])
	if err != nil {
		return nil, err
	}
	return []load.Route{
		{From: s.lab.PodNS(pod), To: netip.AddrPortFrom(plan.ClusterIPs(svc)[0], webPort)},
		{From: outside, To: netip.AddrPortFrom(s.lab.Cluster.Node(node).IPs[0], nodePort)},
		{From: outside, To: netip.AddrPortFrom(address, webPort)},
	}, nil
}

// pod is a running pod of a workload on a node; nil: there is none.
func (s *migration) pod(app, node string) *corev1.Pod {
	for _, p := range s.lab.Cluster.Pods {
		if p.Labels["app"] == app && p.Spec.NodeName == node && p.DeletionTimestamp == nil && plan.Ready(p) {
			return p
		}
	}
	return nil
}

func (s *migration) service(name string) *corev1.Service {
	for _, svc := range s.lab.Cluster.Services {
		if svc.Name == name && svc.Namespace == "default" {
			return svc
		}
	}
	return nil
}

func (s *migration) nodes() (names []string) {
	for _, n := range s.lab.Cluster.Nodes {
		names = append(names, n.Name)
	}
	return names
}

// waitTime bounds each wait for a state.
const waitTime = 2 * time.Minute

// until waits until is is true.
func (s *migration) until(ctx context.Context, what string, is func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	s.Progress("waiting until %s", what)
	for {
		ok, err := is()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", what, ctx.Err(), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// before starts MetalLB, whose pools are there, and waits until the Services have their addresses.
func (s *migration) before(ctx context.Context) error {
	if _, err := s.kubectl(ctx, "create", "namespace", metalLBNamespace); err != nil {
		return err
	}
	s.Progress("starting MetalLB")
	for _, args := range [][]string{
		{"apply", "--server-side", "-f", s.Migration.addresses},
		{"apply", "--server-side", "-f", s.metalLB},
		{"-n", metalLBNamespace, "rollout", "status", "deployment/controller"},
		{"-n", metalLBNamespace, "rollout", "status", "daemonset/speaker"},
		{"apply", "-f", s.l2},
	} {
		if _, err := s.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	err := s.until(ctx, "all Services have addresses", func() (ok bool, err error) {
		s.given, err = s.addressesNow(ctx)
		return err == nil && len(s.given) == mostAddresses, err
	})
	if err != nil {
		return err
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.given)) {
		all = append(all, name+" "+s.given[name])
	}
	s.Say("addresses of Services: %s", strings.Join(all, ", "))
	s.who, err = askWho(s.lab.NodeNS(plan.Control), "eth0", plan.ControlIPs[0], netip.MustParseAddr(s.given[web]))
	if err != nil {
		return err
	}
	return s.answered(ctx)
}

// answered waits until somebody answers for the address of web, and has not just begun to.
func (s *migration) answered(ctx context.Context) error {
	return s.until(ctx, "somebody answers for "+s.given[web], func() (bool, error) {
		return s.who.answers(), nil
	})
}

const metalLBNamespace = "metallb-system"

// mostAddresses is how many Services get addresses.
const mostAddresses = 5

// addressesNow are those of Services, by name.
func (s *migration) addressesNow(ctx context.Context) (map[string]string, error) {
	var list corev1.ServiceList
	err := s.lab.Plane(func(p *control.Plane) error { return p.Get(ctx, "/api/v1/namespaces/default/services", &list) })
	given := map[string]string{}
	for i := range list.Items {
		if ips := plan.IngressIPs(&list.Items[i]); len(ips) > 0 {
			given[list.Items[i].Name] = model.Join(ips, ",")
		}
	}
	return given, err
}

func (s *migration) policies(ctx context.Context) error {
	return s.under(ctx, "node1", "Sluice enforces policies", false, func() error {
		return s.types(ctx, "helm install sluice deploy/helm/sluice -n kube-system --set kubernetes.host="+plan.ControlIPs[0].String()+
			" --set 'clusterCIDRs={"+model.Join(plan.ClusterCIDRs, ",")+"}' --set healthzAddress=:10266", rollout)
	})
}

func (s *migration) services(ctx context.Context) error {
	return s.under(ctx, "node1", "kube-proxy is gone", false, func() error {
		err := s.types(ctx,
			`kubectl -n kube-system patch daemonset kube-proxy -p '{"spec":{"template":{"spec":{"nodeSelector":{"sluice.dev/proxy":"kube-proxy"}}}}}'`,
			"kubectl -n kube-system wait --for=delete pod -l k8s-app=kube-proxy --timeout=2m")
		if err != nil {
			return err
		}
		for _, node := range s.nodes() {
			pod, err := s.agent(ctx, node)
			if err != nil {
				return err
			}
			out, err := s.typed(ctx, "kubectl -n kube-system exec "+pod+" -- sluice takeover --from kube-proxy")
			if err != nil {
				return err
			}
			if !s.verbose {
				s.quoteSome(out, "note", "sluice serves", "removed")
			}
		}
		return nil
	})
}

// quoteSome quotes the lines with one of some words.
func (s *migration) quoteSome(out string, words ...string) {
	for line := range strings.Lines(out) {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
			s.Quote(strings.TrimSpace(line))
		}
	}
}

// agent is the pod of Sluice on a node.
func (s *migration) agent(ctx context.Context, node string) (string, error) {
	out, err := s.kubectl(ctx, "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=sluice", "--field-selector", "spec.nodeName="+node, "-o", "name")
	return strings.TrimSpace(out), err
}

// networkFile is the former configuration of a node's pod network.
const networkFile = "/etc/cni/net.d/10-lab.conflist"

// formerStore is where it noted the addresses of pods.
const formerStore = "/var/lib/cni/networks/former"

func (s *migration) network(ctx context.Context) error {
	if err := s.types(ctx, upgrade("cni.enabled=true", "fabric.mode=pools", "healthzAddress=:10256", "updateStrategy.type=OnDelete")); err != nil {
		return err
	}
	return s.eachNode(ctx, func(node string) error {
		if err := s.remove(node, networkFile, formerStore); err != nil {
			return err
		}
		return s.formerRoutes(node, "del")
	})
}

func (s *migration) networkBack(ctx context.Context) error {
	if err := s.types(ctx, upgrade("cni.enabled=false", "fabric.mode=off", "healthzAddress=:10266", "updateStrategy.type=OnDelete")); err != nil {
		return err
	}
	return s.eachNode(ctx, func(node string) error {
		if err := s.formerRoutes(node, "add"); err != nil {
			return err
		}
		s.shown("install former.conflist " + filepath.Dir(networkFile))
		text, _, err := sandbox.Configuration(s.CNI, s.lab.Cluster.Node(node).PodCIDRs)
		if err == nil {
			err = os.WriteFile(s.lab.NodeFile(node, networkFile), text, 0o644)
		}
		if err != nil {
			return err
		}
		s.shown("sluice cni remove")
		out, err := exec.CommandContext(ctx, s.lab.Sluice, "cni", "remove", "--conf-dir", s.lab.NodeFile(node, "/etc/cni/net.d"), "--bin-dir", s.lab.NodeFile(node, "/opt/cni/bin")).CombinedOutput()
		if err != nil {
			return fmt.Errorf("sluice cni remove: %w: %s", err, out)
		}
		return s.remove(node, "/var/lib/cni/networks/sluice")
	})
}

// shown shows what is done on a node.
func (s *migration) shown(line string) {
	if !s.again {
		s.Ran(line)
	}
}

// remove removes files or folders of a node.
func (s *migration) remove(node string, files ...string) error {
	s.shown("rm -r " + strings.Join(files, " "))
	for _, file := range files {
		if err := os.RemoveAll(s.lab.NodeFile(node, file)); err != nil {
			return err
		}
	}
	return nil
}

// eachNode moves the pods of one node after the other to another network. All that have one end
// before there is the other, so that each is ended by the plugin that made it, and no address is
// given to two. Then it has a new agent there, changes what else is to be changed, and lets pods
// come back.
func (s *migration) eachNode(ctx context.Context, change func(node string) error) error {
	nodes := s.nodes()
	defer func() { s.again = false }()
	for i, node := range nodes {
		what := "pods of " + node + " moved"
		if s.again = i > 0 && !s.verbose; s.again {
			what = "the same for " + node
		}
		other := nodes[(i+1)%len(nodes)] // of which no pod ends
		err := s.under(ctx, other, what, true, func() error {
			agent := "-l app.kubernetes.io/name=sluice --field-selector spec.nodeName=" + node
			err := s.types(ctx,
				"kubectl taint node "+node+" sluice.dev/network=moving:NoSchedule",
				"kubectl drain "+node+" --ignore-daemonsets --delete-emptydir-data",
				"kubectl delete pod -l app=client --field-selector spec.nodeName="+node,
				"kubectl -n kube-system delete pod "+agent,
				"kubectl -n kube-system wait pod --for=create "+agent,
				"kubectl -n kube-system wait pod --for=condition=Ready "+agent)
			if err == nil {
				err = change(node)
			}
			if err != nil {
				return err
			}
			return s.types(ctx, "kubectl taint node "+node+" sluice.dev/network-", "kubectl uncordon "+node,
				"kubectl rollout status daemonset/client", "kubectl rollout status deployment/web")
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// formerRoutes takes the former network's routes to other nodes' pods from a node, by del, or puts
// them back, by add.
func (s *migration) formerRoutes(node, action string) error {
	ns, err := netns.Open(s.lab.NodeNS(node))
	if err != nil {
		return err
	}
	defer ns.Close()
	for _, n := range s.lab.Cluster.Nodes {
		for i, cidr := range n.PodCIDRs {
			if n.Name == node {
				continue
			}
			command := []string{"ip", "route", action, cidr.String(), "via", n.IPs[i].String()}
			s.shown(strings.Join(command, " "))
			if _, err := ns.Run(command[0], command[1:]...); err != nil {
				return err
			}
		}
	}
	return nil
}

// Without L2Advertisements nobody answers for an address. Otherwise MetalLB's speakers hand it to
// each other as they end and start one after the other, and connections by it end.
const (
	keepL2   = "kubectl -n metallb-system get l2advertisements -o yaml >l2.yaml"
	deleteL2 = "kubectl -n metallb-system delete l2advertisements --all"
	applyL2  = "kubectl apply -f l2.yaml"
)

func (s *migration) addresses(ctx context.Context) error {
	s.who.since()
	err := s.under(ctx, "node1", "MetalLB is gone", false, func() error {
		err := s.types(ctx, keepL2, deleteL2,
			"kubectl -n metallb-system delete daemonset/speaker deployment/controller",
			"kubectl delete validatingwebhookconfiguration metallb-webhook-configuration",
			upgrade("addresses.enabled=true", "updateStrategy.type=RollingUpdate", "maxUnavailable=100%"), rollout, applyL2)
		if err == nil {
			err = s.answered(ctx)
		}
		if err != nil {
			return err
		}
		return s.late(ctx)
	})
	if err != nil {
		return err
	}
	return s.moved()
}

// late makes a Service that keeps the address which it gets now, too.
func (s *migration) late(ctx context.Context) error {
	if err := s.types(ctx, "kubectl create service loadbalancer late --tcp=80"); err != nil {
		return err
	}
	err := s.until(ctx, "a further Service has an address", func() (bool, error) {
		given, err := s.addressesNow(ctx)
		s.given["late"] = given["late"]
		return given["late"] != "", err
	})
	s.Say("it has %s", s.given["late"])
	return err
}

// moved says how the address of web has moved.
func (s *migration) moved() error {
	mac, silence, moves := s.who.since()
	how := "as before"
	if moves > 0 {
		how = "after " + model.Count(moves, "move")
	}
	s.Say("asked by ARP every %d ms, %s answers for %s, %s; for at most %s nobody did", askTime.Milliseconds(), s.nodeOf(mac), s.given[web], how, span(silence))
	return nil
}

func (s *migration) addressesBack(ctx context.Context) error {
	s.who.since()
	err := s.under(ctx, "node1", "MetalLB is back", false, func() error {
		err := s.types(ctx, deleteL2, upgrade("addresses.enabled=false"), rollout,
			"kubectl apply --server-side -f metallb-native.yaml",
			"kubectl -n metallb-system rollout status deployment/controller",
			"kubectl -n metallb-system rollout status daemonset/speaker", applyL2)
		if err != nil {
			return err
		}
		return s.answered(ctx)
	})
	if err != nil {
		return err
	}
	return s.moved()
}

func (s *migration) servicesBack(ctx context.Context) error {
	return s.under(ctx, "node1", "kube-proxy is back", false, func() error {
		return s.types(ctx,
			`kubectl -n kube-system patch daemonset kube-proxy --type json -p '[{"op":"remove","path":"/spec/template/spec/nodeSelector/sluice.dev~1proxy"}]'`,
			upgrade("remove=takeover", "updateStrategy.type=RollingUpdate", "maxUnavailable=1"), rollout, "helm uninstall sluice -n kube-system")
	})
}

// owners are who carries out what.
type owners struct{ policies, services, network, addresses string }

// now shows who carries out what, as it is seen, and that it is as it should be.
func (s *migration) now(ctx context.Context, want owners) error {
	var got owners
	for _, look := range []struct {
		into *string
		at   func(context.Context) (string, error)
	}{{&got.policies, s.whoEnforces}, {&got.services, s.whoBalances}, {&got.network, s.whoAttaches}, {&got.addresses, s.whoGives}} {
		var err error
		if *look.into, err = look.at(ctx); err != nil {
			return err
		}
	}
	mac, _, _ := s.who.since()
	s.Say("now: policies %s, services %s, pod network %s, addresses %s (%s answers for %s)",
		got.policies, got.services, got.network, got.addresses, s.nodeOf(mac), s.given[web])
	if got != want {
		return fmt.Errorf("it should be %+v", want)
	}
	given, err := s.addressesNow(ctx)
	if err != nil {
		return err
	}
	if !maps.Equal(given, s.given) {
		return fmt.Errorf("Services have other addresses than before: %v, not %v", given, s.given)
	}
	for name, port := range map[string]uint16{"fixed": 80, "reserved": 80, "shared-1": 80, "shared-2": 81} {
		if _, err := ask(s.lab.NodeNS(plan.Outside), netip.AddrPortFrom(netip.MustParseAddr(given[name]), port), answerTime); err != nil {
			return fmt.Errorf("ask for the address of %s: %w", name, err)
		}
	}
	return nil
}

// whoEnforces asks for a port that a policy denies.
func (s *migration) whoEnforces(ctx context.Context) (string, error) {
	s.lab.Status(ctx)
	for _, node := range s.nodes() {
		from, to := s.pod("client", "node1"), s.pod(web, node)
		if from == nil || to == nil {
			continue
		}
		_, err := ask(s.lab.PodNS(from), netip.AddrPortFrom(plan.Addrs(to)[0], deniedPort), silenceTime)
		switch {
		case err == nil:
			return "nobody", nil
		case errors.Is(err, echo.ErrSilent):
			return "Sluice", nil
		}
		return "", err
	}
	return "", errors.New("there is no pod to ask for what is denied")
}

// whoBalances looks at the tables of nodes.
func (s *migration) whoBalances(context.Context) (string, error) {
	return s.perNode(func(n *plan.Node) (string, error) {
		ns, err := netns.Open(s.lab.NodeNS(n.Name))
		if err != nil {
			return "", err
		}
		defer ns.Close()
		out, err := ns.Run("nft", "list", "tables")
		own, other := strings.Contains(string(out), "table inet sluice\n"), strings.Contains(string(out), "table ip kube-proxy\n")
		switch {
		case err != nil:
			return "", err
		case own && other:
			return "Sluice beside kube-proxy", nil
		case own:
			return "Sluice", nil
		case other:
			return "kube-proxy", nil
		}
		return "nobody", nil
	})
}

// whoAttaches looks at the nodes' configurations of pod networks, of which the first by name
// counts.
func (s *migration) whoAttaches(context.Context) (string, error) {
	return s.perNode(func(n *plan.Node) (string, error) {
		files, _ := filepath.Glob(s.lab.NodeFile(n.Name, "/etc/cni/net.d/*.conflist")) // the pattern is well-formed
		if len(files) == 0 {
			return "nobody", nil
		}
		text, err := os.ReadFile(files[0])
		if err != nil {
			return "", err
		}
		var conf struct{ Plugins []struct{ Type string } }
		if err := json.Unmarshal(text, &conf); err != nil || len(conf.Plugins) == 0 {
			return "", fmt.Errorf("read %s: %w", files[0], err)
		}
		return conf.Plugins[0].Type, nil
	})
}

// perNode sums up what is seen of each node.
func (s *migration) perNode(look func(*plan.Node) (string, error)) (string, error) {
	seen := map[string][]string{}
	for i := range s.lab.Cluster.Nodes {
		n := &s.lab.Cluster.Nodes[i]
		what, err := look(n)
		if err != nil {
			return "", err
		}
		seen[what] = append(seen[what], n.Name)
	}
	var all []string
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		if len(seen) == 1 {
			return what, nil
		}
		all = append(all, what+" ("+strings.Join(seen[what], ", ")+")")
	}
	return strings.Join(all, ", "), nil
}

// whoGives has a Service that is new get an address, and looks at who has written it.
func (s *migration) whoGives(ctx context.Context) (who string, err error) {
	if _, err := s.kubectl(ctx, "create", "service", "loadbalancer", "new", "--tcp=80"); err != nil {
		return "", err
	}
	err = s.until(ctx, "a new Service has an address", func() (bool, error) {
		var svc corev1.Service
		err := s.lab.Plane(func(p *control.Plane) error {
			return p.Get(ctx, "/api/v1/namespaces/default/services/new", &svc)
		})
		for _, f := range svc.ManagedFields {
			if f.Subresource == "status" && f.FieldsV1 != nil && strings.Contains(string(f.FieldsV1.Raw), "f:ingress") {
				who = f.Manager
			}
		}
		return who != "", err
	})
	if err != nil {
		return "", err
	}
	if known := managers[who]; known != "" {
		who = known
	}
	_, err = s.kubectl(ctx, "delete", "service", "new")
	return who, err
}

// managers are those that write addresses, by what they are called in Services.
var managers = map[string]string{"controller": "MetalLB", "sluice-addresses": "Sluice"}

// nodeOf is the node of a MAC.
func (s *migration) nodeOf(mac string) string {
	for _, n := range s.lab.Cluster.Nodes {
		if ns, err := netns.Open(s.lab.NodeNS(n.Name)); err == nil {
			own, err := ns.Hardware("eth0")
			ns.Close()
			if err == nil && own.String() == mac {
				return n.Name
			}
		}
	}
	return "nobody"
}
