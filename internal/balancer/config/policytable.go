package config

import "sluice.dev/sluice/internal/balancer/keys"

// policyFields is a policy while its attributes are read or printed.
type policyFields struct {
	*policy
	used int
}

var policyTable = newObject("name", []keys.List{{Key: "elements", Of: elementKind}},
	attribute[*policyFields]{name: "name", nftlb: nftlbText, print: func(p *policyFields) string { return p.name }},
	ignored[*policyFields]("newname", "as in nftlb").inNftlb(nftlbVerb),
	ignored[*policyFields]("priority", "as in nftlb").inNftlb(nftlbUnused),
	choice("family", familyWords, ipv4, func(p *policyFields) *family { return &p.family }).inNftlb(nftlbWord("ipv4", "ipv6")),
	choice("type", policyWords, false, func(p *policyFields) *bool { return &p.allow }),
	choice("route", routeWords, false, func(p *policyFields) *bool { return &p.out }).saying("out has no effect").inNftlb(nftlbUnused),
	number("timeout", 0, mostCount, func(p *policyFields) *uint32 { return &p.timeout }).saying("without effect, as in nftlb").inNftlb(nftlbUnused),
	logPrefix("log-prefix", "KNAME-TYPE-PNAME-FNAME ", func(p *policyFields) *map[string]string { return &p.prefix }),
	attribute[*policyFields]{name: "used", nftlb: nftlbUnused, about: "how many farms and addresses use it; what is given has no effect", print: func(p *policyFields) string { return itoa(p.used) }},
	feedAttribute(),
)
