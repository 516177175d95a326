package archtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "sluice.dev/sluice/"

// pkg is a package of this module.
type pkg struct {
	path    string              // "internal/model"
	name    string              // as its files say it
	doc     bool                // it has a package comment
	imports map[string][]string // import path to the files that have it, tests left out
	tests   bool                // it has nothing but tests
}

// packages reads every package of the module. It parses the imports alone, so
// that a package which does not compile is held to the rules too.
func packages(t *testing.T) []*pkg {
	t.Helper()
	const root = "../.."
	found := map[string]*pkg{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return enter(file)
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		if found[dir] == nil {
			found[dir] = &pkg{path: dir, imports: map[string][]string{}, tests: true}
		}
		return found[dir].add(file)
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []*pkg
	for _, p := range found {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *pkg) int { return strings.Compare(a.path, b.path) })
	if len(all) < 10 {
		t.Fatalf("only %d packages found", len(all))
	}
	return all
}

// enter passes over what the go command does: hidden folders, fixtures, and other modules.
func enter(dir string) error {
	base := filepath.Base(dir)
	if base != ".." && (strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") || base == "testdata") {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil && filepath.Clean(dir) != filepath.Clean("../..") {
		return filepath.SkipDir
	}
	return nil
}

func (p *pkg) add(file string) error {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly|parser.ParseComments)
	if err != nil {
		return err
	}
	if strings.HasSuffix(file, "_test.go") {
		return nil
	}
	p.name, p.tests = f.Name.Name, false
	p.doc = p.doc || documented(f)
	for _, spec := range f.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		p.imports[name] = append(p.imports[name], filepath.Base(file))
	}
	return nil
}

func documented(f *ast.File) bool {
	return f.Doc != nil && strings.TrimSpace(f.Doc.Text()) != ""
}

// house has the rooms of internal/ in their order: what is in one imports nothing of the rooms
// above it.
var house = []string{
	"agent", "compile", "reconcile", "upkeep", "accelerate",
	"services", "policy", "fabric", "pods", "addresses", "bgp", "balancer",
	"preflight", "driver", "foreign", "source", "contest", "cli", "store", "kernel", "state", "model", "lib",
}

// subjects know one another by what is in model and state alone, except for what is here: what is
// learned from BGP is a way of the fabric.
var (
	subjects = []string{"services", "policy", "fabric", "pods", "addresses", "bgp", "balancer"}
	known    = map[string]string{"internal/fabric/compile": "internal/bgp"}
)

func TestArrowsPointDown(t *testing.T) {
	room := func(path string) string {
		parts := strings.Split(path, "/")
		if parts[0] != "internal" {
			return ""
		}
		return parts[1]
	}
	for _, p := range packages(t) {
		from := room(p.path)
		if from == "" || p.tests {
			continue
		}
		if !slices.Contains(house, from) {
			t.Errorf("%s is in no room of the house: add it where its imports allow, here and in docs/architecture.md", p.path)
		}
		for name, files := range p.imports {
			name, ours := strings.CutPrefix(name, module)
			to := room(name)
			switch {
			case !ours || to == "" || to == from:
			case slices.Index(house, to) < slices.Index(house, from):
				t.Errorf("%s (%v) imports %s: %s is above it", p.path, files, name, to)
			case slices.Contains(subjects, to) && slices.Contains(subjects, from) && known[p.path] != name:
				t.Errorf("%s (%v) imports %s: what two subjects need belongs below both", p.path, files, name)
			}
		}
	}
}

// rule says what the packages of a tree may not import, nor anything that they
// import of this module in their turn, beside what the order of the house says.
type rule struct {
	tree   string   // "internal/model" holds for internal/model/... too; * is any one name
	never  []string // import paths, each with all below; those of this module begin with "internal/"
	reason string
}

// Of the standard library a path stands for itself alone: net/netip is not net.
var (
	kubernetes = []string{"k8s.io", "sigs.k8s.io"}
	kernel     = []string{"github.com/vishvananda", "github.com/mdlayher", "github.com/google/nftables", "github.com/cilium/ebpf", "golang.org/x/sys", "syscall"}
	io         = []string{"os", "os/exec", "net", "net/http"}
)

const pure = "compile is a pure function of the objects: it is tested without a kernel, and gives the same state everywhere"

var rules = []rule{
	{"internal", []string{"cmd", "test"},
		"the commands wire the parts, and the tests prove them: no part knows of either"},
	{"cmd", []string{"test"},
		"the lab and the bench show and prove the product, which has to work without"},
	{"internal/model", slices.Concat(kubernetes, kernel, io, []string{"internal"}),
		"model is what users declare, as plain values: everyone shares them, any source can make them, any test can write them down"},
	{"internal/source", []string{"internal/state"},
		"data moves one way, source to store to compile to driver: a source that knows what comes of its objects is no longer replaceable"},
	{"internal/store", slices.Concat(kubernetes, kernel, []string{"internal/kernel", "internal/state"}),
		"the store holds objects for whoever asks: it knows neither where they come from nor what is made of them"},
	{"internal/compile", slices.Concat(kubernetes, kernel, io, []string{"internal/driver", "internal/source"}), pure},
	{"internal/*/compile", slices.Concat(kubernetes, kernel, io, []string{"internal/driver", "internal/source"}), pure},
	{"internal/state", slices.Concat(kubernetes, kernel, []string{"os"}),
		"state is what drivers read: comparable values with nothing behind them"},
	{"internal/driver", slices.Concat(kubernetes, []string{"internal/store", "internal/source"}),
		"a driver gets the desired state and nothing else: whatever else it looked at would be a second way for data to flow"},
	{"internal/driver/nftables", []string{"internal/kernel/conntrack", "internal/kernel/link"},
		"what befalls connections is the upkeep's, whatever the driver"},
	{"internal/fabric/kernel", slices.Concat(kubernetes, []string{"internal/store", "internal/source"}),
		"a driver gets the desired state and nothing else"},
	{"internal/balancer/nftables", slices.Concat(kubernetes, []string{"internal/store", "internal/source", "internal/driver/nftables/ruleset", "internal/kernel/conntrack", "internal/balancer/health", "internal/balancer/config"}),
		"farms have a table of their own: what befalls connections is the upkeep's, and who checks backends is not for a driver to know"},
	{"internal/driver/userspace", []string{"internal/driver/nftables/ruleset", "internal/kernel/conntrack", "internal/kernel/link"},
		"a proxy is a driver like others: who follows what it does to connections is not for it to know"},
	{"internal/kernel/nft", []string{"internal"},
		"nft is nf_tables on the wire: what is carried over it is the business of drivers"},
	{"internal/driver/table", []string{"internal/driver/nftables", "internal/kernel/conntrack", "internal/kernel/link"},
		"a table is kept in step in the same way whatever it holds: that is for the services' driver and the farms' to say"},
	{"internal/driver/nftables/ruleset", []string{"os", "os/exec", "net", "internal/kernel/netns", "internal/lib/wake"},
		"the ruleset says what the table holds: it neither sends nor reads, that is the driver's"},
	{"internal/reconcile", slices.Concat(kubernetes, kernel, []string{"internal/store", "internal/source", "internal/kernel"}),
		"reconcile decides what is done when: everything that it does to a kernel goes through a driver"},
	{"internal/upkeep", slices.Concat(kubernetes, []string{"internal/store", "internal/source"}),
		"upkeep goes by what the driver holds: it needs to know no objects"},
	{"internal/policy/verdict", slices.Concat(kubernetes, kernel, io, []string{"internal/store", "internal/source", "internal/driver"}),
		"verdict says what the desired state does with a connection: it asks neither the kernel nor the objects, so that it can be held against both"},
	{"internal/policy/question", slices.Concat(kubernetes, kernel, io, []string{"internal/source", "internal/driver"}),
		"question reads what people ask and finds the objects that they name: what becomes of the connection is for verdict to say"},
	{"internal/policy/remedy", slices.Concat(kubernetes, kernel, io, []string{"internal/source", "internal/driver"}),
		"remedy reads the objects and what a verdict said of them: the kernel and the APIs have no part in what would have helped"},
	{"internal/kernel", kubernetes,
		"the wire to Linux has no opinions: what interfaces, packets and connections mean is for its readers to say"},
	{"internal/source/list", kubernetes,
		"a list is a text file of addresses: Kubernetes has no part in it"},
	{"internal/source/calico", slices.Concat(kernel, []string{"internal/source/manifest", "internal/store"}),
		"calico translates objects, wherever they come from"},
	{"internal/source/kubeobj", slices.Concat(kernel, []string{"internal/source/manifest", "internal/store"}),
		"kubeobj translates objects, wherever they come from"},
	{"internal/source/kinds", slices.Concat(kernel, []string{"internal/source/manifest", "internal/source/kube", "internal/store"}),
		"the table of kinds says what an object is, and not who reads it: all sources share it"},
	{"internal/balancer/config", slices.Concat(kubernetes, []string{"internal/balancer/importer", "internal/source/list", "internal/state"}),
		"what the balancer's API takes is the same on every machine: who reads feeds and who programs the kernel is wired by the command"},
	{"internal/balancer/health", slices.Concat(kubernetes, []string{"internal/model", "internal/state", "internal/store", "internal/source", "internal/driver"}),
		"health says what its checks find: what that means for a farm is the source's business"},
	{"internal/balancer/importer", slices.Concat(kubernetes, kernel, []string{"internal/state", "internal/store", "internal/driver"}),
		"what writes configurations needs nothing that runs them"},
	{"internal/balancer/pair", slices.Concat(kubernetes, kernel, []string{"internal/state", "internal/store", "internal/driver"}),
		"what writes configurations needs nothing that runs them"},
	{"test/policytest/oracle", []string{"internal/store", "internal/compile", "internal/policy", "internal/state", "internal/driver", "internal/agent"},
		"the oracle is written from the API's documentation alone: what it shared with the product would be wrong in both"},
	{"internal/services/kubeproxy", slices.Concat(kernel, []string{"internal/state", "internal/store", "internal/source", "internal/driver"}),
		"kubeproxy says what its configuration comes to; who carries that out is for the command to choose"},
	{"internal/agent", kubernetes,
		"the agent runs the loop over the contracts; Kubernetes' types end in the sources"},
	{"internal/pods/cni", []string{"k8s.io", "net/http", "internal/store", "internal/source", "internal/driver"},
		"a runtime starts sluice-cni for each pod: it stays small, and reaches the agent over its socket alone"},
	{"internal/bgp/speaker", slices.Concat(kubernetes, []string{"internal/state", "internal/store", "internal/source", "internal/driver"}),
		"the speaker does what its orders say: what they come from is the agent's business"},
	{"internal/pods/attach", slices.Concat(kubernetes, []string{"internal/state", "internal/store", "internal/source", "internal/driver"}),
		"attach makes a pod's interface, whoever asks for it"},
}

func TestImports(t *testing.T) {
	all := packages(t)
	byPath := map[string]*pkg{}
	for _, p := range all {
		byPath[p.path] = p
	}
	for _, p := range all {
		for _, r := range rules {
			if !below(p.path, r.tree) {
				continue
			}
			for _, chain := range reach(byPath, p) {
				last := chain[len(chain)-1]
				if last == "internal/kernel/attr" { // bytes of netlink, whatever they mean
					continue
				}
				for _, never := range r.never {
					if matches(last, never) && !below(last, r.tree) {
						t.Errorf("%s imports %s (%s): %s", p.path, last, strings.Join(chain, " -> "), r.reason)
					}
				}
			}
		}
	}
}

// reach returns the shortest chain of imports from p to each thing it imports,
// through this module's packages but not through those of others: what the
// standard library and the libraries need is their business.
func reach(byPath map[string]*pkg, p *pkg) [][]string {
	seen := map[string]bool{p.path: true}
	queue := [][]string{{p.path}}
	var chains [][]string
	for len(queue) > 0 {
		chain := queue[0]
		queue = queue[1:]
		from := byPath[chain[len(chain)-1]]
		if from == nil {
			continue
		}
		for name := range from.imports {
			name = strings.TrimPrefix(name, module)
			if seen[name] {
				continue
			}
			seen[name] = true
			next := append(slices.Clone(chain), name)
			chains = append(chains, next)
			queue = append(queue, next)
		}
	}
	return chains
}

// matches reports whether a rule's path stands for an import.
func matches(name, never string) bool {
	first, _, _ := strings.Cut(never, "/")
	if !slices.Contains([]string{"cmd", "internal", "test"}, first) && !strings.Contains(first, ".") {
		return name == never
	}
	return below(name, never)
}

// below reports whether a package is that of a tree, or in it.
func below(name, tree string) bool {
	in, of := strings.Split(name, "/"), strings.Split(tree, "/")
	if len(in) < len(of) {
		return false
	}
	for i, part := range of {
		if part != "*" && part != in[i] {
			return false
		}
	}
	return true
}

// What is installed on a node is the product alone: the lab and the bench are in sluice-lab.
func TestSluiceLinksTheProductAlone(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/sluice")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	linked := strings.Fields(string(out))
	if err != nil || !slices.Contains(linked, module+"cmd/sluice") {
		t.Fatalf("go list: %v: %s", err, out)
	}
	for _, name := range linked {
		name = strings.TrimPrefix(name, module)
		for _, never := range []string{"test", "examples", "testing"} {
			if below(name, never) {
				t.Errorf("cmd/sluice links %s: it is there to show and test the product, which has to work without", name)
			}
		}
	}
}

// What speaks BGP takes more than the agent itself: it runs where it is asked for, in sluice-bgp.
func TestAgentSpeaksNoBGP(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../../cmd/sluice").Output()
	linked := strings.Fields(string(out))
	if err != nil || !slices.Contains(linked, module+"internal/bgp") {
		t.Fatalf("go list: %v: %s", err, out)
	}
	for _, name := range linked {
		if below(name, "github.com/osrg/gobgp") || below(strings.TrimPrefix(name, module), "internal/bgp/speaker") {
			t.Errorf("cmd/sluice links %s: only cmd/sluice-bgp is to", name)
		}
	}
}

// A runtime starts sluice-cni for each pod.
func TestPluginIsSmall(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../../cmd/sluice-cni").Output()
	linked := strings.Fields(string(out))
	if err != nil || !slices.Contains(linked, module+"internal/pods/cni") {
		t.Fatalf("go list: %v: %s", err, out)
	}
	for _, name := range linked {
		for _, never := range []string{"k8s.io", "github.com/google/nftables", "net/http", "crypto/tls"} {
			if below(name, never) {
				t.Errorf("cmd/sluice-cni links %s, which is not worth what it weighs", name)
			}
		}
	}
}

func TestOnlyTheCommandWires(t *testing.T) {
	// Whoever names these concrete parts decides which the project uses.
	parts := []string{"internal/driver/nftables", "internal/balancer/nftables", "internal/driver/userspace", "internal/source/manifest", "internal/source/list", "internal/balancer/config"}
	// The wire of nftables chooses nothing: drivers are made of it, and foreign and takeover read
	// other programs' rules by it; passes wait by it for packets on their way. The driver of IPVS
	// is made of the one of nftables.
	wire, wired := "internal/kernel/nft", []string{"internal/driver", "internal/foreign", "internal/kernel/passes", "internal/services/takeover"}
	for _, p := range packages(t) {
		if below(p.path, "cmd") || below(p.path, "test") {
			continue
		}
		for _, part := range parts {
			for name, files := range p.imports {
				name = strings.TrimPrefix(name, module)
				byWire := name == wire && slices.ContainsFunc(wired, func(tree string) bool { return below(p.path, tree) })
				if byWire || name == "internal/driver/nftables" && p.path == "internal/driver/ipvs" {
					continue
				}
				if below(name, part) && !below(p.path, part) {
					t.Errorf("%s (%v) imports %s: only cmd/sluice chooses the parts, everyone else takes the contract", p.path, files, name)
				}
			}
		}
	}
}

func TestOnlyLinkReadsTheNetwork(t *testing.T) {
	others := []string{"internal/kernel/netns", "internal/services/takeover", "internal/fabric/kernel", "internal/balancer/nftables", "internal/driver/iptables", "internal/driver/ipvs",
		"internal/driver/userspace", "internal/pods/attach"} // they add and delete
	for _, p := range packages(t) {
		if below(p.path, "test") || slices.ContainsFunc(append(others, "internal/kernel/link"), func(e string) bool { return below(p.path, e) }) {
			continue
		}
		if files := p.imports["github.com/vishvananda/netlink"]; files != nil {
			t.Errorf("%s (%v) reads the network by itself: internal/kernel/link does for all", p.path, files)
		}
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		if !p.doc && !p.tests {
			t.Errorf("package %s has no doc comment: say in its first file what it owns", p.path)
		}
	}
}

// The page names each room.
func TestPageHasEveryRoom(t *testing.T) {
	b, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages(t) {
		parts := strings.Split(p.path, "/")
		if len(parts) < 2 || !slices.Contains([]string{"cmd", "internal", "test"}, parts[0]) {
			continue
		}
		room := parts[1]
		if parts[0] == "cmd" {
			room = "cmd/" + room
		}
		if !slices.ContainsFunc([]string{"**" + room + "**", "`" + room + "`", "`" + p.path + "`"}, func(name string) bool { return strings.Contains(string(b), name) }) {
			t.Errorf("docs/architecture.md does not say what %s is for", p.path)
		}
	}
}

func TestNames(t *testing.T) {
	vague := []string{"util", "utils", "common", "helper", "helpers", "manager", "misc", "shared", "base"}
	for _, p := range packages(t) {
		if p.tests {
			continue
		}
		for part := range strings.SplitSeq(p.path, "/") {
			if slices.Contains(vague, part) {
				t.Errorf("package %s: %q does not say what is in it", p.path, part)
			}
		}
		if p.name != "main" && p.name != path.Base(p.path) {
			t.Errorf("package %s calls itself %s: one name", p.path, p.name)
		}
		if strings.ContainsAny(p.name, "_ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			t.Errorf("package %s: names are short, in lower case, without underscores", p.path)
		}
	}
}

func TestRulesCatch(t *testing.T) {
	byPath := map[string]*pkg{
		"internal/compile": {path: "internal/compile", imports: map[string][]string{module + "internal/model": {"a.go"}}},
		"internal/model":   {path: "internal/model", imports: map[string][]string{"k8s.io/api/core/v1": {"b.go"}}},
	}
	chains := reach(byPath, byPath["internal/compile"])
	want := []string{"internal/compile", "internal/model", "k8s.io/api/core/v1"}
	if !slices.ContainsFunc(chains, func(c []string) bool { return slices.Equal(c, want) }) {
		t.Errorf("an import by way of another package is not found: %v", chains)
	}
	if matches("net/netip", "net") || !matches("k8s.io/api/core/v1", "k8s.io") || !matches("internal/driver/nftables", "internal/driver") {
		t.Error("matches is wrong")
	}
	if !below("k8s.io/api/core/v1", "k8s.io") || below("k8s.iox/y", "k8s.io") || below("os/exec", "os2") {
		t.Error("below is wrong")
	}
}
