package node

import (
	"context"

	"sluice.dev/sluice/test/lab/build"
)

// containerd is that of the second major version, with which the CRI calls the STATUS of plugins.
var containerd = build.Set{Name: "containerd", Programs: []build.Program{
	{Name: "containerd", Module: "kube/containerd", Package: "github.com/containerd/containerd/v2/cmd/containerd"},
	{Name: "containerd-shim-runc-v2", Module: "kube/containerd", Package: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
	{Name: "ctr", Module: "kube/containerd", Package: "github.com/containerd/containerd/v2/cmd/ctr"},
}}

// BuildContainerd returns a folder with containerd 2, its shim and ctr, for a Config's Containerd.
// It is as control.Build.
func BuildContainerd(ctx context.Context, say func(string)) (bin string, err error) {
	return containerd.Build(ctx, say)
}
