package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// recipe is one of the policy recipes that people learn by
// (github.com/ahmetb/kubernetes-network-policy-recipes): what its reader sets up, applies, and
// tries from pods. The namespace default stands for one that the recipe has to itself.
type recipe struct {
	setup  []string // lines of kubectl
	policy string
	checks []try
}

// try is a request from a pod with labels in a namespace.
type try struct {
	namespace, labels, url string
	passes                 bool
}

const webPod = "run web --image=nginx --labels=app=web --expose --port=80"

var recipes = map[string]recipe{
	"01 deny all traffic to an application": {
		setup:  []string{"run web --image=nginx --labels=app=web,env=prod --expose --port=80"},
		policy: policyOf("default", "app: web, env: prod", ""),
		checks: []try{{"default", "", "web", false}},
	},
	"02 limit traffic to an application": {
		setup:  []string{"run apiserver --image=nginx --labels=app=bookstore,role=api --expose --port=80"},
		policy: policyOf("default", "app: bookstore, role: api", "ingress: [{from: [{podSelector: {matchLabels: {app: bookstore}}}]}]"),
		checks: []try{{"default", "", "apiserver", false}, {"default", "app=bookstore,role=frontend", "apiserver", true}},
	},
	"02a allow all traffic to an application": {
		setup: []string{webPod},
		policy: policyOf("default", "", "") + "---\n" +
			strings.Replace(policyOf("default", "app: web", "ingress: [{}]"), "name: p", "name: q", 1),
		checks: []try{{"default", "", "web", true}},
	},
	"03 deny all traffic in the namespace": {
		setup:  []string{webPod},
		policy: policyOf("default", "", "ingress: []"),
		checks: []try{{"default", "", "web", false}, {"default", "app=any", "web", false}},
	},
	"04 deny traffic from other namespaces": {
		setup:  []string{"create namespace secondary04", "--namespace=secondary04 " + webPod},
		policy: policyOf("secondary04", "", "ingress: [{from: [{podSelector: {}}]}]"),
		checks: []try{{"default", "", "web.secondary04", false}, {"secondary04", "", "web.secondary04", true}},
	},
	"05 allow traffic from all namespaces": {
		setup: []string{"create namespace secondary05", webPod},
		policy: policyOf("default", "", "") + "---\n" +
			strings.Replace(policyOf("default", "app: web", "ingress: [{from: [{namespaceSelector: {}}]}]"), "name: p", "name: q", 1),
		checks: []try{{"secondary05", "", "web.default", true}, {"default", "", "web", true}},
	},
	"06 allow traffic from a namespace": {
		setup: []string{webPod, "create namespace dev", "label namespace/dev purpose=testing", "create namespace prod",
			"label namespace/prod purpose=production"},
		policy: policyOf("default", "app: web", "ingress: [{from: [{namespaceSelector: {matchLabels: {purpose: production}}}]}]"),
		checks: []try{{"dev", "", "web.default", false}, {"prod", "", "web.default", true}},
	},
	"07 allow traffic from some pods in another namespace": {
		setup: []string{webPod, "create namespace other", "label namespace/other team=operations"},
		policy: policyOf("default", "app: web",
			"ingress: [{from: [{namespaceSelector: {matchLabels: {team: operations}}, podSelector: {matchLabels: {type: monitoring}}}]}]"),
		checks: []try{
			{"default", "", "web.default", false}, {"default", "type=monitoring", "web.default", false},
			{"other", "", "web.default", false}, {"other", "type=monitoring", "web.default", true},
		},
	},
	"08 allow traffic from external clients": {
		setup:  []string{"run web --image=nginx --labels=app=web --port=80", "expose pod/web --type=LoadBalancer"},
		policy: policyOf("default", "app: web", "ingress: [{}]"),
		checks: []try{{outside, "", "web", true}, {"default", "", "web", true}},
	},
	"09 allow traffic only to a port": {
		setup: []string{"run apiserver --image=ahmet/app-on-two-ports --labels=app=apiserver --annotations=lab.sluice.dev/ports=8000,5000",
			"create service clusterip apiserver --tcp 8001:8000 --tcp 5001:5000"},
		policy: policyOf("default", "app: apiserver", "ingress: [{ports: [{port: 5000}], from: [{podSelector: {matchLabels: {role: monitoring}}}]}]"),
		checks: []try{
			{"default", "", "apiserver:8001", false}, {"default", "", "apiserver:5001/metrics", false},
			{"default", "role=monitoring", "apiserver:8001", false}, {"default", "role=monitoring", "apiserver:5001/metrics", true},
		},
	},
	"10 allow traffic with multiple selectors": {
		setup: []string{"run db --image=redis:4 --port=6379 --expose --labels=app=bookstore,role=db"},
		policy: policyOf("default", "app: bookstore, role: db", "ingress: [{from: [{podSelector: {matchLabels: {app: bookstore, role: search}}}, "+
			"{podSelector: {matchLabels: {app: bookstore, role: api}}}, {podSelector: {matchLabels: {app: inventory, role: web}}}]}]"),
		checks: []try{{"default", "app=inventory,role=web", "db:6379", true}, {"default", "app=other", "db:6379", false}},
	},
	"11 deny egress traffic from an application": {
		setup:  []string{webPod},
		policy: policyOf("default", "app: foo", "policyTypes: [Egress], egress: [{ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]}]"),
		checks: []try{{"default", "app=foo", "web:80", false}, {"default", "", "web:80", true}},
	},
	"12 deny all egress traffic from the namespace": {
		setup:  []string{"create namespace secondary12", "--namespace=secondary12 " + webPod},
		policy: policyOf("default", "", "policyTypes: [Egress], egress: []"),
		checks: []try{{"default", "", "web.secondary12", false}, {"secondary12", "", "web.secondary12", true}},
	},
	"14 deny external egress traffic": {
		setup: []string{webPod},
		policy: policyOf("default", "app: foo",
			"policyTypes: [Egress], egress: [{ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]}, {to: [{namespaceSelector: {}}]}]"),
		checks: []try{{"default", "app=foo", "web:80", true}, {"default", "app=foo", outside, false}, {"default", "", outside, true}},
	},
}

func policyOf(namespace, selects, rest string) string {
	if rest != "" {
		rest = ", " + rest
	}
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: %s}\n"+
		"spec: {podSelector: {matchLabels: {%s}}%s}\n", namespace, selects, rest)
}

// followRecipes follows each of the fourteen recipes, all at the same time: before its policy all
// requests pass, after it those that the recipe says.
func followRecipes(t *testing.T, l *lab.Lab) {
	t.Run("recipes", func(t *testing.T) {
		var namespaces strings.Builder
		for name := range recipes {
			fmt.Fprintf(&namespaces, "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", ownNamespace(name))
		}
		cook{t, l}.kubectl(namespaces.String(), "create", "-f", "-")
		var (
			mu       sync.Mutex
			prepared = map[string]table{}
		)
		t.Run("set up", func(t *testing.T) {
			for name, r := range recipes {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					on := cook{t, l}.setUp(ownNamespace(name), r)
					mu.Lock()
					defer mu.Unlock()
					prepared[name] = on
				})
			}
		})
		if err := l.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		for name, r := range recipes {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				cook{t, l}.follow(prepared[name], r.policy)
			})
		}
	})
}

func ownNamespace(recipe string) string {
	number, _, _ := strings.Cut(recipe, " ")
	return "recipe" + number
}

// checkKubectl runs and enters pods as the recipes' readers do.
func checkKubectl(t *testing.T, l *lab.Lab) {
	c := cook{t, l}
	c.kubectl("", "create", "namespace", "tried")
	c.kubectl("", append([]string{"-n", "tried"}, strings.Fields(webPod)...)...)
	if err := l.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args  string
		input string
		want  string
	}{
		{"run --rm -i --image=alpine test -- sh", "wget -qO- --timeout=2 http://web; exit\n", "nginx"},
		{"run --rm -i --restart=Never --image=alpine test2 -- ash -c 'echo of' 'the shell'", "", "of"},
		{"exec web -- sh -c 'ip -o address show; exit 3'", "", "exit code 3"},
		{"exec -i web -- cat", "what comes in", "what comes in"},
		{"exec web -- wget -qO- --timeout=5 http://web.default", "", `"namespace":"default"`},
		{"logs web", "", "GET / HTTP/1.1"},
	} {
		if out := c.run(tc.input, append([]string{"-n", "tried"}, words(tc.args)...)...); !strings.Contains(out, tc.want) {
			t.Errorf("kubectl %s does not say %q: %s", tc.args, tc.want, out)
		}
	}
}

// words parts a line at blanks, but not between quotation marks.
func words(line string) (all []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			all = append(all, part)
		} else {
			all = append(all, strings.Fields(part)...)
		}
	}
	return all
}

// cook follows recipes.
type cook struct {
	*testing.T
	lab *lab.Lab
}

// run runs kubectl and returns all that it says.
func (c cook) run(input string, args ...string) string {
	c.Helper()
	cmd := exec.CommandContext(c.Context(), filepath.Join(c.lab.Kubernetes.Bin, "kubectl"), append([]string{"--kubeconfig", c.lab.HostKubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, _ := cmd.CombinedOutput() // which says what failed, too
	return string(out)
}

// kubectl runs kubectl, which has to succeed, and returns what it says. It tries again while a new
// namespace has no account for its pods yet.
func (c cook) kubectl(input string, args ...string) string {
	c.Helper()
	out := c.run(input, args...)
	for deadline := time.Now().Add(30 * time.Second); strings.Contains(out, `serviceaccount "default" not found`) && time.Now().Before(deadline); {
		out = c.run(input, args...)
	}
	if strings.Contains(out, "rror") {
		c.Fatalf("kubectl %s: %s", strings.Join(args, " "), out)
	}
	return out
}

// table is what a recipe has been set up with.
type table struct {
	namespace string
	checks    []try
	clients   map[string]string         // the network namespaces that requests come from
	to        map[string]netip.AddrPort // where they go
}

// setUp makes what a recipe begins with, in a namespace.
func (c cook) setUp(own string, r recipe) table {
	for _, line := range r.setup {
		c.kubectl("", append([]string{"--namespace", own}, strings.Fields(line)...)...)
	}
	on := table{namespace: own}
	for _, check := range r.checks {
		if check.namespace == "default" {
			check.namespace = own
		}
		check.url = strings.Replace(check.url, ".default", "", 1)
		on.checks = append(on.checks, check)
	}
	on.clients, on.to = c.clients(on.checks), c.addresses(own, on.checks)
	return on
}

// follow applies a recipe's policy. Requests are those of its readers, without a kubectl for each,
// which checkKubectl shows.
func (c cook) follow(on table, policy string) {
	reaches := func(check try) bool {
		ns, err := netns.Open(on.clients[check.client()])
		if err != nil {
			c.Error(err)
			return false
		}
		defer ns.Close()
		err = ns.Do(func() error {
			conn, err := net.DialTimeout("tcp", on.to[check.target()].String(), time.Second)
			if err != nil {
				return err
			}
			return conn.Close()
		})
		// Nothing listens outside: what gets there is refused.
		return err == nil || check.url == outside && errors.Is(err, unix.ECONNREFUSED)
	}
	await := func(when string, check try, want bool) {
		deadline := time.Now().Add(60 * time.Second)
		for reaches(check) != want {
			if time.Now().After(deadline) {
				c.Errorf("%s: from %s (%s) to %s passes: %v, want %v", when, check.namespace, check.labels, check.url, !want, want)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	for _, check := range on.checks {
		await("before", check, true)
	}
	c.kubectl(strings.ReplaceAll(policy, "namespace: default", "namespace: "+on.namespace), "apply", "--server-side", "-f", "-")
	for _, check := range on.checks {
		await("after", check, check.passes)
	}
}

// outside is the host that is not in the cluster, as a namespace that requests come from and as a
// URL.
const outside = "OUTSIDE"

// client names who makes a request, and target whom it is for: from outside, a service has another
// address.
func (t try) client() string { return t.namespace + " " + t.labels }
func (t try) target() string { return fmt.Sprint(t.url, t.namespace == outside) }

// clients runs a pod for each namespace and labels that requests come from, and returns the network
// namespaces that they will be in.
func (c cook) clients(checks []try) map[string]string {
	networks, pods := map[string]string{}, ""
	for _, check := range checks {
		switch {
		case networks[check.client()] != "":
		case check.namespace == outside:
			networks[check.client()] = c.lab.NodeNS(plan.Outside)
		default:
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("client-%d", len(networks)), Namespace: check.namespace}}
			networks[check.client()] = c.lab.PodNS(&pod)
			pods += fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: %s, labels: {%s}}\nspec: {containers: [{name: c, image: client}]}\n",
				pod.Name, pod.Namespace, strings.NewReplacer("=", ": ", ",", ", ").Replace(check.labels))
		}
	}
	if pods != "" {
		c.kubectl(pods, "create", "-f", "-")
	}
	return networks
}

// addresses returns where the requests of a recipe go.
func (c cook) addresses(own string, checks []try) map[string]netip.AddrPort {
	to := map[string]netip.AddrPort{}
	for _, check := range checks {
		if to[check.target()].IsValid() {
			continue
		}
		if check.url == outside {
			to[check.target()] = netip.AddrPortFrom(c.lab.Cluster.OutsideIPs[0], 80)
			continue
		}
		host, _, _ := strings.Cut(check.url, "/")
		name, port, _ := strings.Cut(host, ":")
		service, namespace, _ := strings.Cut(name, ".")
		field := "{.spec.clusterIP}"
		if check.namespace == outside {
			field = "{.status.loadBalancer.ingress[0].ip}"
		}
		ip := c.kubectl("", "wait", "service", service, "-n", cmp.Or(namespace, own), "--for=jsonpath="+field, "-o", "jsonpath="+field)
		address, err := netip.ParseAddrPort(ip + ":" + cmp.Or(port, "80"))
		if err != nil {
			c.Fatal(err)
		}
		to[check.target()] = address
	}
	return to
}
