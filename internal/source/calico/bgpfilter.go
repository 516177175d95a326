package calico

import (
	"encoding/json"
	"fmt"

	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

type bgpFilterSpec struct {
	ExportV4 []bgpFilterRule `json:"exportV4"`
	ImportV4 []bgpFilterRule `json:"importV4"`
	ExportV6 []bgpFilterRule `json:"exportV6"`
	ImportV6 []bgpFilterRule `json:"importV6"`
}

type bgpFilterRule struct {
	Action        string `json:"action"`
	MatchOperator string `json:"matchOperator"`
	CIDR          string `json:"cidr"`
	PrefixLength  *struct {
		Min *int `json:"min"`
		Max *int `json:"max"`
	} `json:"prefixLength"`
	Source   string `json:"source"`
	PeerType string `json:"peerType"`

	// Nobody carries these out.
	Interface    string          `json:"interface"`
	Communities  json.RawMessage `json:"communities"`
	ASPathPrefix json.RawMessage `json:"asPathPrefix"`
	Priority     json.RawMessage `json:"priority"`
	Operations   json.RawMessage `json:"operations"`
}

func bgpFilter(data []byte, f *fault.List) *model.BGPFilter {
	m, spec := open[bgpFilterSpec](data, f)
	b := &model.BGPFilter{Name: m.Name}
	for _, part := range []struct {
		name  string
		rules []bgpFilterRule
		is6   bool
		to    *[]model.BGPFilterRule
	}{
		{"exportV4", spec.ExportV4, false, &b.Export}, {"exportV6", spec.ExportV6, true, &b.Export},
		{"importV4", spec.ImportV4, false, &b.Import}, {"importV6", spec.ImportV6, true, &b.Import},
	} {
		for i := range part.rules {
			*part.to = append(*part.to, part.rules[i].translate(fmt.Sprintf("spec.%s[%d]", part.name, i), part.is6, f))
		}
	}
	return b
}

func (r *bgpFilterRule) translate(field string, is6 bool, f *fault.List) model.BGPFilterRule {
	rule := model.BGPFilterRule{IPv6: is6, Learned: r.Source == "RemotePeers", PeerType: r.PeerType}
	switch r.Action {
	case "Accept":
		rule.Accept = true
	case "Reject":
	default:
		f.Reject(field+".action", "%q is neither Accept nor Reject", r.Action)
	}
	if r.Source != "" && r.Source != "RemotePeers" {
		f.Reject(field+".source", "%q is not RemotePeers", r.Source)
	}
	if r.PeerType != "" && r.PeerType != "eBGP" && r.PeerType != "iBGP" {
		f.Reject(field+".peerType", "%q is neither eBGP nor iBGP", r.PeerType)
	}
	r.match(field, &rule, f)
	for _, other := range []struct {
		name  string
		given bool
		what  string
	}{
		{"interface", r.Interface != "", "match by cidr"}, {"communities", len(r.Communities) > 0, "match by cidr"}, {"asPathPrefix", len(r.ASPathPrefix) > 0, "match by cidr"},
		{"priority", len(r.Priority) > 0, "routes have none here"}, {"operations", len(r.Operations) > 0, "BGPConfiguration has communities by prefixAdvertisements"},
	} {
		if other.given {
			f.Aside(field+"."+other.name, "is not supported; %s", other.what)
		}
	}
	return rule
}

// match reads what routes a rule is about.
func (r *bgpFilterRule) match(field string, rule *model.BGPFilterRule, f *fault.List) {
	if (r.CIDR == "") != (r.MatchOperator == "") {
		f.Reject(field+".matchOperator", "cidr and matchOperator are both there, or none is")
		return
	}
	if r.CIDR == "" {
		if r.PrefixLength != nil {
			f.Reject(field+".prefixLength", "needs a cidr")
		}
		return
	}
	var err error
	if rule.CIDR, err = model.ParsePrefix(r.CIDR); err == nil && rule.CIDR.Addr().Is6() != rule.IPv6 {
		err = fmt.Errorf("%s is of the other family", r.CIDR)
	}
	if err != nil {
		f.Reject(field+".cidr", "%v", err)
		return
	}
	known := false
	for m := model.BGPIn; m <= model.BGPNotEqual; m++ {
		if r.MatchOperator == m.String() {
			rule.Match, known = m, true
		}
	}
	if !known {
		f.Reject(field+".matchOperator", "%q is none of Equal, NotEqual, In and NotIn", r.MatchOperator)
	}
	r.lengths(field+".prefixLength", rule, f)
}

// lengths reads what lengths of prefixes a rule is about.
func (r *bgpFilterRule) lengths(field string, rule *model.BGPFilterRule, f *fault.List) {
	if r.PrefixLength == nil {
		return
	}
	bits, most := rule.CIDR.Bits(), rule.CIDR.Addr().BitLen()
	low, high := ptr.Deref(r.PrefixLength.Min, bits), ptr.Deref(r.PrefixLength.Max, most)
	switch {
	case rule.Match != model.BGPIn:
		f.Reject(field, "is supported with matchOperator In alone")
	case low < 0 || low > high || high > most:
		f.Reject(field, "%d to %d is no range of lengths from 0 to %d", low, high, most)
	case high < bits:
		f.Reject(field, "no prefix in %s has a length of %d or less", rule.CIDR, high)
	case high == 0: // the default route, and nothing in it
		rule.Match = model.BGPEqual
	default:
		rule.Min, rule.Max = max(low, bits), high
	}
}
