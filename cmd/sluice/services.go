package main

import (
	"cmp"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/model"
	services "sluice.dev/sluice/internal/services/compile"
)

const servicesHelp = `List the services that this node has, a line for each address and port. BACKENDS counts the endpoints
that it sends connections to, LOCAL those on this node that get what comes from outside under
externalTrafficPolicy Local. NOTE says what is wrong with the service, and why it has no endpoint.

With the name of a service (NAME alone is in the namespace of -n, or default), show its endpoints
too: CHOSEN says whether this node sends new connections there, NOTE why not. Where it differs,
"from inside" means connections to the cluster IPs, and "from outside" those that come from outside
to all other addresses. FLOWS counts the entries in this node's connection tracking from the
service's addresses to the endpoint. They are of connections that this node has translated, and
stay for a while after a connection has ended. With --accelerate sockets it counts the sockets, too,
that are connected to the endpoint, and says how many they are. Of a headless service, CHOSEN are
those that DNS gives to clients.`

func newServicesCommand() *cobra.Command {
	var f nameFilter
	cmd := newListCommand("services [NAMESPACE/NAME]", "List the services that this node has, or the endpoints of one", servicesHelp,
		func(cmd *cobra.Command, client *agent.Client) (any, error) { return listServices(cmd, client, f) },
		func(w io.Writer, answer any) {
			if one, ok := answer.(agent.ServiceReport); ok {
				serviceTable(w, one)
			} else {
				servicesTable(w, answer.([]services.ServiceView))
			}
		})
	cmd.Example = "  sluice services shop/web\n  sluice services -n shop --name db"
	f.addTo(cmd, completed(func(n agent.Names) []string { return n.Services }))
	return cmd
}

// listServices asks for the service that is named, as an agent.ServiceReport, or for all that the
// filter admits, as a []services.ServiceView.
func listServices(cmd *cobra.Command, client *agent.Client, f nameFilter) (any, error) {
	if arg := cmd.Flags().Arg(0); arg != "" {
		name, err := f.one(arg)
		if err != nil {
			return nil, err
		}
		return client.Service(cmd.Context(), name)
	}
	list, err := client.Services(cmd.Context())
	return slices.DeleteFunc(list, func(s services.ServiceView) bool { return !f.admits(s.Namespace, s.Name) }), err
}

// newListCommand makes a command that asks the agent for something and prints it.
func newListCommand[T any](use, short, long string, ask func(*cobra.Command, *agent.Client) (T, error), table func(io.Writer, T)) *cobra.Command {
	var socket, format string
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := ask(cmd, agentAt(socket, cmd.ErrOrStderr()))
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
func servicesTable(w io.Writer, views []services.ServiceView) {
	if len(views) == 0 {
		_, _ = fmt.Fprintln(w, "no services")
		return
	}
	_, _ = fmt.Fprintln(w, "NAMESPACE\tNAME\tVIA\tADDRESS\tPROTOCOL\tPORT\tBACKENDS\tLOCAL\tNOTE")
	for _, s := range views {
		notes := slices.Concat(s.Issues, s.Unserved)
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

// serviceTable writes a service with its endpoints.
func serviceTable(w io.Writer, s agent.ServiceReport) {
	servicesTable(w, []services.ServiceView{s.ServiceView})
	if s.Unproxied != "" && s.Unproxied != model.Headless {
		return
	}
	if len(s.EndpointList) == 0 {
		_, _ = fmt.Fprintln(w, "\nno endpoints")
		return
	}
	_, _ = fmt.Fprintln(w, "\nPROTOCOL\tPORT\tENDPOINT\tPOD\tNODE\tZONE\tSTATE\tCHOSEN\tFLOWS\tNOTE")
	for _, e := range s.EndpointList {
		pod, flows := "-", "-"
		if e.Pod != nil {
			pod = e.Pod.Name.String()
		}
		if e.Flows != nil {
			flows = strconv.Itoa(*e.Flows)
		}
		if e.AtSockets > 0 {
			flows += fmt.Sprintf(" (%d at sockets)", e.AtSockets)
		}
		chosen, note := choices(e.EndpointView)
		_ = printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Protocol, cmp.Or(e.PortName, "-"), e.Address,
			pod, cmp.Or(e.Node, "-"), cmp.Or(e.Zone, "-"), condition(e.EndpointView), chosen, flows, note)
	}
	if s.NoFlows != "" {
		_ = printf(w, "\nflows are not counted: %s\n", s.NoFlows)
	}
}

// condition is that of an endpoint, by its EndpointSlice.
func condition(e services.EndpointView) string {
	switch {
	case e.Ready && e.Terminating:
		return "ready, terminating"
	case e.Ready:
		return "ready"
	case e.Serving && e.Terminating:
		return "serving, terminating"
	case e.Serving:
		return "serving, not ready"
	case e.Terminating:
		return "terminating"
	}
	return "not ready"
}

// choices say for which connections an endpoint is chosen, and why not for the others.
func choices(e services.EndpointView) (chosen, note string) {
	answer := map[bool]string{true: "yes", false: "no"}
	switch in, out := e.Inside, e.Outside; {
	case out == nil || *out == in:
		return answer[in.Chosen], in.WhyNot
	case in.Chosen:
		return "from inside", "from outside: " + out.WhyNot
	case out.Chosen:
		return "from outside", "from inside: " + in.WhyNot
	default:
		return answer[false], "from inside: " + in.WhyNot + "; from outside: " + out.WhyNot
	}
}
