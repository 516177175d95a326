package node

import (
	"fmt"
	"os/exec"
	"strings"

	"sigs.k8s.io/yaml"
)

// Pause is the image of pods' sandboxes.
const Pause = "registry.k8s.io/pause:3.10.2"

// registriesDir has what containerd knows of registries, by the node's path.
const registriesDir = "/etc/containerd/certs.d"

// registries has one registry asked for the images of all, and no other if it lacks one.
func (c *Config) registries() string {
	return fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", c.Registry, c.Registry)
}

// containerdConfig configures containerd. What it says has other names in the second major version.
// Containers' scores for the kernel's choice of whom to kill are limited to what a process without
// CAP_SYS_RESOURCE may set: the lab may be in a container itself.
func (c *Config) containerdConfig() string {
	cri, images, version, sandbox := "io.containerd.grpc.v1.cri", "io.containerd.grpc.v1.cri", 2, "sandbox_image"
	cniBin := `bin_dir = "/opt/cni/bin"`
	if c.secondVersion() {
		cri, images, version = "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images", 3
		cniBin = `bin_dirs = ["/opt/cni/bin"]`
	}
	var b strings.Builder
	fmt.Fprintf(&b, "version = %d\nroot = \"/var/lib/containerd\"\nstate = \"/run/containerd\"\n", version)
	fmt.Fprintf(&b, "[grpc]\n  address = %q\n", containerdSocket)
	fmt.Fprintf(&b, "[plugins.%q]\n  restrict_oom_score_adj = true\n  enable_unprivileged_ports = true\n", cri)
	if version == 2 {
		fmt.Fprintf(&b, "  %s = %q\n", sandbox, Pause)
	} else {
		fmt.Fprintf(&b, "[plugins.%q.pinned_images]\n  sandbox = %q\n", images, Pause)
	}
	fmt.Fprintf(&b, "[plugins.%q.cni]\n  %s\n  conf_dir = \"/etc/cni/net.d\"\n", cri, cniBin)
	fmt.Fprintf(&b, "[plugins.%q.registry]\n  config_path = %q\n", images, registriesDir)
	fmt.Fprintf(&b, "[plugins.%q.containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n", cri)
	return b.String()
}

// secondVersion reports whether the node's containerd is of major version 2.
func (c *Config) secondVersion() bool {
	out, err := exec.Command(c.command(containerdName)[0], "--version").Output()
	fields := strings.Fields(string(out)) // containerd MODULE VERSION COMMIT
	return err == nil && len(fields) > 2 && strings.HasPrefix(strings.TrimPrefix(fields[2], "v"), "2.")
}

type object = map[string]any

// kubeletConfig is a kubelet's usual configuration, but for what nodes on one machine must not do:
// evict pods, or throw images away, when the machine's own disk or memory becomes scarce.
func (c *Config) kubeletConfig() string {
	evictions := object{}
	for _, what := range []string{"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"} {
		evictions[what] = "0%"
	}
	data, _ := yaml.Marshal(object{ // of maps and strings alone
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"failCgroupV1": false, "cgroupDriver": "cgroupfs", "failSwapOn": false,
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"clusterDNS":               c.ClusterDNS, "clusterDomain": "cluster.local", "resolvConf": "/etc/resolv.conf",
		"authentication": object{
			"anonymous": object{"enabled": false}, "webhook": object{"enabled": true}, "x509": object{"clientCAFile": "/etc/kubernetes/ca.crt"},
		},
		"authorization": object{"mode": "Webhook"},
		"evictionHard":  evictions, "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
		"maxPods": 250, "registryPullQPS": 0, "serializeImagePulls": false, "nodeStatusUpdateFrequency": "10s",
	})
	return string(data)
}
