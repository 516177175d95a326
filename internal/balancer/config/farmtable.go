package config

import (
	"errors"
	"math"
	"sluice.dev/sluice/internal/balancer/keys"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// farmFields is a farm while its attributes are read or printed.
type farmFields struct {
	*farm
	*change // while they are read
	// first is the farm's first address; nil: it has none.
	first *addressFields
	// level is the priority up to which backends serve.
	level   int
	newname string
	action  string
}

// address is the farm's first, which is made if there is none.
func (f *farmFields) address() *addressFields {
	if f.first == nil {
		if len(f.addresses) == 0 {
			f.addresses = append(f.addresses, f.freeAddressName(f.name+"-addr"))
		}
		f.first = &addressFields{address: f.addrEdits.edit(f.addresses[0])}
	}
	return f.first
}

// ofFirst makes an attribute of a farm of one of its first address.
func ofFirst(name string, a attribute[*addressFields]) attribute[*farmFields] {
	return attribute[*farmFields]{
		name: name, about: a.about, values: a.values, pattern: a.pattern, nftlb: a.nftlb,
		read:  func(f *farmFields, text string) error { return a.read(f.address(), text) },
		print: func(f *farmFields) string { return a.print(f.first) },
		shown: func(f *farmFields) bool { return f.first != nil },
	}
}

const (
	limitPrefix = "KNAME-FNAME " // the standard prefix of limits
	mostCount   = math.MaxUint32
	longest     = 365 * 24 * 3600 // seconds
	discovered  = "the kernel finds devices and neighbours"
)

var farmTable = newObject("name",
	[]keys.List{{Key: "addresses", Of: &addressTable.Kind}, {Key: "backends", Of: &backendTable.Kind}, {Key: "policies", Of: &policyTable.Kind}, {Key: "sessions", Of: sessionKind}},
	attribute[*farmFields]{name: "name", nftlb: nftlbText, print: func(f *farmFields) string { return f.name }, about: "names the farm; a name that is unknown makes one"},
	attribute[*farmFields]{name: "newname", nftlb: nftlbVerb, read: func(f *farmFields, text string) error { f.newname = text; return checkName(text) }, about: "renames the farm"},
	ofFirst("family", familyAttribute("family")),
	ofFirst("virtual-addr", addrAttribute("virtual-addr")).inNftlb(nftlbAddrOrNone),
	ofFirst("virtual-ports", portsAttribute("virtual-ports")),
	attribute[*farmFields]{
		name: "source-addr", nftlb: nftlbAddrOrNone, about: "address that stands for clients; empty: that of the interface. Two of both families with a comma between",
		print: func(f *farmFields) string { return f.sourceAddr.String() },
		read: func(f *farmFields, text string) error {
			a, err := readAddresses(text)
			f.sourceAddr = a
			return err
		},
	},
	choice("mode", modeWords, model.SNAT, func(f *farmFields) *model.FarmMode { return &f.mode }),
	number("responsettl", 0, longest, func(f *farmFields) *uint32 { return &f.responseTTL }).
		when(func(f *farmFields) bool { return f.mode == model.StatelessDNAT }).inNftlb(nftlbUnused),
	ofFirst("protocol", protocolAttribute("protocol")),
	schedulerAttribute(),
	schedParamAttribute(),
	persistenceAttribute(),
	number("persist-ttl", 0, longest, func(f *farmFields) *uint32 { return &f.persistTTL }).inNftlb(nftlbNumber(0, 60)).
		saying("seconds that a client is remembered after its last new connection; 0: a year"),
	choice("helper", helperWords, noHelper, func(f *farmFields) *helper { return &f.helper }),
	flags("log", logWords, 2, func(f *farmFields) *logPlaces { return &f.log }),
	farmPrefix("log-prefix", "TYPE-FNAME "),
	rate("log-rtlimit", func(f *farmFields) *model.FarmRate { return &f.logRate }),
	attribute[*farmFields]{
		name: "mark", nftlb: nftlbMark, pattern: patternMark, about: "or-ed into the mark of connections, hexadecimal",
		print: func(f *farmFields) string { return markText(f.mark) },
		read:  func(f *farmFields, text string) (err error) { f.mark, err = readMark(text); return err },
	},
	attribute[*farmFields]{
		name: "priority", nftlb: nftlbFarmPriority, pattern: patternNumber, about: "the priority up to which backends serve; what is given has no effect",
		print: func(f *farmFields) string { return itoa(f.level) },
		read:  func(_ *farmFields, text string) error { _, err := readNumber(text, 1, math.MaxUint32); return err },
	},
	choice("state", stateWords, up, func(f *farmFields) *state { return &f.state }).inNftlb(nftlbWord("up", "down", "off")),
	number("limits-ttl", 0, longest, func(f *farmFields) *uint32 { return &f.limitsTTL }).inNftlb(nftlbNumber(0, 120)),
	rate("new-rtlimit", func(f *farmFields) *model.FarmRate { return &f.newRate }),
	number("new-rtlimit-burst", 0, mostCount, func(f *farmFields) *uint32 { return &f.newRate.Burst }),
	farmPrefix("new-rtlimit-log-prefix", limitPrefix),
	rate("rst-rtlimit", func(f *farmFields) *model.FarmRate { return &f.rstRate }),
	number("rst-rtlimit-burst", 0, mostCount, func(f *farmFields) *uint32 { return &f.rstRate.Burst }),
	farmPrefix("rst-rtlimit-log-prefix", limitPrefix),
	number("est-connlimit", 0, mostCount, func(f *farmFields) *uint32 { return &f.estLimit }),
	farmPrefix("est-connlimit-log-prefix", limitPrefix),
	toggle("tcp-strict", func(f *farmFields) *bool { return &f.strict }),
	farmPrefix("tcp-strict-log-prefix", limitPrefix),
	attribute[*farmFields]{
		name: "queue", nftlb: nftlbNumber(-1, -1), values: []string{"-1"}, about: "packets are not handed to queues: -1 alone is accepted",
		print: func(*farmFields) string { return "-1" },
		read: func(_ *farmFields, text string) error {
			if text != "-1" {
				return errors.New("packets are not handed to queues of programs here; leave it out, or -1")
			}
			return nil
		},
	},
	flags("verdict", verdictWords, 2, func(f *farmFields) *verdict { return &f.verdict }).inNftlb(nftlbVerdict),
	attribute[*farmFields]{
		name: "flow-offload", nftlb: nftlbWord("off", "on"), values: []string{"off"}, about: "flows are not offloaded: off alone is accepted",
		read: func(_ *farmFields, text string) error {
			if text != "off" {
				return errors.New("flows are not offloaded here; leave it out, or off")
			}
			return nil
		},
	},
	toggle("intra-connect", func(f *farmFields) *bool { return &f.intraConnect }).
		when(func(f *farmFields) bool { return f.intraConnect }),
	deviceAttribute("iface", func(f *farmFields) *string { return &f.iface }),
	deviceAttribute("oface", func(f *farmFields) *string { return &f.oface }),
	ignored[*farmFields]("ether-addr", discovered),
	ignored[*farmFields]("iether-addr", discovered),
	ignored[*farmFields]("oether-addr", discovered),

	checkAttribute(),
	choice("all-down", allDownWords, false, func(f *farmFields) *bool { return &f.keepDown }).
		when(func(f *farmFields) bool { return f.keepDown }).inNftlb(nil).saying("what happens while the checks of all backends fail: keep uses all of them"),
	number("slow-start", 0, longest, func(f *farmFields) *uint32 { return &f.slowStart }).
		when(func(f *farmFields) bool { return f.slowStart > 0 }).inNftlb(nil).saying("seconds that a backend which comes up takes to reach its weight"),
	choice("limits-full", limitFullWords, false, func(f *farmFields) *bool { return &f.limitsDrop }).
		when(func(f *farmFields) bool { return f.limitsDrop }).inNftlb(nil).saying("what happens to clients that no limit can remember any more"),
	toggle("syn-proxy", func(f *farmFields) *bool { return &f.synProxy }).
		when(func(f *farmFields) bool { return f.synProxy }).inNftlb(nil).saying("answers for backends until a client has shown that it is there"),
	actionAttribute(func(f *farmFields, do string) {
		f.action = do
		switch do {
		case "stop":
			f.state = down
		case "start":
			f.state = up
		}
	}),
)

func farmPrefix(name, standard string) attribute[*farmFields] {
	return logPrefix(name, standard, func(f *farmFields) *map[string]string { return &f.prefix })
}

// schedulerAttribute also sets what is hashed, which is read after it.
func schedulerAttribute() attribute[*farmFields] {
	var all []word[model.FarmScheduler]
	var nftlbs []string
	for _, s := range model.FarmSchedulers() {
		if all = append(all, word[model.FarmScheduler]{s.String(), s}); s.InNftlb() {
			nftlbs = append(nftlbs, s.String())
		}
	}
	a := choice("scheduler", all, model.RoundRobin, func(f *farmFields) *model.FarmScheduler { return &f.scheduler })
	read := a.read
	a.read = func(f *farmFields, text string) error {
		before := f.scheduler
		err := read(f, text)
		switch {
		case f.scheduler == before && err == nil:
		case !f.scheduler.Hashes():
			f.schedParam = 0
		case f.schedParam == 0:
			f.schedParam = model.SrcIP
		}
		return err
	}
	return a.inNftlb(nftlbWord(model.RoundRobin.String(), nftlbs...))
}

func schedParamAttribute() attribute[*farmFields] {
	a := flags("sched-param", keyWords, len(keyWords), func(f *farmFields) *model.FlowKey { return &f.schedParam })
	return a.saying("what hash and maglev choose by: " + a.about).inNftlb(nftlbKeys)
}

// persistenceAttribute forgets the sessions when the key changes.
func persistenceAttribute() attribute[*farmFields] {
	a := flags("persistence", keyWords, len(keyWords), func(f *farmFields) *model.FlowKey { return &f.persistence })
	read := a.read
	a.read = func(f *farmFields, text string) error {
		before := f.persistence
		err := read(f, text)
		if f.persistence != before {
			f.sessions = nil
		}
		return err
	}
	return a.saying("what a client is remembered by: " + a.about).inNftlb(nftlbKeys)
}

var actionWords = []word[uint8]{{"none", 0}, {"stop", 1}, {"start", 2}, {"delete", 3}, {"reload", 4}, {"flush", 5}}

func actionAttribute[T any](do func(T, string)) attribute[T] {
	a := attribute[T]{name: "action", nftlb: nftlbVerb, about: "stop and start set the state, delete removes the object"}
	for _, w := range actionWords {
		a.values = append(a.values, w.text)
	}
	a.read = func(t T, text string) error {
		if _, ok := valueOf(actionWords, text); !ok {
			return &unknownValueError{text, "action", "none", known(actionWords)}
		}
		do(t, text)
		return nil
	}
	return a
}

// deviceAttribute names an interface, which has to be there, and has no effect.
func deviceAttribute(name string, field func(*farmFields) *string) attribute[*farmFields] {
	a := ignored[*farmFields](name, discovered+"; an interface that the machine does not have is an error")
	a.read = func(f *farmFields, text string) error {
		*field(f), _, _ = strings.Cut(text, ":") // as nftlb does it: eth0:1 is a name for addresses of eth0
		return nil
	}
	return a
}
