package main

import (
	"os"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/compile"
	services "sluice.dev/sluice/internal/services/compile"
)

// A Node object's name is in lower case, whatever the host's name: kubelet and kube-proxy do the
// same.
func TestNodeName(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{"node1": "node1", "Node1": "node1", " NODE-1.Example\n": "node-1.example", "": strings.ToLower(host)} {
		c, err := (&nodeFlags{compiler: compile.Config{Config: services.Config{Node: given}}}).config()
		if err != nil || c.Node != want {
			t.Errorf("--node %q: %q, %v, want %q", given, c.Node, err, want)
		}
	}
}
