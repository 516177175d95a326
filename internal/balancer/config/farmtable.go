package config

import (
	"errors"
	"math"
	"slices"
	"sluice.dev/sluice/internal/balancer/keys"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// farmFields is a farm while its attributes are read or printed.
type farmFields struct {
	*farm
	*revision // while they are read
	// first is the farm's first address; nil: it has none.
	first *addressFields
	// level is the priority up to which backends serve.
	level   int
	newname string
	action  string

	// Of one that is printed:
	at        []*addressFields // its addresses
	effective *model.Farm
	reasons   map[string]string // of backends that a check found at fault
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

var farmTable = newObject("name", &farmFields{farm: newFarm("")},
	[]keys.List{{Key: "addresses", Of: &addressTable.Kind}, {Key: "backends", Of: &backendTable.Kind}, {Key: "policies", Of: &policyTable.Kind}, {Key: "sessions", Of: sessionKind}},
	attribute[*farmFields]{name: "name", nftlb: nftlbText, print: func(f *farmFields) string { return f.name }, about: "names the farm; a name that is unknown makes one"},
	attribute[*farmFields]{name: "newname", nftlb: nftlbVerb, read: func(f *farmFields, text string) error { f.newname = text; return checkName(text) }, about: "renames the farm"},
	ofFirst("family", familyAttribute("family")),
	ofFirst("virtual-addr", addrAttribute("virtual-addr")).inNftlb(nftlbAddrOrNone),
	ofFirst("virtual-ports", portsAttribute("virtual-ports")),
	attribute[*farmFields]{
		name: "source-addr", nftlb: nftlbAddrOrNone, about: "address that stands for clients; empty: that of the interface. Two of both families with a comma between",
		print: func(f *farmFields) string { return addressesText(f.given.SourceAddrs) },
		read: func(f *farmFields, text string) error {
			a, err := readAddresses(text)
			f.given.SourceAddrs = a
			return err
		},
	},
	choice("mode", modeWords, model.SNAT, func(f *farmFields) *model.FarmMode { return &f.given.Mode }),
	number("responsettl", 0, longest, func(f *farmFields) *uint32 { return &f.responseTTL }).
		when(func(f *farmFields) bool { return f.given.Mode == model.StatelessDNAT }).inNftlb(nftlbUnused),
	ofFirst("protocol", protocolAttribute("protocol")),
	schedulerAttribute(),
	schedParamAttribute(),
	persistenceAttribute(),
	number("persist-ttl", 0, longest, func(f *farmFields) *uint32 { return &f.persistTTL }).inNftlb(nftlbNumber(0, 60)).
		saying("seconds that a client is remembered after its last new connection; 0: a year"),
	choice("helper", helperWords, "", func(f *farmFields) *string { return &f.given.Helper }),
	flags("log", logWords, 2, func(f *farmFields) *logPlaces { return &f.log }),
	farmPrefix("log-prefix", "TYPE-FNAME "),
	rate("log-rtlimit", func(f *farmFields) *model.FarmRate { return &f.given.Limits.ReportRate }),
	attribute[*farmFields]{
		name: "mark", nftlb: nftlbMark, pattern: patternMark, about: "or-ed into the mark of connections, hexadecimal",
		print: func(f *farmFields) string { return markText(f.given.Mark) },
		read:  func(f *farmFields, text string) (err error) { f.given.Mark, err = readMark(text); return err },
	},
	attribute[*farmFields]{
		name: "priority", nftlb: nftlbFarmPriority, pattern: patternNumber, about: "the priority up to which backends serve; what is given has no effect",
		print: func(f *farmFields) string { return itoa(f.level) },
		read:  func(_ *farmFields, text string) error { _, err := readNumber(text, 1, math.MaxUint32); return err },
	},
	choice("state", stateWords, up, func(f *farmFields) *model.BackendState { return &f.state }).inNftlb(nftlbWord("up", "down", "off")),
	number("limits-ttl", 0, longest, func(f *farmFields) *uint32 { return &f.limitsTTL }).inNftlb(nftlbNumber(0, 120)),
	rate("new-rtlimit", func(f *farmFields) *model.FarmRate { return &f.given.Limits.New }),
	number("new-rtlimit-burst", 0, mostCount, func(f *farmFields) *uint32 { return &f.given.Limits.New.Burst }),
	farmPrefix("new-rtlimit-log-prefix", limitPrefix),
	rate("rst-rtlimit", func(f *farmFields) *model.FarmRate { return &f.given.Limits.RST }),
	number("rst-rtlimit-burst", 0, mostCount, func(f *farmFields) *uint32 { return &f.given.Limits.RST.Burst }),
	farmPrefix("rst-rtlimit-log-prefix", limitPrefix),
	number("est-connlimit", 0, mostCount, func(f *farmFields) *uint32 { return &f.given.Limits.Established }),
	farmPrefix("est-connlimit-log-prefix", limitPrefix),
	toggle("tcp-strict", func(f *farmFields) *bool { return &f.given.Limits.Strict }),
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
	choice("limits-full", limitFullWords, false, func(f *farmFields) *bool { return &f.given.Limits.DropWhenFull }).
		when(func(f *farmFields) bool { return f.given.Limits.DropWhenFull }).inNftlb(nil).saying("what happens to clients that no limit can remember any more"),
	toggle("syn-proxy", func(f *farmFields) *bool { return &f.given.Limits.SYNProxy }).
		when(func(f *farmFields) bool { return f.given.Limits.SYNProxy }).inNftlb(nil).saying("answers for backends until a client has shown that it is there"),
	actionAttribute(func(f *farmFields) (*string, *model.BackendState) { return &f.action, &f.state }),
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
	a := choice("scheduler", all, model.RoundRobin, func(f *farmFields) *model.FarmScheduler { return &f.given.Scheduler })
	read := a.read
	a.read = func(f *farmFields, text string) error {
		before := f.given.Scheduler
		err := read(f, text)
		switch {
		case f.given.Scheduler == before && err == nil:
		case !f.given.Scheduler.Hashes():
			f.given.HashBy = 0
		case f.given.HashBy == 0:
			f.given.HashBy = model.SrcIP
		}
		return err
	}
	return a.inNftlb(nftlbWord(model.RoundRobin.String(), nftlbs...))
}

func schedParamAttribute() attribute[*farmFields] {
	a := flags("sched-param", keyWords, len(keyWords), func(f *farmFields) *model.FlowKey { return &f.given.HashBy })
	return a.saying("what hash and maglev choose by: " + a.about).inNftlb(nftlbKeys)
}

// persistenceAttribute forgets the sessions when the key changes.
func persistenceAttribute() attribute[*farmFields] {
	a := flags("persistence", keyWords, len(keyWords), func(f *farmFields) *model.FlowKey { return &f.given.Persist })
	read := a.read
	a.read = func(f *farmFields, text string) error {
		before := f.given.Persist
		err := read(f, text)
		if f.given.Persist != before {
			f.sessions = nil
		}
		return err
	}
	return a.saying("what a client is remembered by: " + a.about).inNftlb(nftlbKeys)
}

// actionAttribute does something: start and stop set the state, and delete is left to the reader.
func actionAttribute[T any](fields func(T) (action *string, state *model.BackendState)) attribute[T] {
	a := attribute[T]{name: "action", nftlb: nftlbVerb, about: "stop and start set the state, delete removes the object"}
	a.values = []string{"none", "stop", "start", "delete", "reload", "flush"}
	a.read = func(t T, text string) error {
		if !slices.Contains(a.values, text) {
			return &unknownValueError{text, "action", "none", strings.Join(a.values, ", ")}
		}
		action, state := fields(t)
		switch *action = text; text {
		case "stop":
			*state = down
		case "start":
			*state = up
		}
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
