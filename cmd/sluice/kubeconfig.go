package main

import (
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/source/kube"
)

// kubeFlags say which Kubernetes API the objects are read from.
type kubeFlags struct {
	kubeconfig string
	inCluster  bool
}

func (f *kubeFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` that says which Kubernetes API to read and watch, in place of a folder, and with what credentials")
	fl.BoolVar(&f.inCluster, "in-cluster", false, "read and watch the API of the cluster that this pod runs in, with the pod's own credentials")
	_ = cmd.MarkFlagFilename("kubeconfig")
}

// named tells whether the flags name an API.
func (f *kubeFlags) named() bool { return f.kubeconfig != "" || f.inCluster }

// open makes a source of the API. Policies says whether they are carried out.
func (f *kubeFlags) open(policies bool, sink source.Sink, log *slog.Logger) source.Source {
	kube.TakeLogs(log)
	return kube.New(f.api(policies), sink, log)
}

// recorder makes what tells the API of faults.
func (f *kubeFlags) recorder(node string, log *slog.Logger) *kube.Recorder {
	return kube.NewRecorder(f.api(false), node, log)
}

func (f *kubeFlags) api(policies bool) kube.Config {
	return kube.Config{Kubeconfig: f.kubeconfig, Policies: policies, UserAgent: "sluice/" + cli.Version()}
}

var (
	errNoObjects   = cli.Usage(errors.New("say with --manifests which folder holds the objects, or with --kubeconfig or --in-cluster which Kubernetes API does"))
	errManyObjects = cli.Usage(errors.New("--manifests, --kubeconfig and --in-cluster each say where the objects are: leave out all but one"))
)

// checkObjects tells what is wrong with where the flags say that the objects are.
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
