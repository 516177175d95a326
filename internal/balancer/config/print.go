package config

import (
	"bytes"
	"encoding/json"
	"strings"

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

// attributes writes those of an object which are printed. Of one that is stored, those that differ
// from a fresh object's are.
func attributes[T any](p *printer, table *object[T], t, fresh T) {
	for i := range table.attributes {
		a := &table.attributes[i]
		switch {
		case a.shown != nil && !a.shown(t), p.stored && !a.stored(t, fresh, table.key):
		case a.tree != nil:
			p.tree(a.name, a.tree(t))
		case a.print != nil:
			p.text(a.name, a.print(t))
		}
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
	p.object("", func() {
		f := &farmFields{farm: v.farm, level: model.Level(v.effective.Backends)}
		if len(v.addresses) > 0 {
			f.first = v.addresses[0]
		}
		attributesBefore(p, f)
		p.list("addresses", func() {
			for _, a := range v.addresses {
				p.object("", func() {
					for _, attr := range addressTable.attributes {
						if inFarm[attr.name] {
							p.text(attr.name, attr.print(a))
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
		extensions(p, f)
	})
}

// firstExtension is the first attribute of a farm that nftlb does not have.
var firstExtension = farmTable.index["health-check"]

func attributesBefore(p *printer, f *farmFields) {
	nftlbs := object[*farmFields]{attributes: farmTable.attributes[:firstExtension]}
	attributes(p, &nftlbs, f, nil)
}

func extensions(p *printer, f *farmFields) {
	own := object[*farmFields]{attributes: farmTable.attributes[firstExtension:]}
	attributes(p, &own, f, nil)
}

func (p *printer) backends(v *farmView, level int) {
	next := 0
	for _, b := range v.backends {
		fields := &backendFields{backend: b, shows: "config_error", reason: v.reasons[b.name]}
		if b.addr.IsValid() {
			fields.shows = stateText(&v.effective.Backends[next], level)
			next++
		}
		p.object("", func() { attributes(p, backendTable, fields, nil) })
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
	p.object("", func() {
		attributes(p, addressTable, a, nil)
		p.names("policies", a.policies)
	})
}

func (p *printer) policy(v *policyFields) {
	p.object("", func() {
		own := policyTable.index["feed"]
		attributes(p, &object[*policyFields]{attributes: policyTable.attributes[:own]}, v, nil)
		p.list("elements", func() {
			for _, e := range v.elements {
				p.object("", func() {
					p.text("data", rangeText(e))
					p.text("counter-packets", "0")
					p.text("counter-bytes", "0")
				})
			}
		})
		attributes(p, &object[*policyFields]{attributes: policyTable.attributes[own:]}, v, nil)
	})
}
