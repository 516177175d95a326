package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
)

// Manifests are checked without a cluster: each fault and each hint is one line.
func TestCheck(t *testing.T) {
	const (
		typo  = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: typo, namespace: shop}, spec: {podSelector: {}, ingress: [{form: []}]}}\n"
		idle  = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: idle, namespace: shop}, spec: {podSelector: {matchLabels: {app: bd}}}}\n"
		lease = "{apiVersion: v1, kind: Service, metadata: {name: first, namespace: shop}, spec: {ports: [{port: 80}], externalIPs: [203.0.113.5]}}\n---\n" +
			"{apiVersion: v1, kind: Service, metadata: {name: second, namespace: shop}, spec: {ports: [{port: 80}], externalIPs: [203.0.113.5]}}\n"
		tiered  = "{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: security.deny}, spec: {tier: security}}\n"
		unused  = "{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: security.x, namespace: shop}, spec: {tier: security, selector: app == 'bd'}}\n"
		peer    = "{apiVersion: projectcalico.org/v3, kind: BGPPeer, metadata: {name: tor}, spec: {peerIP: 192.0.2.1, asNumber: 64501, filters: [a, b]}}\n"
		vain    = "unused.yaml:1: NetworkPolicy.projectcalico.org shop/security.x: hint: spec.selector: selects no pod of namespace shop, so the policy does nothing\n"
		wrong   = "typo.yaml:1: NetworkPolicy shop/typo: spec.ingress[0].form: there is no such field\n"
		none    = "idle.yaml:1: NetworkPolicy shop/idle: hint: spec.podSelector: selects no pod of namespace shop, so the policy does nothing\n"
		rival   = "lease.yaml:3: Service shop/second: TCP 203.0.113.5:80 belongs to Service shop/first, which comes first by name; give one of them another address or port\n"
		twice   = "web.yaml:1: NetworkPolicy shop/typo: is declared in typo.yaml:1 as well\n"
		waits   = "tiered.yaml:1: GlobalNetworkPolicy security.deny: note: spec.tier: it waits for Tier security, which no file has\n"
		adverts = "{apiVersion: metallb.io/v1beta1, kind: L2Advertisement, metadata: {name: arp, namespace: lb}, spec: {ipAddressPools: [inside, outside]}}\n---\n" +
			"{apiVersion: metallb.io/v1beta1, kind: BGPAdvertisement, metadata: {name: bgp, namespace: lb}, spec: {ipAddressPools: [outside]}}\n---\n" +
			"{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: inside, namespace: lb}, spec: {addresses: [192.0.2.0/24]}}\n"
		poolless = "adverts.yaml:1: L2Advertisement lb/arp: note: spec.ipAddressPools: it announces nothing of IPAddressPool lb/outside, which no file has\n" +
			"adverts.yaml:3: BGPAdvertisement lb/bgp: note: spec.ipAddressPools: it announces nothing of IPAddressPool lb/outside, which no file has\n"
		names   = "{apiVersion: projectcalico.org/v3, kind: NetworkPolicy, metadata: {name: out, namespace: shop}, spec: {selector: app == 'web', types: [Egress], egress: [{action: Allow, destination: {services: {name: weib}}}, {action: Allow, destination: {services: {name: weib}}}]}}\n"
		unknown = "out.yaml:1: NetworkPolicy.projectcalico.org shop/out: note: its rules name Service shop/weib, which no file has: by it they match nothing\n"
		filters = "peer.yaml:1: BGPPeer tor: note: spec.filters: it waits for BGPFilter a, which no file has\n" +
			"peer.yaml:1: BGPPeer tor: note: spec.filters: it waits for BGPFilter b, which no file has\n"
		pool = `apiVersion: metallb.io/v1beta1
kind: AddressPool
metadata: {name: outside, namespace: metallb-system}
spec: {protocol: layer2, addresses: [192.0.2.240-192.0.2.250]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: config, namespace: metallb-system}
data:
  config: |
    address-pools:
    - name: default
      protocol: layer2
      addresses: [192.0.2.240-192.0.2.250]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: LoadBalancer, clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], ipFamilies: [IPv4], ports: [{port: 80, nodePort: 30100}]}
---
apiVersion: discovery.k8s.io/v1beta1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.5]}]
ports: [{port: 80, name: "", protocol: TCP}]
`
		old = "pool.yaml:1: metallb.io/v1beta1 AddressPool metallb-system/outside: is not in force, as Sluice does not read it; write it as an IPAddressPool of metallb.io/v1beta1, and an L2Advertisement or BGPAdvertisement\n" +
			"pool.yaml:6: v1 ConfigMap metallb-system/config: is not in force, as Sluice does not read it; write it as IPAddressPools, L2Advertisements, BGPAdvertisements and BGPPeers of metallb.io\n" +
			"pool.yaml:21: discovery.k8s.io/v1beta1 EndpointSlice default/web-1: is not in force, as Sluice does not read it; write it as discovery.k8s.io/v1\n"
		tier = `tiered.yaml:1: GlobalNetworkPolicy security.deny: spec.tier: there is no Tier security, for which it waits: make the Tier, or name one that exists` + "\n"
	)
	for _, c := range []struct {
		files  map[string]string // beside shop.yaml
		flags  string
		status int
		says   string
	}{
		{map[string]string{"web.yaml": web, "values.txt": "{{ broken"}, "", 0, ""},
		{map[string]string{"typo.yaml": typo}, "", 3, wrong},
		{map[string]string{"idle.yaml": idle, "typo.yaml": typo}, "", 3, none + wrong},
		{map[string]string{"idle.yaml": idle}, "", 0, none},
		{map[string]string{"idle.yaml": idle}, "--strict", 3, none},
		{map[string]string{"broken.yaml": "a: b: c\n", "half.yaml": "apiVersion: v1\n"}, "", 3, "broken.yaml:1: mapping values are not allowed in this context\nhalf.yaml:1: kind: is missing\n"},
		{map[string]string{"idle.yaml": idle, "bare.txt": ""}, "--strict", 0, ""},
		{map[string]string{"lease.yaml": lease}, "", 3, rival},
		{map[string]string{"typo.yaml": typo, "web.yaml": strings.ReplaceAll(typo, "form", "from")}, "", 3, wrong + twice},
		{map[string]string{"tiered.yaml": tiered}, "--strict", 0, waits},
		{map[string]string{"tiered.yaml": tiered, "tier.yaml": "{apiVersion: projectcalico.org/v3, kind: Tier, metadata: {name: security}}\n"}, "--strict", 0, ""},
		{map[string]string{"adverts.yaml": adverts}, "--strict", 0, poolless},
		{map[string]string{"out.yaml": names}, "--strict", 0, unknown},
		{map[string]string{"out.yaml": names, "weib.yaml": "{apiVersion: v1, kind: Service, metadata: {name: weib, namespace: shop}, spec: {ports: [{port: 80}]}}\n"}, "--strict", 0, ""},
		{map[string]string{"zone.yaml": adverts[strings.Index(adverts, "---\n")+4:]}, "--complete --strict", 3, "zone.yaml:1: BGPAdvertisement lb/bgp: hint: spec.ipAddressPools: it announces nothing of IPAddressPool lb/outside, which no file has\n"},
		{map[string]string{"tiered.yaml": tiered}, "--complete", 3, tier},
		{map[string]string{"peer.yaml": peer, "unused.yaml": unused}, "", 0, filters + "unused.yaml:1: NetworkPolicy.projectcalico.org shop/security.x: note: spec.tier: it waits for Tier security, which no file has\n" + vain},
		{map[string]string{"unused.yaml": unused}, "--complete", 3, vain},
		{map[string]string{"pool.yaml": pool}, "", 3, old},
	} {
		dir := folder(t, c.files)
		if _, bare := c.files["bare.txt"]; !bare {
			write(t, dir, "shop.yaml", strings.ReplaceAll(shop, "app: api", "app: web"))
		}
		status, stdout, stderr := sluice(t, append(strings.Fields("check "+c.flags), dir)...)
		if strings.HasPrefix(c.flags, "--complete") { // which says more of this shop
			lines := strings.SplitAfter(stdout, "\n")
			stdout = lines[len(lines)-2]
		}
		if got := strings.ReplaceAll(stdout, dir+"/", ""); status != c.status || !strings.Contains(stderr, " checked") || !strings.HasPrefix(got, strings.TrimSuffix(c.says, "\n")) || strings.Count(got, "\n") != strings.Count(c.says, "\n") {
			t.Errorf("%v %s: status %d, want %d; %q, want %q; %s", slices.Sorted(maps.Keys(c.files)), c.flags, status, c.status, got, c.says, stderr)
		}
	}

	// Selectors meet the pods of every workload, those of single replicas too, and the last line
	// counts everything once.
	const pods = "template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, ports: [{name: web, containerPort: 80}]}]}}"
	var all strings.Builder
	for name, head := range map[string]string{
		"a": "apiVersion: apps/v1, kind: Deployment", "b": "apiVersion: apps/v1, kind: StatefulSet", "c": "apiVersion: apps/v1, kind: DaemonSet", "d": "apiVersion: apps/v1, kind: ReplicaSet",
		"e": "apiVersion: batch/v1, kind: Job", "f": "apiVersion: v1, kind: ReplicationController", "g": "apiVersion: argoproj.io/v1alpha1, kind: Rollout", "h": "apiVersion: extensions/v1beta1, kind: Deployment",
	} {
		all.WriteString("{" + head + ", metadata: {name: " + name + ", namespace: shop}, spec: {replicas: 2, " + strings.ReplaceAll(pods, "app: x", "app: "+name) + "}}\n---\n")
	}
	all.WriteString("{apiVersion: batch/v1, kind: CronJob, metadata: {name: i, namespace: shop}, spec: {jobTemplate: {spec: {" + strings.ReplaceAll(pods, "app: x", "app: i") + "}}}}")
	selects := []string{"app: bd"}
	for _, name := range strings.Split("abcdefghi", "") {
		selects = append(selects, "app: "+name)
	}
	for i, labels := range append(selects, "statefulset.kubernetes.io/pod-name: b-1", "job-name: e") {
		fmt.Fprintf(&all, "\n---\n{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p%[1]d, namespace: shop}, spec: {podSelector: {matchLabels: {%[2]s}}}}\n---\n"+
			"{apiVersion: v1, kind: Service, metadata: {name: s%[1]d, namespace: shop}, spec: {selector: {%[2]s}, ports: [{port: 80, targetPort: web}]}}", i, labels)
	}
	all.WriteString("\n---\n{apiVersion: v1, kind: ConfigMapList, items: [{metadata: {name: x}}, {metadata: {name: y}}]}\n---\n{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: x}}\n---\n" + pool)
	status, stdout, stderr := sluice(t, "check", "--strict", folder(t, map[string]string{"all.yaml": all.String()}))
	if lines := strings.Split(strings.TrimSpace(stdout), "\n"); status != 3 || len(lines) != 5 || !strings.Contains(lines[0], "NetworkPolicy shop/p0: hint: ") || !strings.Contains(lines[1], "Service shop/s0: hint: ") ||
		stderr != "34 objects checked; 3 not read; 3 are nothing to Sluice: ClusterRole 1, ConfigMap 2\n" {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}

	dir := folder(t, map[string]string{"typo.yaml": typo})
	status, stdout, _ = sluice(t, "check", "-o", "json", filepath.Join(dir, "typo.yaml"))
	var got []finding
	want := finding{dir + "/typo.yaml:1", model.Ref{Kind: model.NetworkPolicy, Name: model.Name{Namespace: "shop", Name: "typo"}}, severityFault, "spec.ingress[0].form: there is no such field"}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || status != 3 || len(got) != 1 || got[0] != want {
		t.Errorf("status %d, %s", status, stdout)
	}
	if status, _, stderr := sluice(t, "check", filepath.Join(dir, "missing.yaml")); status != cli.ExitError || !strings.Contains(stderr, "missing.yaml: no such file") {
		t.Errorf("status %d, %s", status, stderr)
	}
	if status, _, stderr := sluice(t, "check", folder(t, nil)); status != cli.ExitError || !strings.Contains(stderr, "nothing to check: there is no object that Sluice reads in ") {
		t.Errorf("status %d, %s", status, stderr)
	}
	roles := folder(t, map[string]string{"roles.yaml": "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: x}}"})
	if status, _, stderr := sluice(t, "check", roles); status != cli.ExitError || !strings.HasSuffix(stderr, "; 1 is nothing to Sluice: ClusterRole 1\n") {
		t.Errorf("status %d, %s", status, stderr)
	}
	if status, _, stderr := sluice(t, "check"); status != cli.ExitUsage || !strings.Contains(stderr, "check needs FILE...; for example: sluice check deploy/") {
		t.Errorf("status %d, %s", status, stderr)
	}

	root := newRootCommand()
	root.SetIn(strings.NewReader(typo))
	var out bytes.Buffer
	if status := cli.Execute(t.Context(), root, []string{"check", "-"}, &out, io.Discard); status != 3 || out.String() != strings.ReplaceAll(wrong, "typo.yaml", "stdin") {
		t.Errorf("status %d, %s", status, out.String())
	}
}

// What an agent would say of Nodes, check says too, whichever agent that would be.
func TestCheckNodes(t *testing.T) {
	node := func(name, cidr, address, more string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s, %s}, spec: {podCIDRs: [%s]}, status: {addresses: [{type: InternalIP, address: %s}]}}\n---\n", name, more, cidr, address)
	}
	const mac = "annotations: {projectcalico.org/VXLANTunnelMACAddr: '02:00:00:00:00:6d'}"
	vxlan := fmt.Sprintf(onePool, "Always", false)
	for name, c := range map[string]struct {
		nodes, pool, flags string
		says               []string
	}{
		"nothing is wrong": {nodes: node("b", "10.244.2.0/24", "192.0.2.2", "") + node("a", "10.244.1.0/24", "198.51.100.1", "")},
		"one pod CIDR": {nodes: node("b", "10.244.1.0/24", "192.0.2.2", "") + node("a", "10.244.1.0/24", "192.0.2.1", ""),
			says: []string{"Node b: its pod CIDR 10.244.1.0/24 is that of Node a, which comes first by name: its pods there are not reached"}},
		"one pod CIDR, and ages": {nodes: node("b", "10.244.1.0/24", "192.0.2.2", "creationTimestamp: '2020-01-01T00:00:00Z'") + node("a", "10.244.1.0/24", "192.0.2.1", "creationTimestamp: '2021-01-01T00:00:00Z'"),
			says: []string{"Node a: its pod CIDR 10.244.1.0/24 is that of Node b, which was there first: its pods there are not reached"}},
		"one address": {nodes: node("b", "10.244.2.0/24", "192.0.2.1", "") + node("a", "10.244.1.0/24", "192.0.2.1", "") + node("c", "10.244.3.0/24", "192.0.2.3", ""),
			says: []string{"Node b: its address 192.0.2.1 is that of Node a, which comes first by name: its pods of 10.244.2.0/24 are not reached"}},
		"one MAC": {nodes: node("b", "10.244.2.0/24", "192.0.2.2", mac) + node("a", "10.244.1.0/24", "192.0.2.1", mac), pool: vxlan,
			says: []string{"Node b: the MAC 02:00:00:00:00:6d of its VXLAN device is that of Node a, which comes first by name"}},
		"a family": {nodes: node("b", "fd00:10:2::/64", "192.0.2.2", "") + node("a", "'10.244.1.0/24', 'fd00:10:1::/64'", "192.0.2.1", ""),
			says: []string{"Node b: it has no IPv6 address: its pods of fd00:10:2::/64 are not reached", "Node a: it has no IPv6 address: its pods of fd00:10:1::/64 are not reached"}},
		"no pool": {nodes: node("b", "10.245.2.0/24", "192.0.2.2", ""), pool: vxlan, flags: "--complete",
			says: []string{"Node b: no IPPool holds its pod CIDR 10.245.2.0/24"}},
		"no pool here": {nodes: node("b", "10.245.2.0/24", "192.0.2.2", ""), pool: vxlan},
	} {
		dir := folder(t, map[string]string{"nodes.yaml": c.nodes, "pool.yaml": c.pool})
		_, stdout, stderr := sluice(t, append(strings.Fields("check "+c.flags), dir)...)
		var lines []string
		for line := range strings.Lines(stdout) {
			if strings.Contains(line, ": Node ") && !strings.Contains(line, "hint: ") {
				lines = append(lines, line)
			}
		}
		if !slices.EqualFunc(lines, c.says, strings.Contains) {
			t.Errorf("%s: %q, want %q\n%s%s", name, lines, c.says, stdout, stderr)
		}
	}
}
