package xdp

import (
	"net/netip"
	"slices"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// TestCertain reads off rules what they deny for sure.
func TestCertain(t *testing.T) {
	t.Parallel()
	of := map[state.SetID]*state.List{}
	for id := range state.SetID(4) {
		of[id+1] = &state.List{Prefixes: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(id + 1)}), 32)}}
	}
	from := func(action model.Action, lists ...state.SetID) state.Rule {
		r := state.Rule{Name: "ingress", Action: action}
		term := state.Term{Groups: []state.SetID{99}}
		for _, id := range lists {
			term.Lists = append(term.Lists, state.ListRef{ID: id})
		}
		r.Source.In = []state.Term{term}
		return r
	}
	with := func(r state.Rule, f func(*state.Rule)) state.Rule { f(&r); return r }
	for what, tt := range map[string]struct {
		rules []state.Rule
		want  []byte // the last bytes of what is denied
		all   bool
	}{
		"none":              {nil, nil, true},
		"one":               {[]state.Rule{from(model.Deny, 1)}, []byte{1}, true},
		"lists of one rule": {[]state.Rule{from(model.Deny, 1, 2)}, []byte{1, 2}, true},
		"two":               {[]state.Rule{from(model.Deny, 1), from(model.Deny, 2)}, []byte{1, 2}, true},
		"allowed between":   {[]state.Rule{from(model.Deny, 1), from(model.Allow, 3), from(model.Deny, 2)}, []byte{1}, false},
		"passed on":         {[]state.Rule{from(model.Pass, 3), from(model.Deny, 2)}, nil, false},
		"written down":      {[]state.Rule{from(model.Log, 1), from(model.Deny, 1)}, nil, false},
		"all":               {[]state.Rule{{Action: model.Deny}, from(model.Deny, 1)}, []byte{1}, true},
		"their family":      {[]state.Rule{with(from(model.Deny, 1), func(r *state.Rule) { r.Family = 4 })}, []byte{1}, true},
		"another family":    {[]state.Rule{with(from(model.Deny, 1), func(r *state.Rule) { r.Family = 6 })}, nil, true},
		"a protocol":        {[]state.Rule{with(from(model.Deny, 1), func(r *state.Rule) { r.Protocol = 6 }), from(model.Deny, 2)}, []byte{2}, true},
		"ports":             {[]state.Rule{with(from(model.Deny, 1), func(r *state.Rule) { r.Destination.Ports = &state.Ports{} })}, nil, true},
		"exceptions":        {[]state.Rule{with(from(model.Deny, 1), func(r *state.Rule) { r.Source.NotIn = r.Source.In })}, nil, true},
		"in both":           {[]state.Rule{with(from(model.Deny, 1), func(r *state.Rule) { r.Source.In = append(r.Source.In, from(model.Deny, 2).Source.In...) })}, nil, true},
		"destinations":      {[]state.Rule{with(from(model.Deny, 1), func(r *state.Rule) { r.Destination.In = r.Source.In })}, nil, true},
	} {
		nets, all := (&policies{uses: map[state.SetID]struct{}{}}).certain(tt.rules, of)
		var got []byte
		for _, n := range nets {
			got = append(got, n.Addr().As4()[3])
		}
		if !slices.Equal(got, tt.want) || all != tt.all {
			t.Errorf("%s: %v, %v; want %v, %v", what, got, all, tt.want, tt.all)
		}
	}
}
