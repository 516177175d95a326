package lab

import (
	_ "embed" // for dns
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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

// DaemonSet is the name of what installs the agents on real nodes, in the namespace kube-system.
const DaemonSet = "sluice"

// installed reports whether the lab installs its agents in its cluster.
func (l *Lab) installed() bool { return l.Kubernetes != nil && l.Kubernetes.AgentImage != "" }

// install installs the agents as users do, with the project's own manifests for kustomize: the lab
// adds an overlay as their users write one.
func (l *Lab) install() error {
	dir := l.path("install")
	if err := os.CopyFS(dir, deploy.Kustomize); err != nil {
		return fmt.Errorf("install the agents: %w", err)
	}
	overlay := filepath.Join(dir, "lab")
	if err := os.MkdirAll(overlay, 0o755); err != nil {
		return fmt.Errorf("install the agents: %w", err)
	}
	text, err := l.overlay()
	if err == nil {
		err = l.write(filepath.Join(overlay, "kustomization.yaml"), text)
	}
	if err != nil {
		return fmt.Errorf("install the agents: %w", err)
	}
	return l.Plane(func(p *control.Plane) error {
		if out, err := p.Kubectl("apply", "--server-side", "-k", overlay); err != nil {
			return fmt.Errorf("install the agents: %w: %s", err, out)
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
	switch l.Cluster.Fabric {
	case "":
	case plan.BGP:
		components = append(components, "../kustomize/bgp")
	default:
		components = append(components, "../kustomize/fabric")
	}
	colon := strings.LastIndex(l.Kubernetes.AgentImage, ":") // a registry may have a port, too
	name, tag := l.Kubernetes.AgentImage[:colon], l.Kubernetes.AgentImage[colon+1:]
	container := "/spec/template/spec/containers/0"
	var patch []map[string]any
	for _, flag := range l.agent.Flags(l.agentConfig("")) { // of a flag that is given twice, the last counts
		patch = append(patch, map[string]any{"op": "add", "path": container + "/args/-", "value": flag})
	}
	for i, value := range []string{plan.ControlIPs[0].String(), fmt.Sprint(control.Port)} {
		patch = append(patch, map[string]any{"op": "replace", "path": fmt.Sprintf("%s/env/%d/value", container, i), "value": value})
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
