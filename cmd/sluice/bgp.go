package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/bgp"
	"sluice.dev/sluice/internal/model"
)

const bgpHelp = `Show how it stands with BGP: the peers, since when a session is established or is not, and why
not, how many routes each peer announces and how many of them pass the filters (IN), how many this
node announces to it (OUT), and what is wrong with the objects that say all this. --routes lists the
routes, too.`

func newBGPCommand() *cobra.Command {
	var routes bool
	cmd := newListCommand("bgp", "Show BGP peers and routes", bgpHelp,
		func(cmd *cobra.Command, client *agent.Client) (agent.BGPReport, error) {
			return client.BGP(cmd.Context())
		}, func(w io.Writer, r agent.BGPReport) { bgpTable(w, r, routes) })
	cmd.Flags().BoolVar(&routes, "routes", false, "list the routes that are announced and learned")
	return cmd
}

func bgpTable(w io.Writer, r agent.BGPReport, routes bool) {
	if r.AS == 0 {
		_ = printf(w, "%s speaks no BGP yet\n", r.Node)
	} else {
		_ = printf(w, "%s speaks BGP as AS %d, router ID %s\n", r.Node, r.AS, r.RouterID)
	}
	if len(r.Peers) > 0 {
		_, _ = fmt.Fprintln(w, "\nPEER\tADDRESS\tAS\tSTATE\tSINCE\tIN\tOUT\tWHY")
	} else {
		_, _ = fmt.Fprintln(w, "no peers: no other node is in a mesh with it, and no BGPPeer selects it")
	}
	for _, p := range r.Peers {
		s := r.Sessions[p.Name]
		since, in := "-", fmt.Sprint(s.Accepted)
		if !s.Since.IsZero() {
			since = span(time.Since(s.Since))
		}
		if s.Received != s.Accepted {
			in = fmt.Sprintf("%d of %d", s.Accepted, s.Received)
		}
		_ = printf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%d\t%s\n", p.Name, p.Address, p.AS, s.State, since, in, s.Advertised, cmp.Or(s.Why, "-"))
	}
	_ = printf(w, "\n%s announced, %s learned\n", model.Count(len(r.Routes), "route"), model.Count(len(r.Learned), "route"))
	if routes {
		bgpRoutes(w, r)
	}
	if !r.Settled && len(r.Peers) > 0 {
		_, _ = fmt.Fprintln(w, "\nNot all peers have told their routes yet: what an earlier agent learned stays until then.")
	}
	if r.Error != "" {
		_ = printf(w, "\nPROBLEM: %s\n", agent.BGPProblem(r.Error))
	}
	if len(r.Issues) > 0 {
		_ = printf(w, "\n%s:\n", model.Count(len(r.Issues), "fault"))
	}
	for _, i := range model.IssueLines(r.Issues) {
		_ = printf(w, "%s\n", i)
	}
}

// bgpRoutes lists the routes.
func bgpRoutes(w io.Writer, r agent.BGPReport) {
	if len(r.Routes) > 0 {
		_, _ = fmt.Fprintln(w, "\nANNOUNCED\tTO\tCOMMUNITIES\tLOCAL PREFERENCE")
	}
	for _, own := range r.Routes {
		for _, a := range own.Announcements {
			pref := "-"
			if a.LocalPref > 0 {
				pref = fmt.Sprint(a.LocalPref)
			}
			_ = printf(w, "%s\t%s\t%s\t%s\n", own.Prefix, orElse(a.Peers, "all"), orElse(a.Communities, "-"), pref)
		}
	}
	if len(r.Learned) > 0 {
		_, _ = fmt.Fprintln(w, "\nLEARNED\tNEXT HOP\tFROM\tAS PATH\tCOMMUNITIES\tNOTE")
	}
	for _, l := range r.Learned {
		var notes []string
		if l.NotFollowed != "" {
			notes = append(notes, "not followed: "+l.NotFollowed)
		}
		if l.Stale {
			notes = append(notes, "the peer is away; kept for its graceful restart")
		}
		_ = printf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", l.Prefix, l.NextHop, l.Peer, cmp.Or(asPath(l.Learned), "-"), orElse(l.Communities, "-"), cmp.Or(strings.Join(notes, "; "), "-"))
	}
}

func orElse(list []string, none string) string {
	if len(list) == 0 {
		return none
	}
	return strings.Join(list, ",")
}

// asPath is the path as routers print it.
func asPath(l bgp.Learned) string {
	path := make([]string, 0, len(l.Path))
	for _, as := range l.Path {
		path = append(path, fmt.Sprint(as))
	}
	return strings.Join(path, " ")
}

// passwordsIn looks passwords up in a folder, as --bgp-passwords says. An empty one is none.
func passwordsIn(folder string) func(model.SecretRef) (string, bool) {
	return func(ref model.SecretRef) (string, bool) {
		root, err := os.OpenRoot(folder)
		if err != nil {
			return "", false
		}
		defer func() { _ = root.Close() }()
		text, err := root.ReadFile(filepath.Join(ref.Name, ref.Key))
		password := strings.TrimSpace(string(text))
		return password, err == nil && password != ""
	}
}
