package main

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/lab"
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
		checks: []try{{"outside", "", "web", true}, {"default", "", "web", true}},
	},
	"09 allow traffic only to a port": {
		setup: []string{"run apiserver --image=ahmet/app-on-two-ports --labels=app=apiserver",
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
		checks: []try{{"default", "app=foo", "web:80", true}, {"default", "app=foo", "OUTSIDE", false}, {"default", "", "OUTSIDE", true}},
	},
}

func policyOf(namespace, selects, rest string) string {
	if rest != "" {
		rest = ", " + rest
	}
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p, namespace: %s}\n"+
		"spec: {podSelector: {matchLabels: {%s}}%s}\n", namespace, selects, rest)
}

// followRecipes follows each of the fourteen recipes with kubectl alone, all at the same time:
// before its policy all requests pass, after it those that the recipe says.
func followRecipes(t *testing.T, l *lab.Lab) {
	t.Run("recipes", func(t *testing.T) {
		for name, r := range recipes {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				number, _, _ := strings.Cut(name, " ")
				cook{t, l}.follow("recipe"+number, r)
			})
		}
	})
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
		{"run --rm -i --image=alpine test -- sh", "wget -qO- --timeout=2 http://web; exit\n", `"pod":"web"`},
		{"run --rm -i --image=alpine test2 -- ash -c 'echo of' 'the shell'", "", "of"},
		{"exec web -- sh -c 'ip -o address show; exit 3'", "", "exit code 3"},
		{"exec -i web -- cat", "what comes in", "what comes in"},
		{"logs web", "", "there is no log"},
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

// kubectl runs kubectl, which has to succeed. It tries again while a new namespace has no account
// for its pods yet.
func (c cook) kubectl(input string, args ...string) {
	c.Helper()
	out := c.run(input, args...)
	for deadline := time.Now().Add(30 * time.Second); strings.Contains(out, `serviceaccount "default" not found`) && time.Now().Before(deadline); {
		out = c.run(input, args...)
	}
	if strings.Contains(out, "rror") {
		c.Fatalf("kubectl %s: %s", strings.Join(args, " "), out)
	}
}

// follow follows a recipe in a namespace.
func (c cook) follow(own string, r recipe) {
	c.kubectl("", "create", "namespace", own)
	for _, line := range r.setup {
		c.kubectl("", append([]string{"--namespace", own}, strings.Fields(line)...)...)
	}
	var checks []try
	for _, check := range r.checks {
		if check.namespace == "default" {
			check.namespace = own
		}
		check.url = strings.Replace(check.url, ".default", "."+own, 1)
		checks = append(checks, check)
	}
	clients := c.clients(checks)
	reaches := func(check try) bool {
		if check.namespace == "outside" {
			ip := c.run("", "get", "service", "web", "-n", own, "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
			cmd := exec.CommandContext(c.Context(), "wget", "-qO-", "--timeout=1", "--tries=1", "http://"+ip)
			cmd.Stdout = new(bytes.Buffer)
			return c.lab.Start("outside", cmd) == nil && cmd.Wait() == nil
		}
		// Nothing listens outside: what gets there is refused.
		url := strings.Replace(check.url, "OUTSIDE", c.lab.Cluster.OutsideIPs[0].String(), 1)
		out := c.run("", "exec", "-n", check.namespace, clients[check.namespace+" "+check.labels], "--", "wget", "-O-", "--timeout=1", "http://"+url)
		return strings.Contains(out, `"pod":`) || strings.Contains(out, "refused") && url != check.url
	}
	await := func(when string, check try, want bool) {
		deadline := time.Now().Add(30 * time.Second)
		for reaches(check) != want {
			if time.Now().After(deadline) {
				c.Errorf("%s: from %s (%s) to %s passes: %v, want %v", when, check.namespace, check.labels, check.url, !want, want)
				return
			}
		}
	}
	for _, check := range checks {
		await("before", check, true)
	}
	c.kubectl(strings.ReplaceAll(r.policy, "namespace: default", "namespace: "+own), "apply", "-f", "-")
	for _, check := range checks {
		await("after", check, check.passes)
	}
}

// clients runs a pod for each namespace and labels that requests come from, and returns their
// names, once all pods there are ready.
func (c cook) clients(checks []try) map[string]string {
	names, namespaces := map[string]string{}, map[string]bool{}
	for _, check := range checks {
		key := check.namespace + " " + check.labels
		if names[key] != "" || check.namespace == "outside" {
			continue
		}
		names[key], namespaces[check.namespace] = fmt.Sprintf("client-%d", len(names)), true
		c.kubectl("", "run", names[key], "-n", check.namespace, "--image=alpine", "--labels="+check.labels, "--", "sleep", "10000")
	}
	for namespace := range namespaces {
		c.kubectl("", "wait", "-n", namespace, "--for=condition=Ready", "pods", "--all", "--timeout=60s")
	}
	return names
}
