package config

import (
	"errors"
	"math"
	"net/netip"

	"sluice.dev/sluice/internal/model"
)

// backendFields is a backend while its attributes are read or printed.
type backendFields struct {
	*backend
	newname string
	action  string
	shows   string // the state that is printed
	reason  string // why a check says that it is down
}

var backendTable = newObject("name", nil,
	attribute[*backendFields]{name: "name", nftlb: nftlbText, print: func(b *backendFields) string { return b.name }},
	attribute[*backendFields]{name: "newname", nftlb: nftlbVerb, read: func(b *backendFields, text string) error { b.newname = text; return checkName(text) }},
	attribute[*backendFields]{
		name: "ip-addr", nftlb: nftlbAddr, about: "IP address",
		print: func(b *backendFields) string { return b.addr.String() },
		shown: func(b *backendFields) bool { return b.addr.IsValid() },
		read: func(b *backendFields, text string) error {
			a, err := model.ParseAddr(text)
			if err == nil && (a.IsUnspecified() || a.IsMulticast()) {
				err = errors.New(text + " is not the address of a machine")
			}
			if err == nil {
				b.addr = a
			}
			return err
		},
	},
	ignored[*backendFields]("ether-addr", discovered),
	ignored[*backendFields]("iface", discovered).inNftlb(nil),
	ignored[*backendFields]("oface", discovered).inNftlb(nil),
	attribute[*backendFields]{
		name: "port", nftlb: nftlbPort, about: "port, or empty for the one that the client asked for",
		print: func(b *backendFields) string { return portText(b.port) },
		read: func(b *backendFields, text string) error {
			if text == "" {
				b.port = 0
				return nil
			}
			n, err := readNumber(text, 0, math.MaxUint16)
			if err == nil {
				b.port = uint16(n)
			}
			return err
		},
	},
	ip("source-addr", "IP address, or empty", func(b *backendFields) *netip.Addr { return &b.sourceAddr }).
		when(func(b *backendFields) bool { return b.sourceAddr.IsValid() }),
	number("weight", 1, 65535, func(b *backendFields) *uint32 { return &b.weight }),
	number("priority", 1, 65535, func(b *backendFields) *uint32 { return &b.priority }),
	attribute[*backendFields]{
		name: "mark", nftlb: nftlbMark, pattern: patternMark, about: "or-ed into the mark of connections, hexadecimal; empty changes nothing",
		print: func(b *backendFields) string { return markText(b.mark) },
		read: func(b *backendFields, text string) error {
			m, err := readMark(text)
			if err == nil && m != 0 {
				b.mark, b.marked = m, true
			}
			return err
		},
	},
	number("est-connlimit", 0, mostCount, func(b *backendFields) *uint32 { return &b.estLimit }),
	logPrefix("est-connlimit-log-prefix", "KNAME-FNAME-BNAME ", func(b *backendFields) *map[string]string { return &b.prefix }),
	backendStateAttribute(),
	toggle("unchecked", func(b *backendFields) *bool { return &b.unchecked }).
		when(func(b *backendFields) bool { return b.unchecked }).inNftlb(nil),
	attribute[*backendFields]{
		name: "reason", about: "what the check of the backend found; what is given has no effect",
		print: func(b *backendFields) string { return b.reason },
		shown: func(b *backendFields) bool { return b.reason != "" },
	},
	actionAttribute(func(b *backendFields, do string) {
		b.action = do
		switch do {
		case "stop":
			b.state = down
		case "start":
			b.state = up
		}
	}),
)

func backendStateAttribute() attribute[*backendFields] {
	a := choice("state", stateWords, up, func(b *backendFields) *state { return &b.state })
	a.print = func(b *backendFields) string { return b.shows }
	return a.inNftlb(nftlbBackendState)
}

func portText(port uint16) string {
	if port == 0 {
		return ""
	}
	return itoa(int(port))
}
