package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/test/lab/control"
)

// role lets our user read everything that the agent follows without policy, except one resource.
func role(without string) string {
	var rules []string
	for _, r := range []struct{ group, resource string }{{"", "services"}, {"", "nodes"}, {"discovery.k8s.io", "endpointslices"}} {
		if r.resource != without {
			rules = append(rules, fmt.Sprintf("{apiGroups: [%q], resources: [%q], verbs: [list, watch]}", r.group, r.resource))
		}
	}
	return fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: sluice}
rules: [%s]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sluice}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: sluice}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: sluice}]
`, strings.Join(rules, ", "))
}

const oddObjects = `
apiVersion: v1
kind: Node
metadata: {name: bare}
---
apiVersion: v1
kind: Service
metadata: {name: twin}
spec: {clusterIP: 10.96.0.90, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: twin-1, labels: {kubernetes.io/service-name: twin}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.9]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: twin-2, labels: {kubernetes.io/service-name: twin}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.9]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: lonely, labels: {kubernetes.io/service-name: nobody}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.10]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: names, labels: {kubernetes.io/service-name: twin}}
addressType: FQDN
endpoints: [{addresses: [example.org]}]
`

// preflightPolicies checks policies with an account that may read none: that is said, and nothing
// is taken for fine.
func (s *proxyNode) preflightPolicies(t *testing.T, kubeconfig string) {
	t.Helper()
	out, err := s.NetNS.Run(self, "preflight", "--policies", "--kubeconfig="+kubeconfig, "--node=node-a")
	words := strings.Join(strings.Fields(fmt.Sprint(string(out), err)), " ")
	for _, want := range []string{"exit status 3", `fail refused NetworkPolicy (networking.k8s.io/v1): networkpolicies.networking.k8s.io is forbidden`, "fail refused Pod (v1)",
		"not all policies can be carried out as they are written"} {
		if !strings.Contains(words, want) {
			t.Errorf("it does not say %q: %s\n%v", want, out, err)
		}
	}
}

// An agent on a real API server copes with odd objects, with a server that is away or back, and
// with the loss of its rights.
func agentOnRealAPI(t *testing.T, s *proxyNode) {
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "odd.yaml", oddObjects), "-f", s.file(t, "role.yaml", role("")))
	kubeconfig, err := s.Kubeconfig("sluice")
	if err != nil {
		t.Fatal(err)
	}
	s.preflightPolicies(t, kubeconfig)
	_, socket := s.sluice(t, "--kubeconfig="+kubeconfig, "--node=node-a", "--policy=false", "--set-sysctls=false")
	client := agent.NewClient(socket)
	status := func() agent.Status {
		status, err := client.Status(t.Context())
		if err != nil {
			return agent.Status{}
		}
		return status
	}
	says := func(words ...string) bool {
		text := fmt.Sprint(status().Issues)
		for _, w := range words {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	}
	eventually(t, "all is programmed", func() bool { return status().OK })
	if st := status(); st.Frontends != 4 || st.Backends != 4 || st.Source.Skipped["EndpointSlice"] != 1 {
		t.Errorf("the API server's service, web with its node port, and twin, with one backend each, make %d frontends with %d backends; passed over: %v",
			st.Frontends, st.Backends, st.Source.Skipped)
	}
	value := func(series string) (v string) {
		_, body := s.get("127.0.0.1:10249/metrics")
		if m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (.*)$`).FindStringSubmatch(body); m != nil {
			v = m[1]
		}
		return v
	}
	operations := value("sluice_operations_total")
	unchanged := func(when string) {
		t.Helper()
		if now := value("sluice_operations_total"); now != operations {
			t.Errorf("%s, %s operations have become %s", when, operations, now)
		}
	}

	if err := s.Kill(control.APIServer); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the outage is reported", func() bool { return says("Kubernetes API", "refused") })
	eventually(t, "nothing is said to work", func() bool {
		text := strings.Join(status().Problems, "; ")
		return strings.Contains(text, "what changed since may not be known") && !strings.Contains(text, "the rest works")
	})
	if value(`sluice_source_kind_behind_seconds{kind="Service",source="kubernetes"}`) == "0" {
		t.Error("no metric shows the outage")
	}
	unchanged("while the API server is away")
	if err := s.Restart(t.Context(), control.APIServer); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is well again", func() bool { return status().OK })
	unchanged("now that the API server is back")

	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "role.yaml", role("endpointslices")))
	if err := s.Restart(t.Context(), control.APIServer); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the missing right is reported", func() bool {
		return says("EndpointSlice", `apiGroups: ["discovery.k8s.io"], resources: ["endpointslices"], verbs: [list, watch]`)
	})
	unchanged("without the right to read endpoints")
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "role.yaml", role("")))
	// The agent's own next try is up to 15 s away.
	eventually(t, "all is well again", func() bool { return client.Sync(t.Context()) == nil && status().OK })
	unchanged("with the right again")

	s.kubectl(t, "patch", "endpointslice", "web-1", "--type=merge", "-p", `{"endpoints":[{"addresses":["10.244.0.8"],"nodeName":"node-a"}]}`)
	eventually(t, "a change is programmed", func() bool { return strings.Contains(nft(t, s.NetNS, "list table inet sluice"), "10.244.0.8") })
	if n := value(`sluice_source_kind_reconnects_total{kind="Service",source="kubernetes"}`); n == "" || n == "0" {
		t.Errorf("%q reconnects are counted", n)
	}
	if code, _ := s.get("127.0.0.1:10256/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d", code)
	}
}

const apiThief = `
apiVersion: v1
kind: Service
metadata: {name: thief}
spec: {clusterIP: 10.96.0.91, externalIPs: [192.0.2.1], ports: [{name: api, port: 6443}, {name: ssh, port: 22}, {name: web, port: 81}]}
`

// A service cannot take an agent's path to its API, even where the address is allowed, nor anything
// else that listens there. An agent that starts afresh reads the API, too.
func nobodyTakesTheAPI(t *testing.T, s *proxyNode) {
	listen(t, s.NetNS, "192.0.2.1:22")
	s.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", s.file(t, "thief.yaml", apiThief), "-f", s.file(t, "role.yaml", role("")))
	kubeconfig, err := s.Kubeconfig("sluice")
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		flag   string
		served bool // the ports that nobody listens on
		says   []string
	}{
		{"--external-ip-cidrs=0.0.0.0/0", false, []string{"externalIP 192.0.2.1 is an address of node node-a"}},
		{"--allow-node-addresses=0.0.0.0/0", true, []string{"TCP 192.0.2.1:6443 is where the API server is reached", "TCP 192.0.2.1:22 is a port that nodes need"}},
	} {
		for life := range 2 {
			p, socket := s.sluice(t, "--kubeconfig="+kubeconfig, "--node=node-a", "--policy=false", "--set-sysctls=false", c.flag)
			eventually(t, "the agent has read the API and programmed it", func() bool {
				st, err := agent.NewClient(socket).Status(t.Context())
				return err == nil && st.Source.Synced && st.LastApply != nil
			})
			st, err := agent.NewClient(socket).Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, say := range c.says {
				if !strings.Contains(fmt.Sprint(st.Issues), "Service default/thief: "+say) {
					t.Errorf("%s, life %d: the status does not say %q: %v", c.flag, life, say, st.Issues)
				}
			}
			if !hears(s.NetNS, "192.0.2.1:22") {
				t.Errorf("%s, life %d: what listens at port 22 is not reached", c.flag, life)
			}
			if table := nft(t, s.NetNS, "list table inet sluice"); strings.Contains(table, "192.0.2.1 . tcp . 81") != c.served {
				t.Errorf("%s, life %d: its own port is served: %t", c.flag, life, !c.served)
			}
			address := fmt.Sprintf("10.244.0.%d", 100+2*i+life)
			s.kubectl(t, "patch", "endpointslice", "web-1", "--type=merge", "-p", `{"endpoints":[{"addresses":["`+address+`"],"nodeName":"node-a"}]}`)
			eventually(t, "a change is programmed", func() bool { return strings.Contains(nft(t, s.NetNS, "list table inet sluice"), address) })
			p.kill()
		}
	}
}
