package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/internal/agent"
)

// testRemove removes Sluice from a node as docs/install.md says, with and without a kube-proxy that
// serves instead.
func (c *cluster) testRemove(t *testing.T) {
	for _, how := range []string{"cleanup", "takeover"} {
		t.Run(how, func(t *testing.T) {
			host := t.TempDir()
			t.Run("installed", func(t *testing.T) {
				text := render(t, "--set", "kubernetes.host="+apiServer, "--set", "clusterCIDRs={10.244.0.0/16}")
				c.apply(t, text, "")
				d, _ := daemon(t, text)
				c.box(t, &d.Spec.Template.Spec, host).start(t, c.NetNS)
				await(t, agent.NewClient(filepath.Join(host, "sluice.sock")), well)
			})
			if !c.programmed(t) {
				t.Fatal("nothing is left of an agent that has ended")
			}
			text := render(t, "--set", "remove="+how)
			c.apply(t, text, "")
			d, _ := daemon(t, text)
			first := d.Spec.Template.Spec.DeepCopy()
			first.Containers = first.InitContainers
			if how == "takeover" {
				impatient := c.box(t, first, host)
				impatient.Args = append(impatient.Args, "--wait=0s")
				if out, err := impatient.run(t, c.NetNS); err == nil || !strings.Contains(out, "no kube-proxy") || !c.programmed(t) {
					t.Errorf("without a kube-proxy: %v\n%s", err, out)
				}
				c.startProxy(t, "nftables")
			}
			if out, err := c.box(t, first, host).run(t, c.NetNS); err != nil || c.programmed(t) {
				t.Errorf("sluice %s: %v\n%s", first.Containers[0].Args, err, out)
			}
			t.Run("stays", func(t *testing.T) { // and it ends in order on a signal
				log := c.box(t, &d.Spec.Template.Spec, host).start(t, c.NetNS)
				for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
					text, err := os.ReadFile(log)
					if err == nil && strings.Contains(string(text), "staying") {
						return
					}
					if time.Now().After(deadline) {
						t.Fatalf("it does not stay: %v\n%s", err, text)
					}
				}
			})
			if left, err := os.ReadDir(host); err != nil || len(left) > 0 {
				t.Errorf("%v, what is left: %v", err, left)
			}
		})
	}
}

// programmed reports whether the node's kernel has something of Sluice's.
func (c *cluster) programmed(t *testing.T) bool {
	t.Helper()
	tables, err := c.NetNS.Run("nft", "list", "tables")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(tables), "sluice")
}

// Pods that remove Sluice are ready when that is done, and not before; they do not need the API
// server.
func TestRemove(t *testing.T) {
	t.Parallel()
	for how, want := range map[string]string{
		"cleanup":  "cleanup",
		"takeover": "takeover --to=kube-proxy --wait=5m --node=$(NODE_NAME)",
	} {
		d, stays := daemon(t, render(t, "--set", "remove="+how))
		pod := d.Spec.Template.Spec
		if len(pod.InitContainers) != 1 {
			t.Fatalf("remove=%s: %d containers come first", how, len(pod.InitContainers))
		}
		first := pod.InitContainers[0]
		if got := strings.Join(first.Args, " "); got != want {
			t.Errorf("remove=%s runs %s, want %s", how, got, want)
		}
		if got := strings.Join(stays.Args, " "); got != "cleanup --stay" {
			t.Errorf("remove=%s: then %s", how, got)
		}
		if stays.ReadinessProbe != nil || stays.LivenessProbe != nil || stays.StartupProbe != nil || stays.Ports != nil || *pod.AutomountServiceAccountToken {
			t.Errorf("remove=%s: nothing is served or asked, but %+v", how, stays)
		}
		if diff := cmp.Diff(stays.SecurityContext, first.SecurityContext); diff != "" {
			t.Error(diff)
		}
	}
}

// Kustomize's components change the manifests as the corresponding value changes the chart's
// output.
func TestKustomizeComponents(t *testing.T) {
	t.Parallel()
	for list, value := range map[string]string{"remove": "remove=cleanup", "cni, remove, remove-cni": "remove=cleanup,cni.enabled=true", "events": "events.enabled=true", "conditions": "conditions.enabled=true", "cni": "cni.enabled=true", "fabric": "fabric.mode=pools", "bgp": "fabric.mode=pools,fabric.bgp.enabled=true", "addresses": "addresses.enabled=true", "monitoring": monitored, "accelerate": "accelerate={sockets}", "taint": "notReadyTaint=sluice.dev/agent-not-ready"} {
		t.Run(list, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS("kustomize")); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "kustomization.yaml")
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			list := "components: [" + list + "]"
			set := strings.NewReplacer("value: "+placeholder, "value: 10.0.0.10", "newTag: 0.2.0", "newTag: 0.2.1", "# "+list, list).Replace(string(text))
			if err := os.WriteFile(file, []byte(set), 0o644); err != nil {
				t.Fatal(err)
			}
			want := objects(t, render(t, "--set", "kubernetes.host=10.0.0.10", "--set", "image.tag=0.2.1", "--set", value))
			if diff := cmp.Diff(want, objects(t, kustomize(t, dir))); diff != "" {
				t.Error(diff)
			}
		})
	}
}
