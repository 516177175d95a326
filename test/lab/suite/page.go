package suite

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A DataPlane is what serves the nodes while tests run.
type DataPlane struct {
	Name      string
	KubeProxy string // kube-proxy's mode; "": Sluice serves
	Mode      string // Sluice's
	// Flags are further ones of the agents.
	Flags []string
}

// DataPlanes are those that there are, in the page's order.
var DataPlanes = []DataPlane{
	{Name: "sluice", Mode: "nftables"},
	{Name: "sluice-iptables", Mode: "iptables"},
	{Name: "sluice-ipvs", Mode: "ipvs"},
	{Name: "sluice-userspace", Mode: "userspace", Flags: []string{"--userspace-client-address=transparent"}},
	{Name: "kube-proxy-nftables", KubeProxy: "nftables"},
	{Name: "kube-proxy-iptables", KubeProxy: "iptables"},
}

// DataPlaneNames are their names.
func DataPlaneNames() (names []string) {
	for _, d := range DataPlanes {
		names = append(names, d.Name)
	}
	return names
}

// FindDataPlane returns the data plane of a name.
func FindDataPlane(name string) (DataPlane, error) {
	i := place(name, DataPlanes, func(d DataPlane) string { return d.Name })
	if i < 0 {
		return DataPlane{}, fmt.Errorf("there is no %s; choose one of %s", name, strings.Join(DataPlaneNames(), ", "))
	}
	return DataPlanes[i], nil
}

// Keep writes a report into a folder, in place of that of the same set and data plane with such
// nodes, and writes the folder's page anew from all that it has.
func Keep(dir string, r *Report) error {
	name := strings.Join([]string{r.Set, r.DataPlane, major.FindString(r.Runtime), "linux", minor.FindString(r.Kernel)}, "-")
	if name = strings.ReplaceAll(name, " ", "-"); r.Cgroups == 2 {
		name += "-cgroups-2"
	}
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

// Of versions: "containerd 2" of 2.4.2, "6.18" of 6.18.44.
var major, minor = regexp.MustCompile(`^\S+ \d+`), regexp.MustCompile(`^\d+\.\d+`)

// kept reads the reports of a folder, in the order of the sets and the data planes.
func kept(dir string) (all []*Report, err error) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.json")) // the pattern is well-formed
	for _, file := range files {
		text, err := os.ReadFile(file)
		r := &Report{}
		if err == nil {
			err = json.Unmarshal(text, r)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Report) int {
		return cmp.Or(cmp.Compare(place(a.Set, Sets, func(s Set) string { return s.Name }), place(b.Set, Sets, func(s Set) string { return s.Name })),
			cmp.Compare(place(a.DataPlane, DataPlanes, func(d DataPlane) string { return d.Name }), place(b.DataPlane, DataPlanes, func(d DataPlane) string { return d.Name })),
			cmp.Compare(a.Runtime, b.Runtime), cmp.Compare(a.Kernel, b.Kernel))
	})
	return all, nil
}

// place is where a list has a name.
func place[T any](name string, list []T, of func(T) string) int {
	return slices.IndexFunc(list, func(t T) bool { return of(t) == name })
}

const intro = `# The tests of others

What the tests of others, unmodified, say of Sluice, and of the real kube-proxy on the same nodes: real kubelets and
containerd ([docs/lab.md](../lab.md#kubernetes)), Sluice as a DaemonSet from [deploy/kustomize](../../deploy/kustomize),
with its own pod network; in the modes iptables, ipvs and userspace as processes beside the nodes. ` + "`sluice lab e2e SET --keep docs/e2e`" + ` writes this page.
Tests and their sources are unmodified. Two things that they meet are the lab's: the kernels here have no sockets of
SCTP, so the suite's server and client, ` + "`agnhost`" + `, are built with a library that speaks SCTP over raw sockets
([test/kube/sctp](../../test/kube/sctp/sctp.go)); and as the API server is no pod here, one stands for it, which restarts
the API server when it is deleted. The tests are

- Kubernetes' end-to-end tests of networks, ` + "`[sig-network]` of `e2e.test`" + `;
- in the set ` + "`cluster-network-policy`" + `, the conformance tests of ClusterNetworkPolicy, from network-policy-api 0.3.0. The set's
  name links to the report that this suite itself has written, as implementations hand it in there;
- in the set ` + "`metallb`" + `, MetalLB's end-to-end tests of layer 2 and BGP, of version 0.13.5: those of later versions are a Go
  module that nobody has published. Four routers with FRR are its BGP peers. Left out are the tests of MetalLB's own parts
  (names of metrics, its FRR, webhooks), of BFD, which Sluice does not have, of what later versions of MetalLB do not do
  either (AddressPool; routes of one family over sessions of the other without ` + "`dualStackAddressFamily`" + `), and those for
  clusters whose first family is IPv6.

`

// page is the page of all reports.
func page(all []*Report) string {
	var b strings.Builder
	b.WriteString(intro)
	b.WriteString("| set | with | on | nodes | passed | failed | of these, with a cause named below | skipped themselves | time |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, r := range all {
		failed, set := r.Count(Failed), r.Set
		if r.Own != "" {
			set = "[" + set + "](" + r.Own + ")"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %d | %d | %s |\n", set, r.DataPlane, r.on(), r.Nodes, r.Count(Passed), failed, failed-len(r.Ours()), r.Count(Skipped), r.Took.Round(time.Second))
	}
	for _, r := range all {
		if r.Count(Failed)+r.Count(Skipped) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s with %s, on %s\n\n| test | | why |\n| --- | --- | --- |\n", r.Set, r.DataPlane, r.on())
		for _, s := range []State{Failed, Skipped} {
			for _, t := range r.Tests {
				if t.State == s {
					fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(t.short()), s, cell(t.why()))
				}
			}
		}
	}
	return b.String()
}

// on is what the nodes ran.
func (r *Report) on() string {
	return fmt.Sprintf("Kubernetes %s, %s, cgroups v%d, Linux %s", strings.TrimPrefix(r.Kubernetes, "v"), r.Runtime, r.Cgroups, r.Kernel)
}

// cell is a text for a cell of a table.
func cell(text string) string { return strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(text) }
