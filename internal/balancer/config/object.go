package config

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/balancer/health"
	"sluice.dev/sluice/internal/model"
)

// The objects of a document. Once they are part of it they never change: a change works on clones.

// identity is what all objects have.
type identity struct {
	name  string
	order uint64 // of its making, in which objects are printed
}

func (i *identity) id() *identity { return i }

// named is an object of a document, by pointer; nil: none.
type named[O any] interface {
	comparable
	id() *identity
	clone() O
}

// farm is a virtual service as it was configured.
type farm struct {
	identity
	given model.Farm // what is configured as the model has it; the rest of it follows
	responseTTL,
	persistTTL,
	limitsTTL uint32 // seconds
	log          logPlaces
	prefix       map[string]string // of log messages, by attribute; those that are not the default
	state        model.BackendState
	verdict      verdict
	intraConnect bool

	check        *health.Check
	keepDown     bool // all-down is "keep"
	slowStart    uint32
	iface, oface string // interfaces that were named

	addresses []string
	backends  []*backend
	policies  []string
	sessions  []session

	base   *model.Farm // what it comes to while all checks succeed; set when it is checked
	aside  string      // why it is not served; empty: it is
	stored []byte      // as the state file has it; nil: not yet
}

func newFarm(name string) *farm {
	limits := model.FarmLimits{ReportRate: perSecond, New: perSecond, RST: perSecond}
	return &farm{
		identity: identity{name: name}, given: model.Farm{Limits: limits}, responseTTL: 60, persistTTL: 60, limitsTTL: 120, verdict: everyVerdict,
	}
}

func (f *farm) clone() *farm {
	c := *f
	c.prefix = maps.Clone(f.prefix)
	c.addresses = slices.Clone(f.addresses)
	c.backends = slices.Clone(f.backends)
	c.policies = slices.Clone(f.policies)
	c.sessions = slices.Clone(f.sessions)
	c.base, c.aside, c.stored = nil, "", nil
	return &c
}

// logs reports whether the farm has its lists log what they drop.
func (f *farm) logs() bool { return f != nil && f.verdict&logVerdict != 0 }

// sameIndex reports whether the indexes have the same of two versions of a farm; nil: none.
func (f *farm) sameIndex(o *farm) bool {
	return f != nil && o != nil && f.logs() == o.logs() && slices.Equal(f.addresses, o.addresses) && slices.Equal(f.policies, o.policies) &&
		slices.EqualFunc(f.backends, o.backends, func(a, b *backend) bool { return a.Mark == b.Mark })
}

// find returns where a backend is; -1: there is none of the name.
func (f *farm) find(name string) int {
	return slices.IndexFunc(f.backends, func(b *backend) bool { return b.Name == name })
}

// backend is one server of a farm. A change replaces it in its farm by a clone.
type backend struct {
	model.FarmBackend      // its Addr is invalid if none was given
	marked            bool // the mark was given; otherwise it is the lowest that was free
	prefix            map[string]string
	unchecked         bool // the farm's check is not made of it
}

func newBackend(name string) *backend {
	return &backend{FarmBackend: model.FarmBackend{Name: name, Weight: 1, Priority: 1}}
}

func (b *backend) clone() *backend {
	c := *b
	c.prefix = maps.Clone(b.prefix)
	return &c
}

// address is a place where clients find farms.
type address struct {
	identity
	family   family
	addr     netip.Addr // invalid: any
	ports    string     // as given
	spans    []model.PortSpan
	protocol protocol
	verdict  verdict
	prefix   map[string]string
	policies []string

	base   *model.Farm // what it comes to by itself: nil while a farm uses it, or without policies
	stored []byte
}

func newAddress(name string) *address {
	return &address{identity: identity{name: name}, verdict: everyVerdict}
}

func (a *address) clone() *address {
	c := *a
	c.prefix = maps.Clone(a.prefix)
	c.policies = slices.Clone(a.policies)
	c.base, c.stored = nil, nil
	return &c
}

// policy is a black or white list.
type policy struct {
	identity
	allow    bool
	family   family
	out      bool   // route is "out", which has no effect
	timeout  uint32 // has no effect
	prefix   map[string]string
	elements []model.AddressRange // sorted, apart from each other
	feed     *feed

	base   *model.FarmList
	sole   string // the farm that base was made for, if just one uses it
	stored []byte
}

func newPolicy(name string) *policy { return &policy{identity: identity{name: name}} }

// clone shares the elements, which are never changed in place.
func (p *policy) clone() *policy {
	c := *p
	c.prefix = maps.Clone(p.prefix)
	c.base, c.stored = nil, nil
	return &c
}

// session is a client of a farm whose backend is given.
type session struct {
	client     string // as the farm's persistence has it
	backend    string
	expiration string // of one that the kernel remembers
}

// feed is where the elements of a policy come from, again and again: one of file and url.
type feed struct {
	file, url string
	interval  time.Duration
	begun     bool // it was read as the document was loaded
}
