package demo

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"

	"sluice.dev/sluice/deploy"
	"sluice.dev/sluice/test/lab/build"
	"sluice.dev/sluice/test/lab/image"
)

// Migration is what Migrate's lab has to begin with.
type Migration struct {
	Manifests []string // files to apply
	Images    []string // archives: of MetalLB, and of Sluice for the chart
	CNI       string   // the configuration of the former pod network

	chart     string // its folder
	metalLB   string // file of its manifests
	addresses string // file of Services, and the pools of their addresses
	l2        string // file of L2Advertisements
}

// metalLB are the programs of its manifests.
var metalLB = build.Set{Name: "metallb-programs", Programs: []build.Program{
	{Name: "controller", Module: "kube/metallb-programs", Package: "go.universe.tf/metallb/controller"},
	{Name: "speaker", Module: "kube/metallb-programs", Package: "go.universe.tf/metallb/speaker"},
}}

// BuildMetalLB builds MetalLB, as control.Build does Kubernetes.
func BuildMetalLB(ctx context.Context, say func(string)) (bin string, err error) {
	return metalLB.Build(ctx, say)
}

// metalLBManifests is the file of the manifests that MetalLB has for its users, of the same
// version.
func metalLBManifests(ctx context.Context) (string, error) {
	src, err := build.Modules()
	if err != nil {
		return "", err
	}
	module, err := build.Required(ctx, src, metalLB.Programs[0].Module, "go.universe.tf/metallb")
	if err != nil {
		return "", fmt.Errorf("find MetalLB's manifests: %w", err)
	}
	return filepath.Join(module, "config/manifests/metallb-native.yaml"), nil
}

//go:embed migrate.yaml
var migrateApp []byte

//go:embed addresses.yaml
var addressesYAML []byte

//go:embed l2.yaml
var l2YAML []byte

//go:embed kube-proxy.yaml
var kubeProxyYAML []byte

//go:embed former.conflist
var formerNetwork []byte

// NewMigration writes what Migrate's lab needs into a folder, and builds what is missing. sluice is
// the program, beside which are the others of the agents' image. say reports progress.
func NewMigration(ctx context.Context, dir, sluice string, say func(string)) (*Migration, error) {
	bin, err := BuildMetalLB(ctx, say)
	if err != nil {
		return nil, err
	}
	manifests, err := metalLBManifests(ctx)
	if err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	m := &Migration{
		Manifests: []string{in("app.yaml"), in("kube-proxy.yaml")}, CNI: in("former.conflist"),
		chart: in("helm/sluice"), addresses: in("addresses.yaml"), l2: in("l2.yaml"), metalLB: manifests,
	}
	for name, text := range map[string][]byte{"app.yaml": migrateApp, "kube-proxy.yaml": kubeProxyYAML, "former.conflist": formerNetwork, "addresses.yaml": addressesYAML, "l2.yaml": l2YAML} {
		if err := os.WriteFile(in(name), text, 0o644); err != nil {
			return nil, err
		}
	}
	if err := os.CopyFS(dir, deploy.Chart); err != nil {
		return nil, err
	}
	for _, i := range []struct {
		name, entrypoint string
		programs         map[string]string
	}{
		{"ghcr.io/sluice-dev/sluice:latest", image.AgentEntrypoint, image.AgentPrograms(sluice)}, // which is that of any tag
		{"quay.io/metallb/controller:latest", "/controller", map[string]string{"controller": filepath.Join(bin, "controller")}},
		{"quay.io/metallb/speaker:latest", "/speaker", map[string]string{"speaker": filepath.Join(bin, "speaker")}},
	} {
		archive := in(fmt.Sprintf("%s.tar", filepath.Base(i.entrypoint)))
		if err := image.WriteOwn(archive, i.name, i.entrypoint, i.programs); err != nil {
			return nil, err
		}
		m.Images = append(m.Images, archive)
	}
	return m, nil
}
