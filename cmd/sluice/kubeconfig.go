package main

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/source/kube"
)

// kubeFlags choose the Kubernetes API from which the objects are read.
type kubeFlags struct {
	kubeconfig string
	inCluster  bool
}

func (f *kubeFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `file` of the Kubernetes API to read and watch, in place of a folder")
	fl.BoolVar(&f.inCluster, "in-cluster", false, "read and watch the API of this pod's cluster, with the pod's own credentials")
	_ = cmd.MarkFlagFilename("kubeconfig")
}

// named reports whether the flags name an API.
func (f *kubeFlags) named() bool { return f.kubeconfig != "" || f.inCluster }

// open makes a source of the API for what is compiled, in which refused policies may be ignored.
func (f *kubeFlags) open(c *compile.Config, ignoreRefused bool, sink source.Sink, log *slog.Logger) source.Source {
	kube.TakeLogs(log)
	api := f.api(c.Policy)
	api.IgnoreRefused = ignoreRefused
	api.Fabric, api.Addresses, api.BGP = c.Fabric, c.Addresses, c.BGP
	return kube.New(api, sink, log)
}

func (f *kubeFlags) api(policies bool) kube.Config {
	return kube.Config{Kubeconfig: f.kubeconfig, Policies: policies, UserAgent: "sluice/" + cli.Version()}
}

var (
	errNoObjects   = cli.Usage(errors.New("name the source of the objects: a folder with --manifests, or a Kubernetes API with --kubeconfig or --in-cluster"))
	errManyObjects = cli.Usage(errors.New("--manifests, --kubeconfig and --in-cluster each name a source of the objects: leave out all but one"))
)

// checkObjects returns an error if the flags name no source of objects, or several.
func (f *nodeFlags) checkObjects() error {
	named := 0
	for _, given := range []bool{f.manifests != "", f.kubeconfig != "", f.inCluster} {
		if given {
			named++
		}
	}
	switch named {
	case 0:
		return errNoObjects
	case 1:
		return nil
	}
	return errManyObjects
}
