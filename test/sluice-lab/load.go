package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func newLabLoadCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "load FILE.tar...",
		Short: "Give a lab with Kubernetes your own container images",
		Long: `Give a lab with Kubernetes container images: archives as 'docker save', 'podman save'
and 'ctr images export' write them. Nodes pull them when a pod wants them. Pods that are
made from then on run them; a stand-in that runs already goes on until its pod is made
anew (kubectl rollout restart).`,
		Example: `  docker save -o app.tar shop/web:1 && sluice lab load app.tar`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			l, err := openLab(name)
			if err != nil {
				return err
			}
			for _, file := range files {
				images, err := l.Load(file)
				if err != nil {
					return err
				}
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "lab %s has %s\n", l.Name, strings.Join(images, ", "))
			}
			return nil
		},
	}
	labNameFlag(cmd, &name, defaultLab)
	return cmd
}
