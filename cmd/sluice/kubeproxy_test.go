package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/compile"
)

const proxyHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// Senseless configuration ends `sluice run` before it changes anything, with a message that says
// what to do.
func TestSeatUsage(t *testing.T) {
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "config.conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := file(proxyHead + "hostnameOverride: a\n")
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"read --config", []string{"--config", "/does/not/exist"}},
		{"this is not a configuration of kube-proxy", []string{"--config", file("kind: Pod\n")}},
		{"iptables.masqueradeBit: 40 is not within 0 and 31", []string{"--config", file(proxyHead + "iptables: {masqueradeBit: 40}\n")}},
		{"flags of kube-proxy: mode: \"userspace\" is not", []string{"--proxy-mode=userspace"}},
		{"'sluice cleanup'", []string{"--cleanup"}},
		{"--node b, but kube-proxy's configuration names the node a", []string{"--config", good, "--node", "b"}},
		{"choose text or json", []string{"--config", good, "--log-format", "xml"}},
		{"nor one of the words primary, all and localhost", []string{"--nodeport-addresses", "somewhere"}},
	} {
		code, _, stderr := sluice(t, append([]string{"run"}, tc.args...)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v exits with %d: %s", tc.args, code, stderr)
		}
	}
}

func TestWriteConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.yaml")
	if code, _, stderr := sluice(t, "run", "--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16", "--nodeport-addresses=primary,192.0.2.0/24", "--write-config-to", path); code != cli.ExitOK {
		t.Fatal(stderr)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kind: KubeProxyConfiguration\n", "mode: nftables\n", "clusterCIDR: 10.244.0.0/16\n", "nodePortAddresses:\n- primary\n- 192.0.2.0/24\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// --nodeport-addresses knows kube-proxy's words, also without its configuration.
func TestNodePortWords(t *testing.T) {
	for list, want := range map[string]string{
		"primary": "primary", "all": "0.0.0.0/0,::/0", "localhost": "127.0.0.0/8,::1/128",
		"192.0.2.1/24,primary": "primary,192.0.2.0/24", "": "",
	} {
		n := nodePorts{&compile.Config{}}
		if err := n.Set(list); err != nil || n.String() != want {
			t.Errorf("%q: %q, %v", list, n.String(), err)
		}
	}
}
