package config

// policyFields is a policy while its attributes are read or printed.
type policyFields struct {
	*policy
	used int
}

var policyTable = newObject("policy", "name", []string{"elements"},
	attribute[*policyFields]{name: "name", print: func(p *policyFields) string { return p.name }},
	ignored[*policyFields]("newname", "as in nftlb"),
	ignored[*policyFields]("priority", "as in nftlb"),
	choice("family", familyWords, ipv4, func(p *policyFields) *family { return &p.family }),
	choice("type", policyWords, false, func(p *policyFields) *bool { return &p.allow }),
	choice("route", routeWords, false, func(p *policyFields) *bool { return &p.out }).saying("out has no effect"),
	number("timeout", 0, mostCount, func(p *policyFields) *uint32 { return &p.timeout }).saying("without effect, as in nftlb"),
	logPrefix("log-prefix", "KNAME-TYPE-PNAME-FNAME ", func(p *policyFields) *map[string]string { return &p.prefix }),
	attribute[*policyFields]{name: "used", about: "how many farms and addresses use it; what is given has no effect", print: func(p *policyFields) string { return itoa(p.used) }},
	feedAttribute(),
)
