package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/test/lab/node"
)

func newLabNodeCommand() *cobra.Command {
	var (
		file   string
		inside bool
	)
	cmd := &cobra.Command{
		Use:    "node",
		Short:  "Run a node: containerd and the kubelet, in namespaces of their own",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := node.Load(file)
			if err != nil {
				return err
			}
			if inside {
				return node.Inside(c)
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			return node.Run(c, exe, "lab", "node", "--config", file, "--inside")
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "`file` of the node's configuration")
	cmd.Flags().BoolVar(&inside, "inside", false, "be the first process of the node's namespaces")
	_ = cmd.MarkFlagRequired("config")
	return cmd
}
