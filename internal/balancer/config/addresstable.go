package config

import (
	"errors"
	"net/netip"
	"sluice.dev/sluice/internal/balancer/keys"
)

// addressFields is an address while its attributes are read or printed.
type addressFields struct {
	*address
	familyGiven bool // by what is being read
	used        int
}

var addressTable = newObject("name", []keys.List{{Key: "policies", Of: &policyTable.Kind}},
	attribute[*addressFields]{name: "name", nftlb: nftlbText, print: func(a *addressFields) string { return a.name }},
	familyAttribute("family"),
	addrAttribute("ip-addr"),
	portsAttribute("ports"),
	protocolAttribute("protocol"),
	flags("verdict", verdictWords, 2, func(a *addressFields) *verdict { return &a.verdict }).inNftlb(nftlbVerdict),
	logPrefix("log-prefix", "TYPE-ANAME ", func(a *addressFields) *map[string]string { return &a.prefix }),
	attribute[*addressFields]{name: "log-rtlimit", nftlb: nftlbUnused, about: "what is given has no effect", print: func(*addressFields) string { return rateText(perSecond) }},
	ignored[*addressFields]("iface", discovered),
	ignored[*addressFields]("ether-addr", discovered).inNftlb(nftlbUnused),
	ignored[*addressFields]("iether-addr", discovered),
	attribute[*addressFields]{name: "used", nftlb: nftlbUnused, about: "how many farms use it; what is given has no effect", print: func(a *addressFields) string { return itoa(a.used) }},
)

// inFarm are the attributes of an address that are printed in a farm.
var inFarm = map[string]bool{"name": true, "family": true, "ip-addr": true, "ports": true, "protocol": true, "used": true}

func familyAttribute(name string) attribute[*addressFields] {
	a := choice(name, familyWords, ipv4, func(a *addressFields) *family { return &a.family })
	read := a.read
	a.read = func(f *addressFields, text string) error {
		f.familyGiven = true
		return read(f, text)
	}
	return a.inNftlb(nftlbFamily)
}

// addrAttribute is an address whose family follows it where none is given.
func addrAttribute(name string) attribute[*addressFields] {
	a := ip(name, "IP address, or empty for all that the machine has", func(a *addressFields) *netip.Addr { return &a.addr })
	read := a.read
	a.read = func(f *addressFields, text string) error {
		err := read(f, text)
		if f.addr.IsValid() && (f.addr.IsUnspecified() || f.addr.IsMulticast()) {
			return errors.New(text + " is not the address of a machine; empty stands for all that it has")
		}
		if err == nil && f.addr.IsValid() && !f.familyGiven && f.family != bothFamilies {
			f.family = familyOf(f.addr)
		}
		return err
	}
	return a.inNftlb(nftlbAddr)
}

func portsAttribute(name string) attribute[*addressFields] {
	return attribute[*addressFields]{
		name: name, nftlb: nftlbPorts, pattern: patternPorts, about: "ports and ranges, such as 80,82-84; empty: all ports",
		print: func(a *addressFields) string { return a.ports },
		read: func(a *addressFields, text string) error {
			spans, err := readPorts(text)
			if err != nil {
				return err
			}
			a.ports, a.spans = text, spans
			if text == "" {
				a.protocol = allProtocols
			}
			return nil
		},
	}
}

func protocolAttribute(name string) attribute[*addressFields] {
	return choice(name, protocolWords, tcp, func(a *addressFields) *protocol { return &a.protocol })
}
