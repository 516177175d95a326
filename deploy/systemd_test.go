package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"sluice.dev/sluice/internal/agent"
)

const unit, balanceUnit = "systemd/sluice.service", "systemd/sluice-balance.service"

// setting returns the value that the unit, or its file of variables, gives a name.
func setting(t *testing.T, file, name string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + `="?([^"\n]*)`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no %s= in %s", name, file)
	}
	return string(m[1])
}

// Systemd knows all settings of the units.
func TestUnits(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{unit, balanceUnit} {
		t.Run(filepath.Base(unit), func(t *testing.T) { checkUnit(t, unit) })
	}
}

func checkUnit(t *testing.T, unit string) {
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "sluice") // any program will do, as it does not run
	if err := os.WriteFile(binary, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), filepath.Base(unit))
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), "ExecStart=/usr/local/sbin/sluice", "ExecStart="+binary, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", file).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if limit := regexp.MustCompile(`(?m)^Memory(Max|High|Limit|SwapMax)=.*`).FindString(string(text)); limit != "" {
		t.Errorf("%s: the kernel charges the table's sets to the agent", limit)
	}
}

// testUnit runs the agent with the arguments in the unit's file of variables and the unit's
// capabilities, as a user with the rights that kustomize's manifests grant.
func (c *cluster) testUnit(t *testing.T) {
	c.kubectl(t, "apply", "--server-side", "--force-conflicts", "-f", "kustomize/base/sluice.yaml", "-l", "app.kubernetes.io/component=access")
	etc, run := t.TempDir(), t.TempDir()
	kubeconfig := filepath.Join(etc, "sluice.conf")
	ca, err := os.ReadFile(filepath.Join(c.Dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["main"] = &clientcmdapi.Cluster{Server: c.URL(), CertificateAuthorityData: ca}
	config.AuthInfos["sluice"] = &clientcmdapi.AuthInfo{Token: string(c.token(t))}
	config.Contexts["main"] = &clientcmdapi.Context{Cluster: "main", AuthInfo: "sluice"}
	config.CurrentContext = "main"
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	b := &box{
		Root: t.TempDir(), Binary: c.binary,
		Binds:        map[string]string{"/etc/kubernetes": etc, "/run/" + setting(t, unit, "RuntimeDirectory"): run},
		Capabilities: []string{strings.TrimPrefix(setting(t, unit, "CapabilityBoundingSet"), "CAP_")},
		Args:         append([]string{"run", "--node=node1"}, strings.Fields(setting(t, "systemd/sluice.env", "SLUICE_ARGS"))...),
	}
	b.start(t, c.NetNS)
	await(t, agent.NewClient(filepath.Join(run, "sluice.sock")), well)
}
