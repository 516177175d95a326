package docs_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/image"
	built "sluice.dev/sluice/test/programs"
)

var (
	programs string            // folder with sluice and the programs beside it
	clients  map[string]string // kubectl and helm
	sources  string            // folder with what the pages fetch from GitHub, by repository
	archive  string            // of the image that the pages install
)

func TestMain(m *testing.M) {
	err := findPrograms()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// findPrograms has what the pages run built.
func findPrograms() (err error) {
	if programs, err = built.Folder(); err != nil {
		return err
	}
	say := func(step string) { fmt.Fprintln(os.Stderr, step) }
	kubernetes, err := control.Build(context.Background(), say)
	if err != nil {
		return err
	}
	tools, err := control.BuildTools(context.Background(), say)
	clients = map[string]string{"kubectl": filepath.Join(kubernetes, "kubectl"), "helm": filepath.Join(tools, "helm")}
	return err
}

// placeholders are what the pages leave to the reader. A block can say others: NAME=VALUE.
var placeholders = map[string]string{
	"API-SERVER": "10.10.0.2",
	"CIDRS":      "10.244.1.0/24",
	"DIR":        "manifests",  // of what the lab has
	"FILE":       "kubeconfig", // of the agent's account
	"FILE...":    "manifests",
	"IMAGE":      "registry.example/sluice",
	"NAME":       "node1",
}

// command is a command as people type it, and what the page shows of its output.
type command struct {
	line   int
	text   string
	output string
}

// commands returns the commands of a block: in a console, and in output, what follows "# ".
func (b *block) commands() (all []*command) {
	if !slices.Contains([]string{"sh", "console", "text"}, b.lang) {
		return nil
	}
	var c *command
	n := b.line
	for line := range strings.Lines(b.text) {
		n++
		switch text, prompted := strings.CutPrefix(line, "# "); {
		case c != nil && incomplete(c.text):
			c.text += line
		case b.lang == "sh" && strings.TrimSpace(line) == "":
		case b.lang == "sh":
			c = &command{line: n, text: line}
			all = append(all, c)
		case prompted:
			c = &command{line: n, text: text}
			all = append(all, c)
		case c != nil:
			c.output += line
		}
	}
	return all
}

// incomplete reports whether the shell waits for more after a text.
func incomplete(text string) bool {
	if strings.HasSuffix(text, "\\\n") {
		return true
	}
	if !strings.ContainsAny(text, "<'\"({") && !strings.HasSuffix(text, "&&\n") && !strings.HasSuffix(text, "|\n") {
		return false
	}
	out, err := exec.Command("bash", "-n", "-c", text).CombinedOutput()
	return err != nil && bytes.Contains(out, []byte("unexpected")) || bytes.Contains(out, []byte("here-document"))
}

// runs reports whether TestRun runs the block.
func (b *block) runs() bool {
	return slices.Contains([]string{"lab", "node", "cluster"}, b.kind) && (b.lang == "sh" || b.lang == "console")
}

// flags are the flags and manifests of 'lab up' that the block asks for.
func (b *block) flags() (flags []string) {
	for _, a := range b.args {
		if strings.HasPrefix(a, "--") || strings.HasSuffix(a, ".yaml") {
			flags = append(flags, a)
		}
	}
	return flags
}

// scene is blocks of a page that are run in one sandbox, one after the other.
type scene struct {
	name   string
	kind   string
	flags  []string // and manifests, of lab up
	blocks []*block

	follows bool // another, in the lab of which it goes on, and which it leaves up
}

// sandbox is where scenes are run, one after the other.
type sandbox struct {
	flags  []string // and manifests, of lab up
	scenes []*scene
}

// together are the scenes that follow each other in a sandbox, as readers go from page to page: a
// control plane for each costs more than all that the pages do with it. Without flags, the first
// brings up the lab of the others, whose pages' own lab is that one. What a scene's manifests have
// beyond the sandbox's is made when the scene begins.
var together = []struct {
	flags  string
	scenes []string
}{
	{"", []string{
		"lab lab kubernetes", "recipes lab", "bgp cluster", "node node services", "runbook node kubernetes",
	}},
	{"--kubernetes --no-agent --crds --nodes=1", []string{"README cluster", "install cluster", "install cluster manifests"}},
	{"--kubernetes --no-agent --crds --nodes=2 app.yaml", []string{
		"cni node", "node node", "from-cilium node", "from-calico node", "takeover cluster",
		"policy cluster",
	}},
}

// sandboxes groups the scenes of all pages.
func sandboxes(t *testing.T) (all []*sandbox) {
	byName := map[string]*scene{}
	var order []string
	for _, page := range pages(t) {
		for _, s := range scenes(t, page) {
			byName[s.name] = s
			order = append(order, s.name)
		}
	}
	for _, group := range together {
		b := &sandbox{flags: strings.Fields(group.flags)}
		for _, name := range group.scenes {
			if byName[name] == nil {
				t.Fatalf("no page has a scene %q", name)
			}
			b.scenes = append(b.scenes, byName[name])
			delete(byName, name)
		}
		if group.flags == "" {
			b.flags = b.scenes[0].leaves()
		}
		for i, s := range b.scenes {
			if s.follows = i > 0; group.flags == "" && i == 0 {
				continue
			}
			if err := s.fits(b.flags); err != nil {
				t.Errorf("%s cannot be run together with %s: %v", s.name, b.scenes[0].name, err)
			}
		}
		all = append(all, b)
	}
	for _, name := range order {
		if s := byName[name]; s != nil {
			all = append(all, &sandbox{s.flags, []*scene{s}})
		}
	}
	return all
}

// leaves returns the flags of the lab that a page's own commands leave up.
func (s *scene) leaves() (flags []string) {
	for _, b := range s.blocks {
		for _, c := range b.commands() {
			if words := simple(c.text)[0]; startsLab(words) {
				flags = append(slices.Clone(words[3:]), b.flags()...)
			}
		}
	}
	return flags
}

// startsLab reports whether a command starts the lab that other commands are about.
func startsLab(words []string) bool {
	return strings.HasPrefix(strings.Join(words, " "), "bin/sluice lab up") && !slices.Contains(words, "--name")
}

// ofTheLab tells whether a command brings up the lab, or takes it down.
func ofTheLab(text string) bool {
	words := simple(text)[0]
	return startsLab(words) || strings.Join(words, " ") == "bin/sluice lab down"
}

// fits tells whether a lab with these flags has what a scene asks of its own.
func (s *scene) fits(flags []string) error {
	for _, f := range append(s.leaves(), s.flags...) {
		if strings.HasPrefix(f, "--") && !slices.Contains(flags, f) {
			return fmt.Errorf("it asks for %s, and the sandbox has %s", f, strings.Join(flags, " "))
		}
	}
	if noAgent := "--no-agent"; slices.Contains(flags, noAgent) && !slices.Contains(s.flags, noAgent) {
		return errors.New("it asks for agents, and the sandbox has " + noAgent)
	}
	return nil
}

// name is the names of its scenes.
func (b *sandbox) name() string {
	var names []string
	for _, s := range b.scenes {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// title is the name of a page, without its folder.
func title(page string) string { return strings.TrimSuffix(filepath.Base(page), ".md") }

// scenes groups the blocks of a page: those of one kind, and with the same word after that, run in
// one sandbox.
func scenes(t *testing.T, page string) []*scene {
	all, _ := blocks(t, page)
	byName := map[string]*scene{}
	var order []*scene
	for _, b := range all {
		if !b.runs() {
			continue
		}
		name, flags := b.kind, b.flags()
		for _, a := range b.args {
			if a != exact && a != shape && !strings.Contains(a, "=") && !slices.Contains(flags, a) {
				name += " " + a
			}
		}
		s := byName[name]
		if s == nil {
			s = &scene{name: title(page) + " " + name, kind: b.kind}
			byName[name], order = s, append(order, s)
			if b.kind == "cluster" {
				s.flags = append(s.flags, "--kubernetes")
			}
		}
		s.flags = append(s.flags, flags...)
		s.blocks = append(s.blocks, b)
	}
	return order
}

// TestRun runs the blocks of all pages.
func TestRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make namespaces")
	}
	// Where there is a network, so that 'lab up --crds' and 'make image' find them without.
	if err := output(exec.Command("go", "-C", filepath.Join(root, "release"), "mod", "download")); err != nil {
		t.Fatal(err)
	}
	published, err := control.Published(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sources = t.TempDir()
	for repository, module := range map[string]string{
		"kubernetes-sigs/network-policy-api": "sigs.k8s.io/network-policy-api",
		"projectcalico/calico":               "github.com/projectcalico/calico",
	} {
		link := filepath.Join(sources, repository)
		if err := errors.Join(os.Mkdir(filepath.Dir(link), 0o755), os.Symlink(published[module], link)); err != nil {
			t.Fatal(err)
		}
	}
	archive = filepath.Join(t.TempDir(), "sluice.tar")
	contents := map[string]string{}
	for _, name := range []string{"sluice", "sluice-bgp", "sluice-cni"} {
		contents["usr/local/bin/"+name] = filepath.Join(programs, name)
	}
	if err := image.WriteOwn(archive, placeholders["IMAGE"]+":latest", "/usr/local/bin/sluice", contents); err != nil {
		t.Fatal(err)
	}
	for _, b := range sandboxes(t) {
		t.Run(b.name(), func(t *testing.T) {
			t.Parallel() // most of it is waiting
			b.run(t)
		})
	}
}

// sandboxTimeout is for what hangs: five scenes take a minute or two on a busy machine.
const sandboxTimeout = 10 * time.Minute

// run runs the scenes in a network, mount and process namespace of their own, with which all ends
// that they started and all goes that they wrote. The checkout is there with bin/, and can be
// written to.
func (b *sandbox) run(t *testing.T) {
	checkout, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	testdata := filepath.Join(checkout, "docs/testdata")
	files := t.TempDir()
	var scripts []string // and the kind of each
	for i, s := range b.scenes {
		script := filepath.Join(files, fmt.Sprint("script", i))
		if err := os.WriteFile(script, []byte(s.script(b.flags)), 0o600); err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, s.kind, script)
	}
	if err := certificate(files); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), sandboxTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
		"bash", filepath.Join(testdata, "sandbox"), strings.Join(scripts, " ")}, b.flags...)...)
	cmd.Dir = checkout
	cmd.Env = append(os.Environ(), "PROGRAMS="+programs, "FILES="+files, "SOURCES="+sources, "IMAGE="+archive, "HELM="+clients["helm"],
		"PATH="+strings.Join([]string{filepath.Join(checkout, "bin"), filepath.Dir(clients["kubectl"]), os.Getenv("PATH")}, ":"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("it took longer than %s: %w", sandboxTimeout, err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Log(out.String())
	for _, s := range b.scenes {
		s.compare(t, out.String())
	}
}

// certificate writes a certificate for the balancer and the registries of the pages, its own
// authority, and its key.
func certificate(folder string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "192.0.2.2"}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP("192.0.2.2")},
		DNSNames: []string{"registry.example", "ghcr.io"},
		IsCA:     true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	write := func(name, kind string, text []byte) error {
		return os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: text}), 0o600)
	}
	return errors.Join(write("cert.pem", "CERTIFICATE", cert), write("key.pem", "PRIVATE KEY", private))
}

var (
	agents   = regexp.MustCompile(`\bsluice (run|balance) -|\bsluice (run|balance)$`)
	watchers = regexp.MustCompile(`\bsluice (drops|farms --watch)\b`)
	// Commands that tell something by their exit status, and which.
	telling = map[*regexp.Regexp]string{
		regexp.MustCompile(`\bsluice why\b`):                       "3", // denied
		regexp.MustCompile(`\bsluice check\b`):                     "3", // faults
		regexp.MustCompile(`^sluice (fabric|bgp|addresses)\b`):     "1", // the agent does not do this
		regexp.MustCompile(`^sluice preflight --policies .*/etc/`): "3", // one is refused
		regexp.MustCompile(`; echo \$\?\n`):                        "0", // it is the command before that fails
	}
)

// status returns the exit status, beside 0, by which a command may tell something.
func status(text string) string {
	for pattern, s := range telling {
		if pattern.MatchString(text) {
			return s
		}
	}
	return ""
}

// with is the beginning of a word that names a function, of a page's own script in testdata/stages
// or of testdata/steps, which makes what a block of the page supposes. Such a script also has what
// stands in for programs.
const with = "with="

// script makes a script of the commands, where what the flags say is there.
func (s *scene) script(flags []string) string {
	var w strings.Builder
	fmt.Fprintln(&w, ". docs/testdata/steps")
	for _, f := range s.flags {
		if strings.HasSuffix(f, ".yaml") && !slices.Contains(flags, f) {
			fmt.Fprintf(&w, "step %s\nkubectl apply -f %s\n", f, f)
		}
	}
	stage := "testdata/stages/" + title(s.blocks[0].page)
	if _, err := os.Stat(stage); err == nil {
		fmt.Fprintln(&w, ". docs/"+stage)
	}
	for _, b := range s.blocks {
		for _, a := range b.args {
			if act, ok := strings.CutPrefix(a, with); ok {
				fmt.Fprintf(&w, "step %s\n%s\n", act, act)
			}
		}
		for _, c := range b.commands() {
			fmt.Fprintf(&w, "step %s:%d\n", b.page, c.line)
			text := b.fill(c.text)
			words := simple(text)[0]
			plain := strings.Join(words, " ")
			switch {
			case agents.MatchString(plain):
				fmt.Fprintf(&w, "end_agent\n%s &\nawait_agent $!\n", background(text))
			case watchers.MatchString(plain):
				// What it prints first is that it watches, or a table.
				fmt.Fprintf(&w, "(exec %s) >watched 2>&1 &\nend_watching $! %d\n", background(text), 1+strings.Count(c.output, "\n"))
			default:
				if s.follows && ofTheLab(text) {
					continue
				}
				if startsLab(words) { // in place of the last one
					fmt.Fprintln(&w, "bin/sluice lab down")
				}
				if s.kind == "lab" && strings.HasPrefix(plain, "bin/sluice lab up") {
					text = background(text) + " " + strings.Join(b.flags(), " ") + "\n"
				}
				if strings.Contains(plain, "sluice cleanup") && !strings.Contains(plain, "kill") {
					fmt.Fprintln(&w, "end_agent")
				}
				if status := status(text); status != "" {
					fmt.Fprintf(&w, "{\n%s} || test $? = %s\n", text, status)
				} else {
					fmt.Fprint(&w, text)
				}
			}
		}
	}
	fmt.Fprintln(&w, "step end\nend_agent\nfinally")
	return w.String()
}

// background returns a command that is to run beside others without what the page says of that.
func background(text string) string {
	text, _, _ = strings.Cut(text, " #")
	return strings.TrimSuffix(strings.TrimSpace(text), "&")
}

// fill puts values in the place of placeholders.
func (b *block) fill(text string) string {
	values := maps.Clone(placeholders)
	for _, a := range b.args {
		if name, value, ok := strings.Cut(a, "="); ok && !strings.HasPrefix(a, "--") && !strings.HasPrefix(a, with) {
			values[name] = value
		}
	}
	// The longest first.
	names := slices.SortedFunc(maps.Keys(values), func(a, b string) int { return len(b) - len(a) })
	for _, name := range names {
		text = regexp.MustCompile(`(^|[\s=])`+regexp.QuoteMeta(name)+`($|[\s/;])`).ReplaceAllString(text, "${1}"+values[name]+"${2}")
	}
	return text
}

// These are words for a console of which all output is compared: as it stands, or except for what
// is of its day.
const (
	exact = "exact"
	shape = "shape"
)

var (
	heading = regexp.MustCompile(`^[A-Z][A-Z/]+( +[A-Z][A-Z/]+)+$`)
	// Times, durations, addresses, the version, and numbers that the kernel or a program chooses,
	// such as ports.
	varying = regexp.MustCompile(`agent +[^ ,]+,|process \d+|(\d+(\.\d+)?(ms|µs|s|m|h)\b)+|\d+([.:]\d+)+(e\+\d+)?|\d{4,}`)
)

// compare compares what a page shows of the output with what was printed: the headings of tables
// and JSON, and with "exact" or "shape" all lines. Others are of their day.
func (s *scene) compare(t *testing.T, out string) {
	printed := map[string]string{}
	for _, part := range strings.Split(out, "\n== ") {
		where, text, _ := strings.Cut(part, "\n")
		printed[where] = text
	}
	for _, b := range s.blocks {
		words := func(text string) string { return strings.Join(strings.Fields(text), " ") }
		if slices.Contains(b.args, shape) {
			words = func(text string) string {
				return strings.Join(strings.Fields(varying.ReplaceAllString(text, "0")), " ")
			}
		}
		all := slices.Contains(b.args, exact) || slices.Contains(b.args, shape)
		for _, c := range b.commands() {
			where := fmt.Sprintf("%s:%d", b.page, c.line)
			for line := range strings.Lines(c.output) {
				line = strings.TrimSpace(line)
				if (all || heading.MatchString(line) || strings.HasPrefix(line, "{")) && !strings.Contains(words(printed[where]), words(line)) {
					t.Errorf("%s does not print %q: %s", where, line, printed[where])
				}
			}
		}
	}
}
