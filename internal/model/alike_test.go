package model

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Faults of many Nodes that are alike except for the Node and its addresses are one line, whatever
// they are about; all others are a line each.
func TestIssueLines(t *testing.T) {
	node := func(name, reason string) Issue { return Ref{Kind: NodeKind, Name: Name{Name: name}}.Issue(reason) }
	var issues []Issue
	for i := range 17 {
		name := fmt.Sprintf("n%02d", i)
		issues = append(issues,
			node(name, fmt.Sprintf("it is not heard through sluice.vxlan: its tunnel's address 10.1.%d.0 does not answer, and neither does 192.0.2.%d: have", i, i)),
			node(name, fmt.Sprintf("it is not heard through sluice.vxlan: its tunnel's address fd00:1:%d:: does not answer, and neither does fd00::%d: have", i, i)),
			node(name, fmt.Sprintf("its pod CIDR 10.1.%d.0/24 is bad (192.0.2.%d), by 02:00:00:00:00:%02x", i, i, i)),
			Ref{Kind: ServiceKind, Name: Name{Namespace: "shop", Name: name}}.Issue("it has 10.0.0.1"),
		)
	}
	for _, name := range []string{"x", "y", "z"} {
		issues = append(issues, node(name, "it has no address"))
	}
	slices.SortFunc(issues, Issue.Compare)
	lines := IssueLines(issues)
	var nodes []string
	for _, line := range lines {
		if strings.HasPrefix(line, "Node") {
			nodes = append(nodes, line)
		}
	}
	const alike = "Node n00 and 16 alike (n01, n02, n03 and 13 more): "
	if want := []string{
		alike + "it is not heard through sluice.vxlan: its tunnel's address 10.1.0.0 does not answer, and neither does 192.0.2.0: have",
		alike + "its pod CIDR 10.1.0.0/24 is bad (192.0.2.0), by 02:00:00:00:00:00",
		"Node x: it has no address", "Node y: it has no address", "Node z: it has no address",
	}; !slices.Equal(nodes, want) || len(lines) != len(want)+17 {
		t.Errorf("%d lines, of nodes:\n%s", len(lines), strings.Join(nodes, "\n"))
	}
}
