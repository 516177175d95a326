package trace

import "testing"

// TestNumbersAreUsedAgain: two packets, one after the other, have the same number.
func TestNumbersAreUsedAgain(t *testing.T) {
	rules := map[string][]uint64{"first": {1, 2}, "second": {3}}
	packet := []event{
		{packet: 7, table: "t", chain: "first", rule: 1, verdict: verdictContinue},
		{packet: 7, table: "t", chain: "first", verdict: verdictContinue},
		{packet: 7, table: "t", chain: "first", policy: true},
		{packet: 7, table: "t", chain: "second", rule: 3, verdict: 1},
	}
	met, err := replay(rules, "t", append(packet, packet...))
	if err != nil {
		t.Fatal(err)
	}
	if len(met) != 2 || met[0].Sum() != 3 || met[1].Sum() != 3 {
		t.Errorf("met %v, want two packets with three rules each", met)
	}
}

// TestLostEventsAreNoticed: events that do not fit together are an error, not a wrong count.
func TestLostEventsAreNoticed(t *testing.T) {
	rules := map[string][]uint64{"base": {1, 2}, "other": {3}}
	for name, events := range map[string][]event{
		"a jump is missing":     {{table: "t", chain: "base", rule: 1, verdict: verdictContinue}, {table: "t", chain: "other", rule: 3}},
		"a rule is not there":   {{table: "t", chain: "base", rule: 9, verdict: verdictContinue}},
		"a rule comes too late": {{table: "t", chain: "base", rule: 2, verdict: verdictContinue}, {table: "t", chain: "base", rule: 1}},
	} {
		if met, err := replay(rules, "t", events); err == nil {
			t.Errorf("%s: no error, but %v", name, met)
		}
	}
}
