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
	var socket, format string
	cmd := &cobra.Command{
		Use:   "services",
		Short: "List the services that this node has",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			views, err := agent.NewClient(socket).Services(cmd.Context())
			if err != nil {
				return err
			}
			return cli.Print(cmd.OutOrStdout(), format, views, func(w io.Writer) { servicesTable(w, views) })
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
