package config

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"sluice.dev/sluice/internal/model"
)

// printer writes JSON as nftlb does: indented by eight spaces, all values strings. Stored, it
// writes what the state file holds: no spaces, and only what was configured.
type printer struct {
	bytes.Buffer
	depth  int
	begun  bool // the present object or list has something
	stored bool
}

func (p *printer) line() {
	if p.stored {
		return
	}
	p.WriteByte('\n')
	for range p.depth {
		p.WriteString("        ")
	}
}

// next begins a value; key is empty in a list.
func (p *printer) next(key string) {
	if p.begun {
		p.WriteByte(',')
	}
	p.begun = true
	p.line()
	if key == "" {
		return
	}
	p.quote(key)
	p.WriteByte(':')
	if !p.stored {
		p.WriteByte(' ')
	}
}

func (p *printer) text(key, value string) {
	p.next(key)
	p.quote(value)
}

func (p *printer) quote(text string) {
	if strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) < 0 {
		p.WriteByte('"')
		p.WriteString(text)
		p.WriteByte('"')
		return
	}
	e := json.NewEncoder(&p.Buffer)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a string and a buffer: neither can fail
	p.Truncate(p.Len() - 1)
}

// within writes an object or a list; body writes what is in it.
func (p *printer) within(key string, open, end byte, body func()) {
	p.next(key)
	p.top(open, end, body)
}

func (p *printer) top(open, end byte, body func()) {
	p.WriteByte(open)
	p.depth++
	p.begun = false
	body()
	p.depth--
	if p.begun {
		p.line()
	}
	p.begun = true
	p.WriteByte(end)
}

func (p *printer) object(key string, body func()) { p.within(key, '{', '}', body) }

// printList writes a list. The state file has none that are empty.
func printList[T any](p *printer, key string, all []T, one func(T)) {
	if p.stored && len(all) == 0 {
		return
	}
	p.within(key, '[', ']', func() {
		for _, t := range all {
			one(t)
		}
	})
}

// printDocument writes a document with one list.
func printDocument[T any](key string, all []T, one func(*printer, T)) *printer {
	p := &printer{}
	p.top('{', '}', func() { printList(p, key, all, func(t T) { one(p, t) }) })
	return p
}

// print writes an object: the attributes that nftlb has, what else belongs to the object, and the
// attributes that nftlb does not have. What is stored begins with all that differ from those of a
// fresh object.
func (o *object[T]) print(p *printer, t T, lists func()) {
	some := func(which func(*attribute[T]) bool) {
		for i := range o.attributes {
			if a := &o.attributes[i]; (a.shown == nil || a.shown(t)) && which(a) {
				a.write(p, t)
			}
		}
	}
	p.object("", func() {
		if p.stored {
			some(func(a *attribute[T]) bool { return a.stored(t, o.fresh, o.Key) })
			lists()
			return
		}
		some(func(a *attribute[T]) bool { return a.nftlb != nil })
		lists()
		some(func(a *attribute[T]) bool { return a.nftlb == nil })
	})
}

func (a *attribute[T]) write(p *printer, t T) {
	switch {
	case a.fields != nil:
		p.object(a.name, func() { a.fields(p, t) })
	case a.list != nil:
		printList(p, a.name, *a.list(t), func(text string) { p.text("", text) })
	case a.print != nil:
		p.text(a.name, a.print(t))
	}
}

// stored reports whether an attribute is part of the state file.
func (a *attribute[T]) stored(t, fresh T, key string) bool {
	switch {
	case a.read == nil && a.object == nil:
		return a.name == key
	case a.print == nil:
		return a.fields != nil
	case a.shown != nil && !a.shown(fresh):
		return true
	}
	return a.print(t) != a.print(fresh)
}

func (p *printer) names(key string, names []string) {
	printList(p, key, names, func(name string) {
		p.object("", func() { p.text("name", name) })
	})
}

func (p *printer) farm(f *farmFields) {
	farmTable.print(p, f, func() {
		if p.stored {
			p.names("addresses", f.addresses)
		} else {
			printList(p, "addresses", f.at, p.addressInFarm)
		}
		next := 0
		printList(p, "backends", f.backends, func(b *backend) {
			fields := &backendFields{backend: b, shows: "config_error", reason: f.reasons[b.Name]}
			switch {
			case p.stored:
				fields = storedBackend(b)
			case b.Addr.IsValid():
				fields.shows = stateText(&f.effective.Backends[next], f.level)
				next++
			}
			backendTable.print(p, fields, func() {})
		})
		p.names("policies", f.policies)
		if len(f.sessions) > 0 {
			printList(p, "sessions", f.sessions, p.session)
		}
	})
}

// storedBackend is what the state file has of a backend: a mark only if it was given.
func storedBackend(b *backend) *backendFields {
	stored := *b
	if !b.marked {
		stored.Mark = 0
	}
	return &backendFields{backend: &stored, shows: textOf(stateWords, b.State)}
}

func (p *printer) addressInFarm(a *addressFields) {
	p.object("", func() {
		for i := range addressTable.attributes {
			if attr := &addressTable.attributes[i]; inFarm[attr.name] {
				attr.write(p, a)
			}
		}
	})
}

func stateText(b *model.FarmBackend, level int) string {
	switch {
	case b.State == model.BackendDown:
		return "down"
	case b.State == model.BackendDraining:
		return "off"
	case b.Priority > level:
		return "available"
	}
	return "up"
}

func (p *printer) session(s session) {
	p.object("", func() {
		p.text("client", s.client)
		p.text("backend", s.backend)
		if s.expiration != "" {
			p.text("expiration", s.expiration)
		}
	})
}

func (p *printer) address(a *addressFields) {
	addressTable.print(p, a, func() { p.names("policies", a.policies) })
}

func (p *printer) policy(v *policyFields) {
	policyTable.print(p, v, func() {
		printList(p, "elements", v.elements, func(e model.AddressRange) {
			p.object("", func() {
				p.text("data", rangeText(e))
				if !p.stored {
					p.text("counter-packets", "0")
					p.text("counter-bytes", "0")
				}
			})
		})
	})
}

// expiration writes a time as nft does: "8m59s400ms".
func expiration(left time.Duration) string {
	left = left.Round(time.Millisecond)
	whole := left.Truncate(time.Second)
	text := ""
	for _, u := range []word[time.Duration]{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if n := whole / u.value; n > 0 {
			text += itoa(int(n)) + u.text
			whole -= n * u.value
		}
	}
	if ms := left % time.Second / time.Millisecond; ms > 0 || text == "" {
		text += itoa(int(ms)) + "ms"
	}
	return text
}
