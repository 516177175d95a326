package main

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/lint"
	services "sluice.dev/sluice/internal/services/compile"
	"sluice.dev/sluice/internal/source/manifest"
	"sluice.dev/sluice/internal/store"
)

func newCheckCommand() *cobra.Command {
	var format string
	var strict, complete bool
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Check manifests without a cluster: what would be refused, and what would have no effect",
		Long: `Check manifests without a cluster and without privileges, as in a CI pipeline. A FILE is a manifest
of YAML or JSON, a folder of them, or - for what comes on standard input.

A fault is what the agent would refuse: a field that it does not know, a wrong value, two Services
with one address, two Nodes with one pod CIDR. A hint is what it would take, though it does not do what it seems to: a policy or
Service that selects none of the pods that the files declare (as Pods, Deployments and other
workloads), a port of a name that none of those pods has. Hints are only about namespaces of which
the files have pods, unless --complete says that the files are all that is in the cluster.

The exit status is 0 if there are no faults, and 3 if there are some, or hints with --strict.`,
		Example: "  sluice check deploy/\n  helm template shop ./chart | sluice check --strict -",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := newChecker()
			for _, arg := range args {
				if err := c.read(arg, cmd.InOrStdin()); err != nil {
					return err
				}
			}
			read := c.reader.Counts()
			if read.Read+len(c.findings) == 0 {
				return fmt.Errorf("nothing to check: there is no object that Sluice reads in %s%s", strings.Join(args, ", "), nothingText(read.Nothing))
			}
			c.judge(complete)
			if err := cli.Print(cmd.OutOrStdout(), format, c.findings, func(w io.Writer) { findingLines(w, c.findings) }); err != nil {
				return err
			}
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), countsText(read))
			if slices.ContainsFunc(c.findings, func(f finding) bool {
				return f.Severity == severityFault || strict && f.Severity == severityHint
			}) {
				return cli.Status(cli.ExitFound)
			}
			return nil
		},
	}
	cli.OutputFlag(cmd, &format)
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with status 3 for hints, too")
	cmd.Flags().BoolVar(&complete, "complete", false, "the files are all that is in the cluster: give hints about every namespace")
	return cmd
}

// countsText says what the files have: "3 objects checked; 1 not read; 2 are nothing to Sluice:
// ConfigMap 1, Ingress 1".
func countsText(read manifest.Counts) string {
	text := model.Count(read.Read, "object") + " checked"
	if read.Unread > 0 {
		text += fmt.Sprintf("; %d not read", read.Unread)
	}
	return text + nothingText(read.Nothing)
}

func nothingText(kinds map[string]int) string {
	n, are := 0, "are"
	for _, of := range kinds {
		n += of
	}
	switch n {
	case 0:
		return ""
	case 1:
		are = "is"
	}
	return fmt.Sprintf("; %d %s nothing to Sluice: %s", n, are, listing(kinds))
}

// finding is what is wrong with an object.
type finding struct {
	Source   string    `json:"source"`          // "web.yaml:12"
	Object   model.Ref `json:"object,omitzero"` // zero where none can be read
	Severity severity  `json:"severity"`
	Reason   string    `json:"reason"` // "spec.podSelector: what is wrong"
}

type severity string

const (
	severityFault severity = "fault" // the agent refuses it
	severityHint  severity = "hint"  // the agent takes it, and it has no effect
	severityNote  severity = "note"  // it has none before there is an object that no file has
)

func findingLines(w io.Writer, all []finding) {
	for _, f := range all {
		text := f.Reason
		if f.Severity != severityFault {
			text = string(f.Severity) + ": " + text
		}
		if f.Object != (model.Ref{}) {
			text = f.Object.String() + ": " + text
		}
		_ = printf(w, "%s: %s\n", f.Source, text)
	}
}

// checker collects objects, and then what is wrong with them.
type checker struct {
	reader   *manifest.Declarations
	sources  map[model.Ref]string // where each object is declared
	objects  *store.Store
	findings []finding
}

func newChecker() *checker {
	return &checker{reader: manifest.NewDeclarations(), sources: map[model.Ref]string{}, objects: store.New(), findings: []finding{}}
}

// read reads a file, all manifests of a folder, or - in.
func (c *checker) read(path string, in io.Reader) error {
	if path == "-" {
		data, err := io.ReadAll(in)
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		return c.add("stdin", data)
	}
	return filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case file != path && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir(), file != path && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)):
			return nil
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return c.add(file, data)
	})
}

// add takes the objects of a file, of which the first of each name counts.
func (c *checker) add(file string, data []byte) error {
	contents, err := c.reader.Read(file, data)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	c.note(severityFault, contents.Issues...)
	c.note(severityHint, contents.Hints...)
	for _, o := range contents.Objects {
		ref := o.Object.Ref()
		if first, twice := c.sources[ref]; twice {
			i := ref.Issue("is declared in " + first + " as well")
			i.Source = o.Source
			c.note(severityFault, i)
			continue
		}
		c.sources[ref] = o.Source
		c.objects.Apply([]store.Event{{Kind: ref.Kind, Name: ref.Name, Object: o.Object}})
	}
	return nil
}

// note adds issues.
func (c *checker) note(s severity, issues ...model.Issue) {
	for _, i := range issues {
		if strings.HasPrefix(i.Source, string(i.Object.Kind)+":") { // it stands for the file
			i.Object = model.Ref{}
		}
		c.findings = append(c.findings, finding{i.Source, i.Object, s, i.Reason})
	}
}

// judge adds what is found in the objects together, and sorts all by file.
func (c *checker) judge(complete bool) {
	if !complete { // what is waited for may well exist
		c.assume()
	}
	compiler := compile.New(compile.Config{Policy: true})
	compiler.Update(c.objects, c.objects.Take())
	c.found(severityFault, compiler.Issues())
	c.assume() // hints are about what waits, too
	c.objects.Read(func(v *store.View) {
		pools := severityHint
		if !complete {
			pools = severityNote
			c.found(severityNote, lint.Waiting(v, c.declared))
		}
		c.found(pools, lint.WithoutPool(v, c.declared))
		c.found(severityHint, lint.Hints(v, complete))
	})
	c.found(severityFault, c.fabric(complete)) // the last, as it adds a Node
	slices.SortStableFunc(c.findings, func(a, b finding) int { return compareSources(a.Source, b.Source) })
}

// fabric returns what an agent would say of Nodes, pools and blocks: that of a node older than all,
// which it adds, with all others on its subnets. Unless the files are all that there is, what no
// pool holds may have one.
func (c *checker) fabric(complete bool) []model.Issue {
	own := &model.Node{Name: "(this)", Created: time.Unix(0, 0), IPs: []netip.Addr{netip.MustParseAddr("192.88.99.1"), netip.MustParseAddr("2002:c058:6301::")}} // of RFC 7526: nobody has them
	config := compile.Config{Config: services.Config{Node: own.Name, Fabric: true}}
	mode := "native"
	c.objects.Read(func(v *store.View) {
		if complete && len(v.IPPools()) > 0 {
			mode = "pools"
		}
		if slices.ContainsFunc(v.Nodes(), func(n *model.Node) bool { return n.Key() != model.PublicKey{} }) {
			config.WireGuard[0] = 1 // encryption is asked for
			own.Fabric = &model.NodeFabric{WireGuard: config.WireGuard}
		}
	})
	_ = fabricMode{&config}.Set(mode)
	compiler := compile.New(config)
	compiler.SetUnderlay([]model.HostAddress{{Prefix: netip.PrefixFrom(own.IPs[0], 0)}, {Prefix: netip.PrefixFrom(own.IPs[1], 0)}})
	c.objects.Apply([]store.Event{{Kind: model.NodeKind, Name: own.Ref().Name, Object: own}})
	compiler.Update(c.objects, c.objects.Take())
	return compiler.Fabric.Issues()
}

// declared reports whether a file has an object, be it one that is refused.
func (c *checker) declared(ref model.Ref) bool {
	_, there := c.sources[ref]
	return there || slices.ContainsFunc(c.findings, func(f finding) bool { return f.Object == ref })
}

// assume adds what objects wait for: Tiers and BGPFilters, as the first version of a policy does
// not wait for Services.
func (c *checker) assume() {
	for ref, waits := c.objects.Awaited(); waits; ref, waits = c.objects.Awaited() {
		var o any = &model.Tier{Name: ref.Name.Name}
		if ref.Kind == model.BGPFilterKind {
			o = &model.BGPFilter{Name: ref.Name.Name}
		}
		c.objects.Apply([]store.Event{{Kind: ref.Kind, Name: ref.Name, Object: o}})
	}
}

// compareSources orders "web.yaml:9" before "web.yaml:12".
func compareSources(a, b string) int {
	split := func(s string) (string, int) {
		i := strings.LastIndexByte(s, ':') + 1
		line, err := strconv.Atoi(s[i:])
		if err != nil {
			return s, 0
		}
		return s[:i], line
	}
	fileA, lineA := split(a)
	fileB, lineB := split(b)
	return cmp.Or(cmp.Compare(fileA, fileB), cmp.Compare(lineA, lineB))
}

// found adds issues of objects that the files declare.
func (c *checker) found(s severity, issues []model.Issue) {
	for _, i := range issues {
		if source, ok := c.sources[i.Object]; ok {
			i.Source = source
			c.note(s, i)
		}
	}
}
