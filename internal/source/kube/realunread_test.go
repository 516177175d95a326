package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

// Policies of kinds that nobody reads are named, where the user may list them.
func TestRealUnreadPolicies(t *testing.T) {
	c := realAPI(t)
	user := c.user(t, c.forward(t).url(), "unread", "ciliumnetworkpolicies.cilium.io")
	says := func(want ...string) func() bool {
		return func() bool {
			list, err := UnreadPolicies(t.Context(), Config{Kubeconfig: user}, silentLog)
			if err != nil {
				t.Fatal(err)
			}
			return len(list) == len(want) && !slices.ContainsFunc(want, func(text string) bool {
				return !slices.ContainsFunc(list, func(i model.Issue) bool { return strings.Contains(i.String(), text) })
			})
		}
	}
	waitFor(t, "nothing to be told", says())
	const policies, wide = "/apis/cilium.io/v2/ciliumnetworkpolicies", "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies"
	c.define(t, definition("cilium.io", "v2", "ciliumnetworkpolicies", "CiliumNetworkPolicy", true), policies)
	waitFor(t, "nothing to be told of a kind without objects", says())
	for i := range 2 {
		c.put(t, policies, fmt.Sprintf(`{"apiVersion":"cilium.io/v2","kind":"CiliumNetworkPolicy","metadata":{"name":"p%d","namespace":"default"}}`, i))
	}
	some := "cilium.io/v2 CiliumNetworkPolicy: default/p0, default/p1: this kind is not read; write what is needed as a NetworkPolicy; in force: nothing of it"
	waitFor(t, "the policies", says(some))
	c.define(t, definition("cilium.io", "v2", "ciliumclusterwidenetworkpolicies", "CiliumClusterwideNetworkPolicy", false), wide)
	waitFor(t, "what it may not read", says(some, "cilium.io/v2 CiliumClusterwideNetworkPolicy: this kind is not read, and whether there are any cannot be told: "))
}
