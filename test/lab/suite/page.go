package suite

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// DataPlanes are what serves the nodes while tests run, in the order of the page's columns.
var DataPlanes = []string{"sluice", "kube-proxy-nftables", "kube-proxy-iptables"}

// Keep writes a report into a folder, in place of that of the same set and data plane, and writes
// the folder's page anew from all that it has.
func Keep(dir string, r *Report) error {
	name := r.Set + "-" + r.DataPlane
	err := os.MkdirAll(dir, 0o755)
	if err == nil && r.own != nil {
		r.Own = name + ".yaml"
		err = os.WriteFile(filepath.Join(dir, r.Own), r.own, 0o644)
	}
	var text []byte
	if err == nil {
		text, err = json.MarshalIndent(r, "", " ")
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".json"), append(text, '\n'), 0o644)
	}
	var all []*Report
	if err == nil {
		all, err = kept(dir)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "README.md"), []byte(page(all)), 0o644)
	}
	if err != nil {
		return fmt.Errorf("keep the report: %w", err)
	}
	return nil
}

// kept reads the reports of a folder, in the order of the sets and the data planes.
func kept(dir string) (all []*Report, err error) {
	for _, s := range Sets {
		for _, d := range DataPlanes {
			text, err := os.ReadFile(filepath.Join(dir, s.Name+"-"+d+".json"))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			r := &Report{}
			if err == nil {
				err = json.Unmarshal(text, r)
			}
			if err != nil {
				return nil, err
			}
			all = append(all, r)
		}
	}
	return all, nil
}

const intro = `# The tests of others

What the tests of others, unmodified, say of Sluice, and of the real kube-proxy on the same nodes: real kubelets and
containerd ([docs/lab.md](../lab.md#kubernetes)), Sluice as a DaemonSet from [deploy/kustomize](../../deploy/kustomize),
with its own pod network. ` + "`sluice lab e2e SET --keep docs/e2e`" + ` writes this page. They are

- Kubernetes' end-to-end tests of networks, ` + "`[sig-network]` of `e2e.test`" + `;
- in the set ` + "`cluster-network-policy`" + `, the conformance tests of ClusterNetworkPolicy, from network-policy-api 0.3.0. The set's
  name links to the report that this suite itself has written, as implementations hand it in there.

`

// page is the page of all reports.
func page(all []*Report) string {
	var b strings.Builder
	b.WriteString(intro)
	b.WriteString("| set | with | nodes | passed | failed | of these for what is not there | skipped themselves | time |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range all {
		failed, set := r.Count(Failed), r.Set
		if r.Own != "" {
			set = "[" + set + "](" + r.Own + ")"
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %s |\n", set, r.DataPlane, r.Nodes, r.Count(Passed), failed, failed-len(r.Ours()), r.Count(Skipped), r.Took.Round(time.Second))
	}
	for _, r := range all {
		if r.Count(Failed)+r.Count(Skipped) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s with %s\n\n| test | | why |\n| --- | --- | --- |\n", r.Set, r.DataPlane)
		for _, s := range []State{Failed, Skipped} {
			for _, t := range r.Tests {
				if t.State == s {
					fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(t.short()), s, cell(t.why()))
				}
			}
		}
	}
	versions := map[string]bool{}
	for _, r := range all {
		versions[fmt.Sprintf("Kubernetes %s, %s, Linux %s", strings.TrimPrefix(r.Kubernetes, "v"), r.Runtime, r.Kernel)] = true
	}
	b.WriteString("\nRun with " + strings.Join(slices.Sorted(maps.Keys(versions)), "; ") + ".\n")
	return b.String()
}

// cell is a text for a cell of a table.
func cell(text string) string { return strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(text) }
