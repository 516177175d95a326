package deploy_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// daemon returns the agent's DaemonSet in a text, and its only container.
func daemon(t *testing.T, text string) (*appsv1.DaemonSet, *corev1.Container) {
	t.Helper()
	d := object[appsv1.DaemonSet](t, text, "DaemonSet sluice")
	if n := len(d.Spec.Template.Spec.Containers); n != 1 {
		t.Fatalf("%d containers", n)
	}
	return d, &d.Spec.Template.Spec.Containers[0]
}

// Kustomize's manifests are the chart's output with default values.
func TestKustomize(t *testing.T) {
	t.Parallel()
	text := render(t, "--set", "kubernetes.host="+placeholder)
	if *update {
		for file, text := range map[string]string{
			"base/sluice.yaml":           text,
			"monitoring/monitoring.yaml": render(t, "--set", "kubernetes.host="+placeholder+","+monitored, "--show-only", "templates/monitoring.yaml"),
		} {
			if err := os.WriteFile("kustomize/"+file, []byte(strings.TrimPrefix(text, "---\n")), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := objects(t, text)
	for _, folder := range []string{"kustomize/base", "kustomize"} {
		if diff := cmp.Diff(want, objects(t, kustomize(t, folder))); diff != "" {
			t.Errorf("%s is not what the chart makes (go test ./deploy -run TestKustomize -update):\n%s", folder, diff)
		}
	}
}

// An overlay sets the API server and the image in one place.
func TestKustomizeIsSetInOnePlace(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("kustomize/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	set := strings.NewReplacer("value: "+placeholder, "value: 10.0.0.10", "newName: ghcr.io/sluice-dev/sluice", "newName: registry.example/sluice").Replace(string(text))
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("kustomize")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(set), 0o644); err != nil {
		t.Fatal(err)
	}
	want := objects(t, render(t, "--set", "kubernetes.host=10.0.0.10", "--set", "image.repository=registry.example/sluice"))
	if diff := cmp.Diff(want, objects(t, kustomize(t, dir))); diff != "" {
		t.Error(diff)
	}
}

// Each value has its effect in the right place.
func TestValues(t *testing.T) {
	t.Parallel()
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	text := render(t, "--set", "kubernetes.host=fd00::10", "--set", "kubernetes.port=443", "--set", "image.digest="+digest,
		"--set", "policy=false", "--set", "clusterCIDRs={10.244.0.0/16,fd01::/48}", "--set", "serviceCIDRs={10.96.0.0/16}",
		"--set", "nodePortAddresses={192.168.0.0/16}", "--set", "externalIPCIDRs={203.0.113.0/24,2001:db8::/64}", "--set", "loadBalancerCIDRs={none}", "--set", "allowNodeAddresses={10.0.0.0/8}", "--set", "extraArgs={--masquerade-all}", "--set", "log.format=json",
		"--set", "metricsAddress=", "--set", "healthzAddress=127.0.0.1:9999", "--set", "maxUnavailable=10%", "--set", "addresses.loadBalancerClass=own", "--set", "podLabels.team=net")
	d, c := daemon(t, text)
	if want := "ghcr.io/sluice-dev/sluice@" + digest; c.Image != want {
		t.Errorf("image %s, want %s", c.Image, want)
	}
	for _, want := range []string{"--policy=false", "--cluster-cidr=10.244.0.0/16,fd01::/48", "--service-cidr=10.96.0.0/16",
		"--nodeport-addresses=192.168.0.0/16", "--external-ip-cidrs=203.0.113.0/24,2001:db8::/64", "--load-balancer-cidrs=none", "--allow-node-addresses=10.0.0.0/8", "--masquerade-all", "--load-balancer-class=own", "--log-format=json", "--metrics-address=", "--healthz-address=127.0.0.1:9999"} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("no argument %s among %q", want, c.Args)
		}
	}
	if host := (corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: "fd00::10"}); !slices.Contains(c.Env, host) {
		t.Errorf("no %+v in %+v", host, c.Env)
	}
	if got := d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String(); got != "10%" {
		t.Errorf("maxUnavailable %s", got)
	}
	if p := c.Ports[0]; p.ContainerPort != 9999 || c.LivenessProbe.HTTPGet.Host != "127.0.0.1" {
		t.Errorf("port %+v, probe %+v", p, c.LivenessProbe)
	}
	if d.Spec.Template.Labels["team"] != "net" {
		t.Errorf("labels %v", d.Spec.Template.Labels)
	}
	for _, r := range object[rbacv1.ClusterRole](t, text, "ClusterRole sluice").Rules {
		if slices.Contains(r.Resources, "pods") || slices.Contains(r.Resources, "networkpolicies") {
			t.Errorf("without policy, %+v is not needed", r)
		}
	}
	_, c = daemon(t, render(t, "--set", "kubernetes.host=a", "--set", "healthzAddress="))
	if c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil {
		t.Error("there are probes where nothing is served")
	}
}

// Objects have the names that are asked for, and find each other by them.
func TestNames(t *testing.T) {
	t.Parallel()
	for values, want := range map[string]struct{ label, name string }{
		"a=b":              {"sluice", "sluice"},
		"nameOverride=net": {"net", "net"},
		"nameOverride=net,fullnameOverride=edge-net": {"net", "edge-net"},
	} {
		values = strings.TrimPrefix(values, "a=b")
		text := render(t, "--set", "kubernetes.host=a,addresses.enabled=true,"+monitored, "--set", values)
		d := object[appsv1.DaemonSet](t, text, "DaemonSet "+want.name)
		if got := d.Spec.Selector.MatchLabels["app.kubernetes.io/name"]; got != want.label || d.Spec.Template.Labels["app.kubernetes.io/name"] != want.label {
			t.Errorf("%s: pods with the label %s", values, got)
		}
		if got := d.Spec.Template.Spec.ServiceAccountName; got != want.name {
			t.Errorf("%s: pods of account %s", values, got)
		}
		for _, kind := range []string{"ClusterRoleBinding", "RoleBinding"} {
			b := object[rbacv1.ClusterRoleBinding](t, text, kind+" "+want.name)
			if b.RoleRef.Name != want.name || b.Subjects[0].Name != want.name {
				t.Errorf("%s: %s gives %s the rights of %s", values, kind, b.Subjects[0].Name, b.RoleRef.Name)
			}
		}
		for name, o := range objects(t, text) {
			labels, _ := o["metadata"].(map[string]any)["labels"].(map[string]any)
			if _, of, _ := strings.Cut(name, " "); strings.TrimSuffix(of, "-dashboard") != want.name || labels["app.kubernetes.io/name"] != want.label {
				t.Errorf("%s: there is a %s with the labels %v", values, name, labels)
			}
		}
	}
}

// What a pod has beyond the agent's own reaches all its containers.
func TestExtras(t *testing.T) {
	t.Parallel()
	for _, remove := range []string{"", "cleanup"} {
		d, c := daemon(t, render(t, "--set", "kubernetes.host=a,remove="+remove+",terminationGracePeriodSeconds=30,updateStrategy.type=OnDelete,extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=proxy",
			"--set", "extraVolumes[0].name=more,extraVolumes[0].hostPath.path=/opt/more,extraVolumeMounts[0].name=more,extraVolumeMounts[0].mountPath=/more"))
		pod := d.Spec.Template.Spec
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "more" && v.HostPath.Path == "/opt/more" }) {
			t.Errorf("volumes %+v", pod.Volumes)
		}
		for _, c := range append(pod.InitContainers, *c) {
			mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "more" && m.MountPath == "/more" })
			if env := (corev1.EnvVar{Name: "HTTPS_PROXY", Value: "proxy"}); !mounted || !slices.Contains(c.Env, env) {
				t.Errorf("container %s has %+v, %+v", c.Name, c.VolumeMounts, c.Env)
			}
		}
		if s := d.Spec.UpdateStrategy; s.Type != appsv1.OnDeleteDaemonSetStrategyType || s.RollingUpdate != nil || *pod.TerminationGracePeriodSeconds != 30 {
			t.Errorf("update strategy %+v, %d s to end", s, *pod.TerminationGracePeriodSeconds)
		}
	}
}

// The taint is taken away only where it is asked for, and the agent may do so only then.
func TestTaintValue(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{"": false, "sluice.dev/agent-not-ready": true} {
		text := render(t, "--set", "kubernetes.host=a", "--set", "notReadyTaint="+key)
		_, c := daemon(t, text)
		may := slices.ContainsFunc(object[rbacv1.ClusterRole](t, text, "ClusterRole sluice").Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Equal(r.Resources, []string{"nodes"}) && slices.Equal(r.Verbs, []string{"patch"})
		})
		if given := slices.Contains(c.Args, "--remove-taint="+key); given != want || may != want {
			t.Errorf("taint %q: given %v, may patch nodes: %v", key, given, may)
		}
	}
}

// A mode comes with its flag, and with what its programs need of the node.
func TestModeValue(t *testing.T) {
	t.Parallel()
	for mode, needs := range map[string]bool{"nftables": false, "ipvs": false, "userspace": false, "iptables": true, "auto": true} {
		d, c := daemon(t, render(t, "--set", "kubernetes.host=a", "--set", "mode="+mode))
		if given := slices.Contains(c.Args, "--mode="+mode); given != (mode != "nftables") {
			t.Errorf("mode %s: arguments %q", mode, c.Args)
		}
		raw := slices.Contains(c.SecurityContext.Capabilities.Add, corev1.Capability("NET_RAW"))
		mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/run/xtables.lock" })
		shared := slices.ContainsFunc(d.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool {
			return v.HostPath != nil && v.HostPath.Path == "/run/xtables.lock" && *v.HostPath.Type == corev1.HostPathFileOrCreate
		})
		if raw != needs || mounted != needs || shared != needs {
			t.Errorf("mode %s: NET_RAW %v, the lock is mounted: %v, and the host's: %v", mode, raw, mounted, shared)
		}
		// The proxy listens at services' own ports for UDP: at 53 for the cluster's DNS.
		low := slices.Contains(c.SecurityContext.Capabilities.Add, corev1.Capability("NET_BIND_SERVICE"))
		if want := mode == "userspace" || mode == "auto"; low != want {
			t.Errorf("mode %s: NET_BIND_SERVICE %v", mode, low)
		}
	}
}

// Accelerators come with the rights and folders of the node that they need, and nothing else does.
func TestAccelerateValue(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]struct {
		flag            string
		folders, rights int
	}{
		`[]`:                         {"", 1, 1},
		`["drop"]`:                   {"--accelerate=drop", 1, 3},
		`["sockets"]`:                {"--accelerate=sockets", 3, 5},
		`["established"]`:            {"--accelerate=established", 1, 3},
		`["sockets", "established"]`: {"--accelerate=sockets,established", 3, 5},
	} {
		d, c := daemon(t, render(t, "--set", "kubernetes.host=a", "--set-json", "accelerate="+value))
		pod := d.Spec.Template.Spec
		folders := 0
		for _, at := range []string{"/sys/fs/bpf", "/sys/fs/cgroup", "/run/netns"} {
			mounted := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == at })
			host := slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == at })
			if mounted && host {
				folders++
			}
		}
		var flag string
		for _, a := range c.Args {
			if strings.HasPrefix(a, "--accelerate=") {
				flag = a
			}
		}
		rights := c.SecurityContext.Capabilities.Add
		if flag != want.flag || pod.HostPID != (want.folders == 3) || folders != want.folders || len(rights) != want.rights {
			t.Errorf("accelerate=%s: flag %q, hostPID %v, %d folders, rights %v", value, flag, pod.HostPID, folders, rights)
		}
	}
}

// The pod network between nodes comes with its flags and rights, and with those alone that it
// needs.
func TestFabricValues(t *testing.T) {
	t.Parallel()
	may := func(text, verb, resource string) bool {
		return slices.ContainsFunc(object[rbacv1.ClusterRole](t, text, "ClusterRole sluice").Rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Verbs, verb) && slices.Contains(r.Resources, resource)
		})
	}
	for _, tt := range []struct {
		values      []string
		args        []string
		pools, keys bool
	}{
		{nil, nil, false, false},
		{[]string{"fabric.mode=vxlan"}, []string{"--fabric=vxlan"}, true, false},
		{[]string{"fabric.mode=native", "fabric.natOutgoing=true", "fabric.encrypt=true", "clusterCIDRs={10.244.0.0/16}"}, []string{"--fabric=native", "--nat-outgoing", "--encrypt"}, true, true},
		{[]string{"fabric.mode=native", "fabric.bgp.enabled=true", "fabric.bgp.secrets={tor}"}, []string{"--fabric=native", "--bgp", "--bgp-passwords=/etc/sluice/bgp"}, true, false},
	} {
		set := []string{"--set", "kubernetes.host=a"}
		for _, v := range tt.values {
			set = append(set, "--set", v)
		}
		text := render(t, set...)
		_, c := daemon(t, text)
		got := slices.DeleteFunc(slices.Clone(c.Args), func(a string) bool {
			return !strings.HasPrefix(a, "--fabric") && !strings.HasPrefix(a, "--bgp") && a != "--nat-outgoing" && a != "--encrypt"
		})
		if bgp := slices.Contains(tt.args, "--bgp"); may(text, "watch", "bgppeers") != bgp || slices.Contains(c.SecurityContext.Capabilities.Add, "NET_BIND_SERVICE") != bgp ||
			slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/etc/sluice/bgp/tor" }) != bgp {
			t.Errorf("%q: BGP has not what it needs, or something has that has no BGP", tt.values)
		}
		if !slices.Equal(got, tt.args) || may(text, "watch", "ippools") != tt.pools || may(text, "list", "blockaffinities") != tt.pools || may(text, "patch", "nodes") != tt.keys {
			t.Errorf("%q: %q, pools %v, keys %v", tt.values, got, may(text, "watch", "ippools"), may(text, "patch", "nodes"))
		}
	}
}

// Settings that protect the pod, on which a node's services depend, stay as they are.
func TestThePodMayDoLittle(t *testing.T) {
	t.Parallel()
	d, c := daemon(t, render(t, "--set", "kubernetes.host=10.0.0.10"))
	s := c.SecurityContext
	if !slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}) || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("capabilities %+v", s.Capabilities)
	}
	if s.Privileged != nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem {
		t.Errorf("security context %+v", s)
	}
	if len(c.Resources.Limits) > 0 {
		t.Errorf("limits %v: the kernel charges the table's sets to the pod", c.Resources.Limits)
	}
	if p := d.Spec.Template.Spec; !p.HostNetwork || p.HostPID || p.PriorityClassName != "system-node-critical" || p.Tolerations[0].Operator != "Exists" || p.Tolerations[0].Key != "" {
		t.Errorf("pod %+v", p)
	}
	_, c = daemon(t, render(t, "--set", "kubernetes.host=10.0.0.10", "--set", "privileged=true"))
	if s := c.SecurityContext; !*s.Privileged || s.Capabilities != nil || s.AllowPrivilegeEscalation != nil {
		t.Errorf("privileged: %+v", s)
	}
}

// Invalid values are refused, with a message that says what to do: by the schema, with the path of
// the value, or by a template.
func TestRefusedValues(t *testing.T) {
	t.Parallel()
	type refusal struct{ set, want string }
	var bySchema []refusal
	for _, tt := range []refusal{
		{"", "--set kubernetes.host=ADDRESS"},
		{"kubernetes.host=https://10.0.0.10:6443", "/kubernetes/host"},
		{"kubernetes.host=10.0.0.10:6443", "/kubernetes/host"},
		{"kubernetes.host=api.example:6443", "/kubernetes/host"},
		{"kubernetes.host=[fd00::10]", "/kubernetes/host"},
		{"kubernetes.host=10.0.0.256", "/kubernetes/host"},
		{"kubernetes.host=a b", "/kubernetes/host"},
		{"kubernetes.port=0", "/kubernetes/port"},
		{"policy=perhaps", "/policy"},
		{"mode=legacy", "/mode"},
		{"clusterCIDRs={10.0.0.1}", "/clusterCIDRs/0"},
		{"clusterCIDRs={999.1.2.3/99}", "/clusterCIDRs/0"},
		{"clusterCIDRs={10.244.0.0/33}", "/clusterCIDRs/0"},
		{"clusterCIDRs={fd00::/129}", "/clusterCIDRs/0"},
		{"clusterCIDRs={10.1.0.0/16,fd00::/48,10.2.0.0/16}", "/clusterCIDRs"},
		{"serviceCIDRs={10.1.0.0/16,10.2.0.0/16}", "/serviceCIDRs"},
		{"serviceCIDRs={fd00::/112,fd01::/112}", "/serviceCIDRs"},
		{"healthzAddress=10.0.0.5:10256", "/healthzAddress"},
		{"healthzAddress=:99999", "/healthzAddress"},
		{"healthzAddress=:0", "/healthzAddress"},
		{"metricsAddress=:65536", "/metricsAddress"},
		{"metricsAddress=fd00::10:10249", "/metricsAddress"},
		{"maxUnavailable=0", "/maxUnavailable"},
		{"maxUnavailable=abc", "/maxUnavailable"},
		{"maxUnavailable=0%", "/maxUnavailable"},
		{"remove=yes", "/remove"},
		{"fabric.mode=calico", "/fabric/mode"},
		{"fabric.encrypt=true", "need a fabric.mode"},
		{"fabric.bgp.enabled=true", "need a fabric.mode"},
		{"fabric.mode=native,fabric.natOutgoing=true", "needs clusterCIDRs"},
		{"image.tag=-1", "/image/tag"},
		{"log.level=loud", "/log/level"},
		{"image.digest=sha256:12", "/image/digest"},
		{"metricsAddress=localhost", "/metricsAddress"},
		{"podMonitor.enabled=true", "--set metricsAddress=:10249"},
		{"podMonitor.enabled=true,metricsAddress=", "--set metricsAddress=:10249"},
		{"podMonitor.enabled=true,metricsAddress=[::1]:10249", "--set metricsAddress=:10249"},
		{"podMonitor.enabled=true,metricsAddress=localhost:10249", "--set metricsAddress=:10249"},
		{"podMonitor.interval=often", "/podMonitor/interval"},
		{"docsURL=runbook.md", "/docsURL"},
		{"nameOverride=Sluice", "/nameOverride"},
		{"notReadyTaint=not ready", "/notReadyTaint"},
		{"updateStrategy.type=Recreate", "/updateStrategy/type"},
		{"terminationGracePeriodSeconds=0", "/terminationGracePeriodSeconds"},
		{"extraVolumes[0].hostPath.path=/opt", "/extraVolumes/0"},
		{"no.such=value", "'no'"},
		{"nodePortAddresses={some}", "/nodePortAddresses"},
		{"externalIPCIDRs={none,10.0.0.0/8}", "/externalIPCIDRs"},
		{"loadBalancerCIDRs={some}", "/loadBalancerCIDRs"},
		{"allowNodeAddresses={none}", "/allowNodeAddresses"},
		{"kubeProxy.configMap=kube-proxy,clusterCIDRs={10.0.0.0/8}", "leave them out"},
		{"kubeProxy.configMap=kube-proxy,metricsAddress=:9999", "leave them out"},
	} {
		if strings.HasPrefix(tt.want, "/") {
			bySchema = append(bySchema, tt)
			continue
		}
		var sets []string
		if tt.set != "" {
			sets = []string{"kubernetes.host=10.0.0.10", tt.set}
		}
		if err := refused(t, sets...); !strings.Contains(err, tt.want) {
			t.Errorf("--set %s: %s, want %q", tt.set, err, tt.want)
		}
	}
	// The schema names all that it refuses.
	for _, round := range rounds(bySchema, func(tt refusal) string { return tt.set }) {
		var sets []string
		for _, tt := range round {
			sets = append(sets, tt.set)
		}
		err := refused(t, sets...)
		for _, tt := range round {
			if !strings.Contains(err, "at '"+tt.want) {
				t.Errorf("--set %s: %s, want %q", tt.set, err, tt.want)
			}
		}
	}
}

// refused returns the error of the chart for values.
func refused(t *testing.T, sets ...string) string {
	t.Helper()
	args := []string{"template", "sluice", chart}
	for _, set := range sets {
		args = append(args, "--set", set)
	}
	out, err := helm(t, args...)
	if err == nil {
		t.Errorf("%q are taken:\n%s", sets, out)
		return ""
	}
	return err.Error()
}

// rounds parts cases so that each value is set once in a round: a call of Helm does for a round.
func rounds[T any](cases []T, set func(T) string) (all [][]T) {
	var taken []map[string]bool
	for _, tt := range cases {
		names := valueName.FindAllStringSubmatch(set(tt), -1)
		at := slices.IndexFunc(taken, func(has map[string]bool) bool {
			return !slices.ContainsFunc(names, func(m []string) bool { return has[m[1]] })
		})
		if at < 0 {
			at, all, taken = len(all), append(all, nil), append(taken, map[string]bool{})
		}
		all[at] = append(all[at], tt)
		for _, m := range names {
			taken[at][m[1]] = true
		}
	}
	return all
}

// valueName finds the names in the arguments of --set.
var valueName = regexp.MustCompile(`(?:^|,)([\w.]+)[^=,]*=`)

// Unusual but valid values are accepted.
func TestTakenValues(t *testing.T) {
	t.Parallel()
	for _, round := range rounds([]string{
		"kubernetes.host=fd00::10", "kubernetes.host=::ffff:10.0.0.1", "kubernetes.host=api.example", "kubernetes.host=api-1.example.", "kubernetes.host=10.example",
		"clusterCIDRs={10.244.0.0/16,fd00::/48}", "serviceCIDRs={fd00::/112}", "nodePortAddresses={10.0.0.0/8,192.168.0.0/16,fd00::/8}", "nodePortAddresses={primary}",
		"healthzAddress=", "healthzAddress=0.0.0.0:1", "healthzAddress=[::]:65535", "healthzAddress=127.0.0.1:10256",
		"metricsAddress=10.0.0.5:80", "metricsAddress=[fd00::10]:80", "metricsAddress=:80", "metricsAddress=localhost:80",
		"fabric.mode=false", "fabric.mode=native,fabric.bgp.enabled=true", "fabric.mode=pools", "fabric.mode=cross-subnet",
		"maxUnavailable=3", "maxUnavailable=100%",
		"podMonitor.enabled=true,metricsAddress=[::]:10249", "podMonitor.enabled=true,kubernetes.host=,kubeProxy.configMap=kube-proxy", "notReadyTaint=not-ready",
	}, func(set string) string { return set }) {
		args := []string{"--set", "kubernetes.host=10.0.0.10"}
		for _, set := range round {
			args = append(args, "--set", set)
		}
		render(t, args...)
	}
	for _, args := range [][]string{{"--set", "image.tag=123"}, {"--set-json", "image.tag=20260101"}} {
		_, c := daemon(t, render(t, append(args, "--set", "kubernetes.host=10.0.0.10")...))
		if tag := regexp.MustCompile(`^ghcr.io/sluice-dev/sluice:(123|20260101)$`); !tag.MatchString(c.Image) {
			t.Errorf("%q makes %s", args, c.Image)
		}
	}
}

func TestLint(t *testing.T) {
	t.Parallel()
	out, err := helm(t, "lint", "--strict", chart, "--set", "kubernetes.host=10.0.0.10")
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
