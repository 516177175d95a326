package verdict

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// Reason says in a few words what decided.
func (s Step) Reason() string {
	switch {
	case s.Rule != "":
		return fmt.Sprintf("%v %s, tier %s", s.Policy, s.Rule, s.Tier)
	case len(s.Isolating) > 0:
		return fmt.Sprintf("isolated by %s, tier %s, and no rule allows it", model.Join(s.Isolating, ", "), s.Tier)
	case s.Text != "":
		return s.Text
	case s.Tier != "":
		return "no rule of tier " + s.Tier + " allows it"
	}
	return string(s.Drop)
}

// Subject names what the step belongs to: a pod "shop/web", "shop/db (ClusterIP)" or "node-a
// (eth0)".
func (s Step) Subject() string {
	text := s.subject()
	if s.At != "" {
		text += " (" + s.At + ")"
	}
	return text
}

// subject is Subject without the place.
func (s Step) subject() string {
	switch s.Of.Kind {
	case model.PodKind, model.ServiceKind, model.HostEndpointKind:
		return s.Of.Name.String()
	}
	return s.Of.String()
}

// Summary is the answer in few words: "allowed", "denied", "2 of 3 backends are denied"; "ways",
// where they are also of several nodes by which it may come in.
func (a Answer) Summary() string {
	n := map[Outcome]int{}
	for _, p := range a.Paths {
		n[p.Outcome]++
	}
	if n[a.Outcome] == len(a.Paths) || n[a.Outcome] == 0 {
		return a.Outcome.String()
	}
	what := "backend"
	if a.entriesDiffer() {
		what = "way"
	}
	text := fmt.Sprintf("%d of %s %s", n[a.Outcome], model.Count(len(a.Paths), what), isAre(n[a.Outcome], a.Outcome))
	if a.Outcome == Denied && n[Unknown] > 0 {
		text += fmt.Sprintf(", %d %s", n[Unknown], isAre(n[Unknown], Unknown))
	}
	return text
}

func isAre(n int, o Outcome) string {
	if n == 1 {
		return "is " + o.String()
	}
	return "are " + o.String()
}

func (a Answer) headline() string {
	return fmt.Sprintf("%s: %v -> %v, %s", a.Summary(), a.From, a.To, a.what())
}

// what names protocol and port: "TCP 5432", "ICMP 8".
func (a Answer) what() string {
	if a.To.Port == 0 {
		return a.Protocol
	}
	return fmt.Sprintf("%s %d", a.Protocol, a.To.Port)
}

// common is how many steps all paths begin with.
func (a Answer) common() int {
	first := a.Paths[0].Steps
	n := len(first)
	for _, p := range a.Paths[1:] {
		n = min(n, len(p.Steps))
		for i := range n {
			if p.Steps[i].line(true) != first[i].line(true) {
				n = i
				break
			}
		}
	}
	return n
}

// entry is the node that the path meets first.
func (p Path) entry() string {
	if len(p.Steps) == 0 {
		return ""
	}
	return p.Steps[0].Node
}

// entriesDiffer reports whether a connection may come in by several nodes.
func (a Answer) entriesDiffer() bool {
	return slices.ContainsFunc(a.Paths, func(p Path) bool { return p.entry() != a.Paths[0].entry() })
}

// String says "ingress[0] of NetworkPolicy shop/db: it wants …".
func (n Near) String() string {
	return fmt.Sprintf("%s of %v %s", n.Rule, n.Policy, strings.Join(n.Lacks, ", and "))
}

// line is the step in cells for people, without its reason if that is said elsewhere.
func (s Step) line(reason bool) string {
	cells := []string{string(s.Stage), s.Outcome.String()}
	if subject := s.Subject(); subject != "" || reason {
		cells = append(cells, model.Printable(subject))
	}
	if reason {
		cells = append(cells, model.Printable(s.Reason()))
	}
	if s.Node != "" {
		cells = slices.Insert(cells, 0, model.Printable(s.Node))
	}
	return strings.Join(cells, "\t")
}

// String is the address, with port and name: "10.1.0.5:80 (pod shop/web)".
func (p Party) String() string {
	text := p.Address.String()
	if p.Port != 0 {
		text = netip.AddrPortFrom(p.Address, p.Port).String()
	}
	return text + named(p.Object)
}

// Short is the name alone, with the port: "shop/web-1:80", "node node-a:22"; the address where
// nothing known has it.
func (p Party) Short() string {
	name, port := p.Object.Name.String(), strconv.Itoa(int(p.Port))
	switch {
	case p.Object == (model.Ref{}) && p.Port == 0:
		return p.Address.String()
	case p.Object == (model.Ref{}):
		return netip.AddrPortFrom(p.Address, p.Port).String()
	case p.Object.Kind != model.PodKind:
		name = strings.ToLower(string(p.Object.Kind)) + " " + name
	}
	return strings.TrimSuffix(name+":"+port, ":0")
}

// name is that of the object, or else the address.
func (p Party) name() string {
	if p.Object == (model.Ref{}) {
		return p.Address.String()
	}
	return p.Object.Name.String()
}

// label names an address for people.
func (c *Cluster) label(a netip.Addr) string { return a.String() + named(c.Object(a)) }

func named(r model.Ref) string {
	if r == (model.Ref{}) {
		return ""
	}
	return " (" + strings.ToLower(string(r.Kind)) + " " + r.Name.String() + ")"
}
