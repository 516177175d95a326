package nft

import (
	"context"
	"errors"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// Opaque is an expression of a rule that only has a name here.
type Opaque struct {
	expr.Any // nil
	Name     string
}

// expressions are those that are read of other programs' rules.
var expressions = map[string]func() expr.Any{
	"bitwise":   func() expr.Any { return &expr.Bitwise{} },
	"byteorder": func() expr.Any { return &expr.Byteorder{} },
	"cmp":       func() expr.Any { return &expr.Cmp{} },
	"counter":   func() expr.Any { return &expr.Counter{} },
	"immediate": func() expr.Any { return &expr.Verdict{} },
	"log":       func() expr.Any { return &expr.Log{} },
	"lookup":    func() expr.Any { return &expr.Lookup{} },
	"match":     func() expr.Any { return &expr.Match{} },
	"meta":      func() expr.Any { return &expr.Meta{} },
	"payload":   func() expr.Any { return &expr.Payload{} },
	"range":     func() expr.Any { return &expr.Range{} },
	"reject":    func() expr.Any { return &expr.Reject{} },
	"target":    func() expr.Any { return &expr.Target{} },
}

// ForeignRules returns the rules of a chain of any program, in the network namespace of the calling
// thread. The library's own reader (v0.3.0) fails for a chain in which a rule asks for the
// direction of a connection ("ct original saddr"), and leaves out what it does not know, so that
// the rest of the rule says something else. Here all that cannot be read is Opaque.
func ForeignRules(t *nftables.Table, chain string) (rules []*nftables.Rule, err error) {
	s, err := Dial()
	if err != nil {
		return nil, err
	}
	s.Family = byte(t.Family)
	var in attr.Attrs
	in.String(unix.NFTA_RULE_TABLE, t.Name)
	in.String(unix.NFTA_RULE_CHAIN, chain)
	err = Uninterrupted(func() error {
		rules = nil
		return s.get(context.Background(), unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, s.Family, in.B, func(b []byte) {
			r := &nftables.Rule{Table: t, Chain: &nftables.Chain{Name: chain, Table: t}, Handle: attr.Uint64(attr.Find(b, unix.NFTA_RULE_HANDLE)),
				UserData: append([]byte(nil), attr.Find(b, unix.NFTA_RULE_USERDATA)...)}
			for _, e := range attr.All(attr.Find(b, unix.NFTA_RULE_EXPRESSIONS)) {
				r.Exprs = append(r.Exprs, expression(s.Family, attr.Text(attr.Find(e, unix.NFTA_EXPR_NAME)), attr.Find(e, unix.NFTA_EXPR_DATA)))
			}
			rules = append(rules, r)
		})
	})
	return rules, errors.Join(err, s.Close())
}

func expression(family byte, name string, data []byte) expr.Any {
	if name == "ct" {
		return &expr.Ct{Key: expr.CtKey(attr.Uint32(attr.Find(data, unix.NFTA_CT_KEY))), Register: attr.Uint32(attr.Find(data, unix.NFTA_CT_DREG))}
	}
	isVerdict := attr.Find(attr.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT) != nil
	if kind := expressions[name]; kind != nil && (name != "immediate" || isVerdict) {
		if e := kind(); expr.Unmarshal(family, append([]byte(nil), data...), e) == nil {
			return e
		}
	}
	return &Opaque{Name: name}
}
