package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
)

// nameFilter is what a list is to show.
type nameFilter struct{ namespace, part string }

// addTo has a command take the filter's flags, and one name, which is completed by names.
func (f *nameFilter) addTo(cmd *cobra.Command, names cobra.CompletionFunc) {
	cmd.Args, cmd.ValidArgsFunction = cobra.MaximumNArgs(1), names
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "only those in this namespace")
	cmd.Flags().StringVar(&f.part, "name", "", "only those whose name contains this")
	_ = cmd.RegisterFlagCompletionFunc("namespace", completedNamespaces)
}

func (f nameFilter) admits(namespace, name string) bool {
	return (f.namespace == "" || f.namespace == namespace) && strings.Contains(name, f.part)
}

// one returns the name that an argument means. An error says that flags contradict it.
func (f nameFilter) one(arg string) (model.Name, error) {
	namespace, name, whole := strings.Cut(arg, "/")
	switch {
	case f.part != "":
		return model.Name{}, cli.Usage(fmt.Errorf("--name is for lists: leave out --name or %s", arg))
	case whole && (namespace == "" || name == "" || strings.Contains(name, "/")):
		return model.Name{}, cli.Usage(fmt.Errorf("%s is no name: write NAMESPACE/NAME", arg))
	case !whole:
		return model.Name{Namespace: cmp.Or(f.namespace, "default"), Name: arg}, nil
	case f.namespace != "" && f.namespace != namespace:
		return model.Name{}, cli.Usage(fmt.Errorf("%s is not in the namespace %s: leave out -n", arg, f.namespace))
	}
	return model.Name{Namespace: namespace, Name: name}, nil
}
