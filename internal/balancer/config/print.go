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
func (p *printer) list(key string, body func())   { p.within(key, '[', ']', body) }

// print writes an object: the attributes that nftlb has, what else belongs to the object, and the
// attributes that nftlb does not have.
func (o *object[T]) print(p *printer, t T, lists func()) {
	some := func(nftlbs bool) {
		for i := range o.attributes {
			if a := &o.attributes[i]; (a.nftlb != nil) == nftlbs && (a.shown == nil || a.shown(t)) {
				a.write(p, t)
			}
		}
	}
	p.object("", func() {
		some(true)
		lists()
		some(false)
	})
}

// store writes the attributes that are part of the state file: those that differ from a fresh
// object's.
func (o *object[T]) store(p *printer, t, fresh T) {
	for i := range o.attributes {
		if a := &o.attributes[i]; (a.shown == nil || a.shown(t)) && a.stored(t, fresh, o.Key) {
			a.write(p, t)
		}
	}
}

func (a *attribute[T]) write(p *printer, t T) {
	switch {
	case a.tree != nil:
		p.tree(a.name, a.tree(t))
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
		return a.tree != nil
	case a.shown != nil && !a.shown(fresh):
		return true
	}
	return a.print(t) != a.print(fresh)
}

func (p *printer) tree(key string, pairs []pair) {
	p.object(key, func() {
		for _, one := range pairs {
			if one.list == nil {
				p.text(one.key, one.text)
				continue
			}
			p.list(one.key, func() {
				for _, text := range one.list {
					p.text("", text)
				}
			})
		}
	})
}

func (p *printer) names(key string, names []string) {
	p.list(key, func() {
		for _, name := range names {
			p.object("", func() { p.text("name", name) })
		}
	})
}

// farmView is a farm as it is printed.
type farmView struct {
	*farm
	addresses []*addressFields
	effective *model.Farm
	reasons   map[string]string // of backends that a check found at fault
}

func (p *printer) farm(v *farmView) {
	f := &farmFields{farm: v.farm, level: model.Level(v.effective.Backends)}
	if len(v.addresses) > 0 {
		f.first = v.addresses[0]
	}
	farmTable.print(p, f, func() {
		p.list("addresses", func() {
			for _, a := range v.addresses {
				p.object("", func() {
					for _, attr := range addressTable.attributes {
						if inFarm[attr.name] {
							attr.write(p, a)
						}
					}
				})
			}
		})
		p.list("backends", func() { p.backends(v, f.level) })
		p.names("policies", v.policies)
		if len(v.sessions) > 0 {
			p.list("sessions", func() { p.sessions(v.sessions) })
		}
	})
}

func (p *printer) backends(v *farmView, level int) {
	next := 0
	for _, b := range v.backends {
		fields := &backendFields{backend: b, shows: "config_error", reason: v.reasons[b.name]}
		if b.addr.IsValid() {
			fields.shows = stateText(&v.effective.Backends[next], level)
			next++
		}
		backendTable.print(p, fields, func() {})
	}
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

func (p *printer) sessions(all []session) {
	for _, s := range all {
		p.object("", func() {
			p.text("client", s.client)
			p.text("backend", s.backend)
		})
	}
}

func (p *printer) address(a *addressFields) {
	addressTable.print(p, a, func() { p.names("policies", a.policies) })
}

func (p *printer) policy(v *policyFields) {
	policyTable.print(p, v, func() {
		p.list("elements", func() {
			for _, e := range v.elements {
				p.object("", func() {
					p.text("data", rangeText(e))
					p.text("counter-packets", "0")
					p.text("counter-bytes", "0")
				})
			}
		})
	})
}

func (p *printer) liveSession(f *farm, l model.LiveSession) {
	backend := "UNDEFINED"
	if f.find(l.Backend) >= 0 {
		backend = l.Backend
	}
	p.object("", func() {
		p.text("client", clientText(f.persistence, l.Client))
		p.text("backend", backend)
		p.text("expiration", expiration(l.Left))
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
