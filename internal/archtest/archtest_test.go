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

// rule says what the packages of a tree may not import, nor anything that they
// import of this module in their turn.
type rule struct {
	tree   string   // "internal/model" holds for internal/model/... too
	never  []string // import paths, each with all below; those of this module begin with "internal/"
	reason string
}

// Of the standard library a path stands for itself alone: net/netip is not net.
var (
	kubernetes = []string{"k8s.io", "sigs.k8s.io"}
	kernel     = []string{"github.com/vishvananda", "github.com/mdlayher", "github.com/google/nftables", "github.com/cilium/ebpf", "golang.org/x/sys", "syscall"}
)

var rules = []rule{
	{"internal/model", slices.Concat(kubernetes, kernel, []string{"os", "os/exec", "net", "net/http"}),
		"model is what users declare, as plain values: any source can make them and any test can write them down"},
	{"internal/model", []string{"internal"},
		"model is the bottom of the project: everyone shares its types, so it can depend on nobody"},
	{"internal/source", []string{"internal/compile", "internal/driver", "internal/agent", "internal/state"},
		"data moves one way, source to store to compile to driver: a source that knows what comes of its objects is no longer replaceable"},
	{"internal/store", slices.Concat(kubernetes, kernel, []string{"internal/driver", "internal/compile", "internal/source", "internal/state"}),
		"the store holds objects for whoever asks: it knows neither where they come from nor what is made of them"},
	{"internal/compile", slices.Concat(kubernetes, kernel, []string{"os", "os/exec", "net", "net/http", "internal/driver", "internal/source", "internal/agent"}),
		"compile is a pure function of the objects: it is tested without a kernel, and gives the same state everywhere"},
	{"internal/state", slices.Concat(kubernetes, kernel, []string{"os", "internal/source", "internal/store", "internal/compile", "internal/driver", "internal/agent"}),
		"state is what drivers read: comparable values with nothing behind them"},
	{"internal/driver", slices.Concat(kubernetes, []string{"internal/compile", "internal/store", "internal/source", "internal/agent"}),
		"a driver gets the desired state and nothing else: whatever else it looked at would be a second way for data to flow"},
	{"internal/driver/nftables", []string{"internal/conntrack", "internal/upkeep", "internal/verdict", "internal/reconcile", "internal/link"},
		"what befalls connections is the upkeep's, whatever the driver; when a part is adopted or tried again is the reconciler's"},
	{"internal/driver/fabric", []string{"internal/reconcile", "internal/upkeep", "internal/agent"},
		"when the fabric is adopted or tried again is the reconciler's"},
	{"internal/driver/farms", []string{"internal/driver/nftables/program", "internal/conntrack", "internal/upkeep", "internal/reconcile", "internal/health", "internal/balance"},
		"farms have a table of their own: what befalls connections is the upkeep's, and who checks backends is not for a driver to know"},
	{"internal/driver/userspace", []string{"internal/driver/nftables/program", "internal/conntrack", "internal/upkeep", "internal/verdict", "internal/reconcile", "internal/link"},
		"a proxy is a driver like others: who follows what it does to connections, and when it is asked, is not for it to know"},
	{"internal/driver/nftables/nft", []string{"internal"},
		"nft is nf_tables on the wire: what is carried over it is the program's business"},
	{"internal/driver/nftables/program", []string{"os", "os/exec", "net", "internal/netns", "internal/probe", "internal/wake"},
		"the program says what the table holds: it neither sends nor reads, that is the driver's"},
	{"internal/reconcile", slices.Concat(kubernetes, kernel, []string{"internal/store", "internal/compile", "internal/source", "internal/agent", "internal/conntrack", "internal/link"}),
		"reconcile decides what is done when: everything that it does to a kernel goes through a driver"},
	{"internal/upkeep", slices.Concat(kubernetes, []string{"internal/store", "internal/compile", "internal/source", "internal/agent", "internal/reconcile"}),
		"upkeep goes by what the driver holds: it needs to know neither the objects nor who decides what is done when"},
	{"internal/verdict", slices.Concat(kubernetes, kernel, []string{"os", "os/exec", "net", "net/http", "internal/store", "internal/compile", "internal/source", "internal/driver", "internal/agent"}),
		"verdict says what the desired state does with a connection: it asks neither the kernel nor the objects, so that it can be held against both"},
	{"internal/question", slices.Concat(kubernetes, kernel, []string{"os", "os/exec", "net", "net/http", "internal/compile", "internal/source", "internal/driver", "internal/agent"}),
		"question reads what people ask and finds the objects that they name: what becomes of the connection is for verdict to say"},
	{"internal/remedy", slices.Concat(kubernetes, kernel, []string{"os", "os/exec", "net", "net/http", "internal/source", "internal/driver", "internal/agent"}),
		"remedy reads the objects and what a verdict said of them: the kernel and the APIs have no part in what would have helped"},
	{"internal/link", slices.Concat(kubernetes, []string{"internal/state", "internal/store", "internal/compile", "internal/source", "internal/driver", "internal/agent"}),
		"link says what the kernel tells of interfaces and routes; what that means for pods is the compiler's business"},
	{"internal/nflog", slices.Concat(kubernetes, []string{"internal/state", "internal/store", "internal/compile", "internal/source", "internal/agent"}),
		"nflog reads packets that the kernel tells of; whose they are is for its readers to say"},
	{"internal/source/list", kubernetes,
		"a list is a text file of addresses: Kubernetes has no part in it"},
	{"internal/source/calico", slices.Concat(kernel, []string{"internal/source/manifest", "internal/store"}),
		"calico translates objects, wherever they come from"},
	{"internal/source/kinds", slices.Concat(kernel, []string{"internal/source/manifest", "internal/source/kube", "internal/store"}),
		"the table of kinds says what an object is, and not who reads it: all sources share it"},
	{"internal/source/nftlb", slices.Concat(kubernetes, []string{"internal/balance", "internal/source/list"}),
		"what the balancer's API takes is the same on every machine: who reads feeds and who programs the kernel is wired by the command"},
	{"internal/health", slices.Concat(kubernetes, []string{"internal/model", "internal/state", "internal/store", "internal/compile", "internal/source", "internal/driver", "internal/agent"}),
		"health says what its checks find: what that means for a farm is the source's business"},
	{"internal/balance", slices.Concat(kubernetes, kernel, []string{"internal/state", "internal/store", "internal/compile", "internal/driver", "internal/agent"}),
		"what writes configurations needs nothing that runs them"},
	{"internal/source/kubeobj", slices.Concat(kernel, []string{"internal/source/manifest", "internal/store"}),
		"kubeobj translates objects, wherever they come from"},
	{"internal/policytest/oracle", []string{"internal/store", "internal/compile", "internal/state", "internal/verdict", "internal/driver", "internal/agent"},
		"the oracle is written from the API's documentation alone: what it shared with the program would be wrong in both"},
	{"internal/kubeproxy", slices.Concat(kernel, []string{"internal/state", "internal/store", "internal/compile", "internal/source", "internal/driver", "internal/agent"}),
		"kubeproxy says what its configuration comes to; who carries that out is for the command to choose"},
	{"internal/agent", kubernetes,
		"the agent runs the loop over the contracts; Kubernetes' types end in the sources"},
	{"internal/cni", slices.Concat([]string{"k8s.io", "net/http", "internal/store", "internal/compile", "internal/source", "internal/driver", "internal/agent"}),
		"a runtime starts sluice-cni for each pod: it stays small, and reaches the agent over its socket alone"},
	{"internal/bgp/speaker", slices.Concat(kubernetes, []string{"internal/state", "internal/store", "internal/compile", "internal/source", "internal/driver", "internal/agent"}),
		"the speaker does what its orders say: what they come from is the agent's business"},
	{"internal/attach", slices.Concat(kubernetes, []string{"internal/state", "internal/store", "internal/compile", "internal/source", "internal/driver", "internal/agent"}),
		"attach makes a pod's interface, whoever asks for it"},
	{"internal", []string{"cmd"},
		"the commands wire the parts; no part knows of them"},
}

// exempt packages run a driver, or the whole, on objects as users write them: they
// wire parts as cmd/sluice does, and no other part may depend on them.
var exempt = []string{"internal/lab", "internal/bench", "internal/driver/drivertest", "internal/kubetest"}

// apart is what no part may depend on: the exempt, and what only tests are made of.
var apart = append([]string{"internal/policytest", "internal/kubetest", "internal/logtest", "internal/pagetest", "internal/bgp/peertest", "internal/driver/nftables/nfttest"}, exempt...)

func TestImports(t *testing.T) {
	all := packages(t)
	byPath := map[string]*pkg{}
	for _, p := range all {
		byPath[p.path] = p
	}
	for _, p := range all {
		for _, r := range rules {
			if !below(p.path, r.tree) || slices.ContainsFunc(exempt, func(e string) bool { return below(p.path, e) }) {
				continue
			}
			for _, chain := range reach(byPath, p) {
				last := chain[len(chain)-1]
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
	if first != "internal" && first != "cmd" && !strings.Contains(first, ".") {
		return name == never
	}
	return below(name, never)
}

func below(name, tree string) bool { return name == tree || strings.HasPrefix(name, tree+"/") }

func TestNobodyDependsOnTheExempt(t *testing.T) {
	for _, p := range packages(t) {
		if below(p.path, "cmd") || below(p.path, "test") || slices.ContainsFunc(apart, func(e string) bool { return below(p.path, e) }) {
			continue
		}
		for _, e := range apart {
			for name, files := range p.imports {
				if below(strings.TrimPrefix(name, module), e) {
					t.Errorf("%s (%v) imports %s: it is there to show and test the product, which has to work without", p.path, files, name)
				}
			}
		}
	}
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
		for _, never := range append([]string{"cmd/sluice-lab", "examples", "testing"}, apart...) {
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
	if err != nil || !slices.Contains(linked, module+"internal/cni") {
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
	parts := []string{"internal/driver/nftables", "internal/driver/farms", "internal/driver/userspace", "internal/source/manifest", "internal/source/list", "internal/source/nftlb"}
	// The wire of nftables chooses nothing: drivers are made of it, and foreign and takeover read
	// other programs' rules by it; passes wait by it for packets on their way. The driver of IPVS
	// is made of the one of nftables.
	wire, wired := "internal/driver/nftables/nft", []string{"internal/driver", "internal/foreign", "internal/passes", "internal/takeover"}
	for _, p := range packages(t) {
		if below(p.path, "cmd") || slices.ContainsFunc(exempt, func(e string) bool { return below(p.path, e) }) {
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
	others := []string{"internal/netns", "internal/takeover", "internal/driver/fabric", "internal/driver/farms", "internal/driver/iptables", "internal/driver/ipvs",
		"internal/driver/userspace", "internal/attach"} // they add and delete
	for _, p := range packages(t) {
		if below(p.path, "test") || slices.ContainsFunc(slices.Concat(others, exempt, []string{"internal/link"}), func(e string) bool { return below(p.path, e) }) {
			continue
		}
		if files := p.imports["github.com/vishvananda/netlink"]; files != nil {
			t.Errorf("%s (%v) reads the network by itself: internal/link does for all", p.path, files)
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

// The page has a place for each package, and names none that there is not.
func TestPageHasEveryPackage(t *testing.T) {
	b, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "## Packages")
	table, _, _ = strings.Cut(table, "\n## ")
	all := packages(t)
	for _, p := range all {
		parts := strings.SplitN(p.path, "/", 3)
		if parts[0] != "internal" && parts[0] != "cmd" || len(parts) < 2 {
			continue
		}
		if owner := parts[0] + "/" + parts[1]; !strings.Contains(table, "`"+owner+"`") {
			t.Errorf("docs/architecture.md does not say what %s owns", owner)
		}
	}
	for line := range strings.Lines(table) {
		first, _, isRow := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if !isRow {
			continue
		}
		for i, name := range strings.Split(first, "`") {
			if i%2 == 1 && !slices.ContainsFunc(all, func(p *pkg) bool { return below(p.path, name) }) {
				t.Errorf("docs/architecture.md names %s, which there is not", name)
			}
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
