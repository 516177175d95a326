package control

import (
	"context"
	"fmt"
	"path/filepath"

	"sluice.dev/sluice/test/lab/build"
)

// kubernetes is what a lab runs. The API server comes first: it takes longest, and the others share
// most of its packages.
var kubernetes = build.Set{Name: "kubernetes", Programs: []build.Program{
	{Name: "kube-apiserver", Module: "kube", Package: "k8s.io/kubernetes/cmd/kube-apiserver"},
	{Name: "kube-controller-manager", Module: "kube", Package: "k8s.io/kubernetes/cmd/kube-controller-manager"},
	{Name: "kube-scheduler", Module: "kube", Package: "k8s.io/kubernetes/cmd/kube-scheduler"},
	{Name: "kubelet", Module: "kube", Package: "k8s.io/kubernetes/cmd/kubelet"},
	{Name: "kube-proxy", Module: "kube", Package: "k8s.io/kubernetes/cmd/kube-proxy"},
	{Name: "kubectl", Module: "kube", Package: "k8s.io/kubernetes/cmd/kubectl"},
	{Name: "etcd", Module: "kube", Package: "go.etcd.io/etcd/server/v3"},
}}

// tools are what tests run beside it. Without its tag, promtool has the clients of all clouds,
// where Prometheus finds what to scrape.
var tools = build.Set{Name: "tools", Programs: []build.Program{
	{Name: "helm", Module: "kube/helm", Package: "helm.sh/helm/v4/cmd/helm"},
	{Name: "promtool", Module: "monitoring", Package: "github.com/prometheus/prometheus/cmd/promtool", Tags: "remove_all_sd"},
	{Name: "dashboard", Module: "monitoring", Package: "./dashboard"},
	{Name: "operator", Module: "monitoring", Package: "./operator"},
}}

// Build returns the folder with the programs of Kubernetes, below the user's cache folder. It
// builds what is missing, with the Go toolchain, from the module test/kube of the checkout that
// contains the working directory or this program. That takes some minutes, once. Outside a checkout
// it returns the last build. say, which may be nil, reports progress. Processes that build at the
// same time wait for each other.
func Build(ctx context.Context, say func(string)) (bin string, err error) {
	return kubernetes.Build(ctx, say)
}

// BuildTools is Build for what only tests run: helm; promtool, and the checks of test/monitoring.
func BuildTools(ctx context.Context, say func(string)) (bin string, err error) {
	return tools.Build(ctx, say)
}

// BuildHelm is Build for helm alone, and returns its path.
func BuildHelm(ctx context.Context, say func(string)) (path string, err error) {
	bin, err := tools.Build(ctx, say, "helm")
	return filepath.Join(bin, "helm"), err
}

// Check returns which programs a folder lacks.
func Check(bin string) error {
	if err := kubernetes.Check(bin); err != nil {
		return fmt.Errorf("find the programs of Kubernetes: %w", err)
	}
	return nil
}
