package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/sandbox"
	"sluice.dev/sluice/test/netns"
)

// before starts MetalLB, whose pools are there, and waits until the Services have their addresses.
func (s *migration) before(ctx context.Context) error {
	if _, err := s.kubectl(ctx, "create", "namespace", metalLBNamespace); err != nil {
		return err
	}
	s.Progress("starting MetalLB")
	for _, args := range [][]string{
		{"apply", "--server-side", "-f", s.Migration.addresses},
		// The controller would make it, but kubelets try ever less often to mount what is missing.
		{"-n", metalLBNamespace, "create", "secret", "generic", "memberlist", "--from-literal=secretkey=" + rand.Text()},
		{"apply", "--server-side", "-f", s.metalLB},
		{"-n", metalLBNamespace, "wait", "pod", "--for=create", "-l", "component=speaker"},
		{"-n", metalLBNamespace, "wait", "pod", "--for=jsonpath={.status.containerStatuses[0].started}=true", "-l", "component=speaker", "--timeout=2m"},
		{"-n", metalLBNamespace, "rollout", "status", "deployment/controller"}, // its webhooks answer then
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

// answered waits until somebody answers for the address of web.
func (s *migration) answered(ctx context.Context) error {
	return s.until(ctx, "somebody answers for "+s.given[web], func() (bool, error) { return s.who.answers(), nil })
}

const metalLBNamespace = "metallb-system"

// mostAddresses is how many Services get addresses.
const mostAddresses = 5

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
				s.quoteSome(out, "sluice serves", "removed")
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
