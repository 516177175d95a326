package health

import "slices"

// kind is what a type of check is. One more is a constant, a line of kinds, and the function that
// makes the check.
type kind struct {
	name     string
	fields   []string // that it reads, beside those that all have
	needs    need
	validate func(Check) error    // of what no other type has; nil: nothing
	start    func(*loop, *target) // begins a check
	waits    bool                 // it blocks, and runs in a goroutine until it ends by itself
}

// need is what a check needs of a backend beside its address.
type need uint8

const (
	nothing need = iota
	aPort
	aURL // a port, and what is asked for there by HTTP
)

// kinds are in the order in which they are named.
var kinds = []kind{
	{name: TCP, fields: []string{"port", "send", "expect"}, needs: aPort, start: (*loop).dial},
	{name: HTTP, fields: []string{"port", "host", "path", "method", "status", "body"}, needs: aURL, validate: Check.validateRequest, start: (*loop).dial},
	{name: HTTPS, fields: []string{"port", "host", "path", "method", "status", "body", "insecure"}, needs: aURL, validate: Check.validateRequest,
		start: func(l *loop, t *target) { l.requests.start(t, get) }, waits: true},
	{name: ICMP, start: func(l *loop, t *target) { l.sockets.ping(t) }},
	{name: ARP, start: func(l *loop, t *target) { l.requests.start(t, l.resolve) }, waits: true},
	{name: GRPC, fields: []string{"port", "host", "service"}, needs: aPort, start: func(l *loop, t *target) { l.requests.start(t, call) }, waits: true},
	{name: UDP, fields: []string{"port", "send", "expect"}, needs: aPort, start: (*loop).dial},
	{name: Command, fields: []string{"port", "command"}, validate: Check.validateCommand,
		start: func(l *loop, t *target) { l.commands.start(t, execute) }, waits: true},
}

func (l *loop) dial(t *target) { l.sockets.dial(t) }

// Types are the types of checks.
func Types() (all []string) {
	for _, k := range kinds {
		all = append(all, k.name)
	}
	return all
}

// NeedsPort reports whether a type of check goes to a port.
func NeedsPort(name string) bool { return kindOf(name).needs != nothing }

// kindOf returns what a type is, the zero value if there is none of the name.
func kindOf(name string) (k kind) {
	if i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name }); i >= 0 {
		k = kinds[i]
	}
	return k
}
