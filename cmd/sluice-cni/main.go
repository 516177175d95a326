// Command sluice-cni is a CNI plugin: a container runtime calls it for each pod, to give it its
// network and to take it back.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"sluice.dev/sluice/internal/pods/cni"
)

func main() { skel.PluginMainFuncs(cni.Funcs, version.All, "sluice-cni: "+cni.About) }
