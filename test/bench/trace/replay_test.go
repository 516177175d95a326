package trace

import "testing"

// TestNumbersAreUsedAgain: two packets, one after the other, have the same number.
func TestNumbersAreUsedAgain(t *testing.T) {
	rules := map[Chain][]uint64{{"t", "first"}: {1, 2}, {"t", "second"}: {3}}
	packet := []event{
		{packet: 7, chain: Chain{"t", "first"}, rule: 1, verdict: verdictContinue},
		{packet: 7, chain: Chain{"t", "first"}, verdict: verdictContinue},
		{packet: 7, chain: Chain{"t", "first"}, policy: true},
		{packet: 7, chain: Chain{"t", "second"}, rule: 3, verdict: 1},
	}
	met, err := replay(rules, append(packet, packet...))
	if err != nil {
		t.Fatal(err)
	}
	if len(met) != 2 || met[0].Sum() != 3 || met[1].Sum() != 3 {
		t.Errorf("met %v, want two packets with three rules each", met)
	}
}

// TestLostEventsAreNoticed: events that do not fit together are an error, not a wrong count.
func TestLostEventsAreNoticed(t *testing.T) {
	rules := map[Chain][]uint64{{"t", "base"}: {1, 2}, {"t", "other"}: {3}}
	for name, events := range map[string][]event{
		"a jump is missing":     {{chain: Chain{"t", "base"}, rule: 1, verdict: verdictContinue}, {chain: Chain{"t", "other"}, rule: 3}},
		"a rule is not there":   {{chain: Chain{"t", "base"}, rule: 9, verdict: verdictContinue}},
		"a rule comes too late": {{chain: Chain{"t", "base"}, rule: 2, verdict: verdictContinue}, {chain: Chain{"t", "base"}, rule: 1}},
	} {
		if met, err := replay(rules, events); err == nil {
			t.Errorf("%s: no error, but %v", name, met)
		}
	}
}
