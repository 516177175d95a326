package main

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/compile"
)

func newServicesCommand() *cobra.Command {
	return newListCommand("services", "List the services that this node has", "",
		func(cmd *cobra.Command, client *agent.Client) ([]compile.ServiceView, error) {
			return client.Services(cmd.Context())
		}, servicesTable)
}

// newListCommand makes a command that asks the agent for something and prints it.
func newListCommand[T any](use, short, long string, ask func(*cobra.Command, *agent.Client) (T, error), table func(io.Writer, T)) *cobra.Command {
	var socket, format string
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := ask(cmd, agent.NewClient(socket))
			if err != nil {
				return err
			}
			return cli.Print(cmd.OutOrStdout(), format, answer, func(w io.Writer) { table(w, answer) })
		},
	}
	socketFlag(cmd, &socket)
	cli.OutputFlag(cmd, &format)
	return cmd
}

// servicesTable writes a line for each frontend. A service without one has a line that says why.
func servicesTable(w io.Writer, views []compile.ServiceView) {
	if len(views) == 0 {
		_, _ = fmt.Fprintln(w, "no services")
		return
	}
	_, _ = fmt.Fprintln(w, "NAMESPACE\tNAME\tVIA\tADDRESS\tPROTOCOL\tPORT\tBACKENDS\tLOCAL\tNOTE")
	for _, s := range views {
		notes := s.Issues
		if s.Unproxied != "" {
			notes = append([]string{"not programmed: " + s.Unproxied}, notes...)
		}
		if len(s.Frontends) == 0 {
			_ = printf(w, "%s\t%s\t-\t-\t-\t-\t-\t-\t%s\n", s.Namespace, s.Name, strings.Join(notes, "; "))
		}
		for i, f := range s.Frontends {
			note := ""
			if i == 0 {
				note = strings.Join(notes, "; ")
			}
			if f.HeldBy != "" && !strings.Contains(note, f.HeldBy) {
				note = strings.TrimPrefix(note+"; held by "+f.HeldBy, "; ")
			}
			local := "-"
			if f.Local != nil {
				local = strconv.Itoa(*f.Local)
			}
			_ = printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", s.Namespace, s.Name, f.Kind,
				net.JoinHostPort(f.Address, strconv.Itoa(int(f.Port))), f.Protocol, f.PortName, f.Backends, local, note)
		}
	}
}
