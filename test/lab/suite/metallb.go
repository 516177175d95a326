package suite

import (
	"bufio"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"sluice.dev/sluice/test/lab/build"
)

// metalLB is MetalLB's suite of its version 0.13.5, the last whose tests are in the module: one
// process of Ginkgo 1. Its configuration is the cluster's, so that tests can't run side by side.
var metalLB = &Suite{
	programs: build.Set{Name: "metallb", Programs: []build.Program{
		// Its Kubernetes names a function of Go's own libraries, as it was allowed then.
		{Name: "e2etest.test", Module: metalLBModule, Package: "go.universe.tf/metallb/e2etest", Test: true, Link: "-checklinkname=0"},
	}},
	prepare: prepareMetalLB,
	command: func(c Config) []string {
		args := []string{
			filepath.Join(c.Bin, "e2etest.test"), "-ginkgo.noColor", "-test.timeout=3h", "-ginkgo.focus=" + c.Focus,
			"-provider=local", "-kubectl-path=" + c.Kubectl, "-service-pod-port=8080",
			"-ips-for-containers-v4=10.10.0.101,10.10.0.102", "-ips-for-containers-v6=fd00:10:10::101,fd00:10:10::102",
			"-ipv4-service-range=10.10.0.200-10.10.0.210", "-ipv6-service-range=fd00:10:10::200-fd00:10:10::210",
			"-report-dir=" + filepath.Join(c.Dir, "details"), "-report-path=" + filepath.Join(c.Dir, "details"),
		}
		if c.Skip != "" {
			args = append(args, "-ginkgo.skip="+c.Skip)
		}
		return args
	},
	env: func(c Config) []string {
		return []string{
			"CONTAINER_RUNTIME=" + filepath.Join(c.Dir, containerRuntime), "KUBE_TEST_REPO_LIST=" + filepath.Join(c.Dir, registries),
			"OO_INSTALL_NAMESPACE=kube-system", "SPEAKER_SELECTOR=app.kubernetes.io/name=sluice", "CONTROLLER_SELECTOR=app.kubernetes.io/name=sluice",
		}
	},
	count: countGinkgo, read: readGinkgo1,
}

const (
	metalLBModule = "kube/metallb"

	metalLBFocus = `\[Top Level\] (L2|BGP|LoadBalancer class)`
	// metalLBOwn are the tests of what is MetalLB's own: the names of its metrics, its FRR and what
	// that logs; of BFD, which Sluice does not have; of what later versions of MetalLB have no
	// more, the kind AddressPool and routes of one family over sessions of the other without
	// dualStackAddressFamily; and those for clusters whose first family is IPv6, as the lab's is
	// not.
	metalLBOwn = `metrics|FRR must be deployed|FRR rejects|FRR validate|FRR running|BFD|legacy|via ipv[46]|IPV6`

	// Files of a run's folder.
	containerRuntime = "container-runtime"
	registries       = "registries.yaml"
)

// prepareMetalLB brings what the suite expects beside its program: the configuration of its
// routers, a container runtime, the registry of the images that the lab has, and a kind of MetalLB
// that later versions do not have, which the tests empty.
func prepareMetalLB(ctx context.Context, c Config) error {
	modules, err := build.Modules()
	if err != nil {
		return err
	}
	module, err := build.Required(ctx, modules, metalLBModule, "go.universe.tf/metallb")
	if err != nil {
		return err
	}
	config := filepath.Join(c.Dir, "config")
	if err := os.Remove(config); err != nil && !errors.Is(err, os.ErrNotExist) { // of a run before
		return err
	}
	if err := os.Symlink(filepath.Join(module, "e2etest", "config"), config); err != nil {
		return err
	}
	var words []string
	for _, w := range c.Runtime {
		words = append(words, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", strings.Join(words, " "))
	if err := os.WriteFile(filepath.Join(c.Dir, containerRuntime), []byte(script), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.Dir, registries), []byte("promoterE2eRegistry: registry.k8s.io/e2e-test-images\n"), 0o644); err != nil {
		return err
	}
	var out []byte
	cmd := exec.CommandContext(ctx, c.Kubectl, "--kubeconfig", c.Kubeconfig, "apply", "--server-side", "-f", filepath.Join(module, "config/crd/bases/metallb.io_addresspools.yaml"))
	err = c.NetNS.Do(func() error { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		return fmt.Errorf("define MetalLB's AddressPool: %w: %s", err, out)
	}
	return nil
}

// readGinkgo1 reads the report of Ginkgo 1, which is JUnit's.
func readGinkgo1(dir string) (*Report, error) {
	files, _ := filepath.Glob(filepath.Join(dir, "details", "junit_*.xml")) // the pattern is well-formed
	if len(files) != 1 {
		return nil, fmt.Errorf("%d reports are in %s", len(files), dir)
	}
	f, err := os.Open(files[0])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var suite struct {
		Cases []struct {
			Name    string  `xml:"name,attr"`
			Time    float64 `xml:"time,attr"`
			Failure *string `xml:"failure"`
			Skipped *struct {
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
		} `xml:"testcase"`
	}
	if err := xml.NewDecoder(bufio.NewReader(f)).Decode(&suite); err != nil {
		return nil, fmt.Errorf("read %s: %w", files[0], err)
	}
	r := &Report{}
	for _, c := range suite.Cases {
		t := Test{Title: c.Name, Took: time.Duration(c.Time * float64(time.Second)), State: Passed}
		switch {
		case c.Failure != nil:
			t.State, t.Reason = Failed, said(*c.Failure)
		case c.Skipped != nil && c.Skipped.Message == "":
			continue // another set's
		case c.Skipped != nil:
			t.State, t.Reason = Skipped, said(c.Skipped.Message)
		}
		r.Tests = append(r.Tests, t)
	}
	return r, writeJUnit(filepath.Join(dir, junitFile), r.Tests)
}

// inner is the part of an error, as Gomega shows its fields, that says what is wrong.
var inner = regexp.MustCompile(`(?m)^\s*(?:Message|s|msg): "(.*)",?$`)

// said is what the text of a failure says after the place of it.
func said(text string) string {
	if m := inner.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	_, rest, found := strings.Cut(strings.TrimSpace(text), "\n")
	if !found {
		rest = text
	}
	return firstLine(rest)
}
