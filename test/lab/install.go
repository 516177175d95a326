package lab

import (
	"context"
	_ "embed" // for dns
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"sluice.dev/sluice/deploy"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/plan"
)

// dns is the cluster's DNS; its Service has the address of clusterDNS.
//
//go:embed dns.yaml
var dns []byte

// installDNS installs the cluster's DNS.
func (l *Lab) installDNS() error {
	path := l.path(plan.Control, "dns.yaml")
	if err := l.write(path, dns); err != nil {
		return err
	}
	return l.Plane(func(p *control.Plane) error {
		if out, err := p.Kubectl("apply", "--server-side", "-f", path); err != nil {
			return fmt.Errorf("install the cluster's DNS: %w: %s", err, out)
		}
		return nil
	})
}

// DaemonSet is the name of what installs the agents, in the namespace kube-system.
const DaemonSet = "sluice"

// has reports whether the agents have a flag that is on or off.
func (l *Lab) has(flag string) bool {
	return slices.Contains(l.AgentFlags, flag) || slices.Contains(l.AgentFlags, flag+"=true")
}

// givesAddresses reports whether the agents give Services addresses, as one of their flags says.
func (l *Lab) givesAddresses() bool { return l.has("--service-addresses") }

// writesEvents reports whether they report faults as Events.
func (l *Lab) writesEvents() bool { return l.has("--events") }

// accelerators are the eBPF programs that they have, as the last flag that names them says.
func (l *Lab) accelerators() (names []string) {
	names = []string{}
	for _, flag := range l.AgentFlags {
		switch list, ok := strings.CutPrefix(flag, "--accelerate="); {
		case !ok:
		case list == "auto":
			names = []string{"sockets", "drop"}
		case list == "none":
			names = []string{}
		default:
			names = strings.Split(list, ",")
		}
	}
	return names
}

// speaksBGP reports whether they speak BGP.
func (l *Lab) speaksBGP() bool {
	return l.Cluster.Fabric == plan.BGP || l.has("--bgp")
}

// privileged reports whether the agents are to do what a pod may do only with all rights: set the
// kernel parameters of connection tracking, as kube-proxy does and established connections need it.
func (l *Lab) privileged() bool {
	return slices.Contains(l.accelerators(), "established") || slices.ContainsFunc(l.AgentFlags, func(f string) bool { return strings.HasPrefix(f, "--conntrack-") })
}

// installed reports whether the lab installs its agents in its cluster.
func (l *Lab) installed() bool { return l.Kubernetes != nil && l.Kubernetes.AgentImage != "" }

// install installs the agents as users do, with the project's own chart or manifests for
// kustomize.
func (l *Lab) install(ctx context.Context) error {
	dir := l.path("install")
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.CopyFS(dir, deploy.Chart)
	}
	if err == nil {
		err = os.CopyFS(dir, deploy.Kustomize)
	}
	switch {
	case err != nil:
	case l.Kubernetes.Helm != "":
		err = l.installChart(ctx, dir)
	default:
		err = l.installKustomize(dir)
	}
	if err != nil {
		return fmt.Errorf("install the agents: %w", err)
	}
	return nil
}

// installChart installs a release of the chart with values as its users write them.
func (l *Lab) installChart(ctx context.Context, dir string) error {
	file := filepath.Join(dir, "values.yaml")
	text, err := json.Marshal(l.values())
	if err == nil {
		err = l.write(file, text)
	}
	if err == nil {
		_, err = l.Helm(ctx, "upgrade", "--install", DaemonSet, l.Chart(), "--namespace", "kube-system", "--values", file)
	}
	return err
}

// Chart is the folder of the chart that the agents were installed from.
func (l *Lab) Chart() string { return l.path("install", "helm", "sluice") }

// Helm runs helm as the lab's administrator, and returns what it prints.
func (l *Lab) Helm(ctx context.Context, args ...string) (string, error) {
	home := l.path("install", "home")
	cmd := exec.CommandContext(ctx, l.Kubernetes.Helm, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.HostKubeconfig(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", args[0], err, out)
	}
	return string(out), nil
}

// values are those of the lab's release.
func (l *Lab) values() map[string]any {
	type object = map[string]any
	name, tag := l.agentImage()
	fabric := object{"mode": "off"}
	switch l.Cluster.Fabric {
	case "":
	case plan.BGP:
		fabric["mode"] = plan.Native
	default:
		fabric["mode"] = l.Cluster.Fabric
	}
	fabric["bgp"] = object{"enabled": l.speaksBGP()}
	return object{
		"accelerate":   l.accelerators(),
		"kubernetes":   object{"host": plan.ControlIPs[0].String(), "port": control.Port},
		"image":        object{"repository": name, "tag": tag},
		"clusterCIDRs": plan.ClusterCIDRs, "serviceCIDRs": plan.ServiceCIDRs,
		"cni": object{"enabled": l.CNI == ""}, "fabric": fabric,
		"addresses": object{"enabled": l.givesAddresses()}, "events": object{"enabled": l.writesEvents()}, "privileged": l.privileged(), "extraArgs": l.AgentFlags,
	}
}

// agentImage is the agents' image, and its tag.
func (l *Lab) agentImage() (name, tag string) {
	colon := strings.LastIndex(l.Kubernetes.AgentImage, ":") // a registry may have a port, too
	return l.Kubernetes.AgentImage[:colon], l.Kubernetes.AgentImage[colon+1:]
}

// installKustomize applies an overlay as its users write one.
func (l *Lab) installKustomize(dir string) error {
	overlay := filepath.Join(dir, "lab")
	if err := os.MkdirAll(overlay, 0o755); err != nil {
		return err
	}
	text, err := l.overlay()
	if err == nil {
		err = l.write(filepath.Join(overlay, "kustomization.yaml"), text)
	}
	if err != nil {
		return err
	}
	return l.Plane(func(p *control.Plane) error {
		if out, err := p.Kubectl("apply", "--server-side", "-k", overlay); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// overlay is the kustomization of the lab's installation.
func (l *Lab) overlay() ([]byte, error) {
	var components []string
	if l.CNI == "" {
		components = append(components, "../kustomize/cni")
	}
	switch {
	case l.Cluster.Fabric == "":
	case l.speaksBGP():
		components = append(components, "../kustomize/bgp")
	default:
		components = append(components, "../kustomize/fabric")
	}
	if l.givesAddresses() {
		components = append(components, "../kustomize/addresses")
	}
	if l.writesEvents() {
		components = append(components, "../kustomize/events")
	}
	if len(l.accelerators()) > 0 {
		components = append(components, "../kustomize/accelerate")
	}
	name, tag := l.agentImage()
	container := "/spec/template/spec/containers/0"
	var patch []map[string]any
	for _, flag := range l.agent.Flags(l.agentConfig("")) { // of a flag that is given twice, the last counts
		patch = append(patch, map[string]any{"op": "add", "path": container + "/args/-", "value": flag})
	}
	for i, value := range []string{plan.ControlIPs[0].String(), fmt.Sprint(control.Port)} {
		patch = append(patch, map[string]any{"op": "replace", "path": fmt.Sprintf("%s/env/%d/value", container, i), "value": value})
	}
	if l.privileged() {
		patch = append(patch, map[string]any{"op": "replace", "path": container + "/securityContext", "value": map[string]any{"privileged": true}})
	}
	if l.Kubernetes.Tested {
		patch = append(patch, map[string]any{"op": "add", "path": "/spec/template/metadata/labels/k8s-app", "value": kubeProxy})
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{ // which is YAML, too
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": []string{"../kustomize/base"}, "components": components,
		"images":  []map[string]string{{"name": "ghcr.io/sluice-dev/sluice", "newName": name, "newTag": tag}},
		"patches": []map[string]any{{"target": map[string]string{"kind": "DaemonSet", "name": DaemonSet}, "patch": string(data)}},
	})
}
