package preflight

import "testing"

func TestSavedEnds(t *testing.T) {
	for rules, want := range map[string]bool{
		":FORWARD ACCEPT [0:0]": false,
		":FORWARD DROP [0:0]":   true,
		":FORWARD ACCEPT [0:0]\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited":                                             true,
		":FORWARD ACCEPT [0:0]\n-A FORWARD -s 192.0.2.0/24 -j DROP":                                                                  false,
		":FORWARD DROP [0:0]\n-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT":                                                      false,
		":FORWARD DROP [0:0]\n-A FORWARD -j KUBE-FORWARD":                                                                            true,
		":FORWARD DROP [0:0]\n-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD\n-A FORWARD -j ACCEPT": false,
		":INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]":                                                                                   false,
	} {
		if got := SavedEnds("*filter\n"+rules+"\nCOMMIT\n", "FORWARD"); got != want {
			t.Errorf("%v of\n%s", got, rules)
		}
	}
}
