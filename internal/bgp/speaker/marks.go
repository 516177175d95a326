package speaker

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"sluice.dev/sluice/internal/bgp"
)

// marks tell the routes of the server apart by what is said with them: a route carries, as a
// community of the reserved range 0:0 to 0:65535 that no peer ever sees, the number of its saying,
// and the export policy puts what the number stands for in its place, peer by peer. So a route is
// told to the server once, whatever peers get with it.
type marks struct {
	byKey map[string]uint32
	known map[uint32]*saying
	next  uint32
}

func newMarks() marks { return marks{byKey: map[string]uint32{}, known: map[uint32]*saying{}} }

var errTooMany = errors.New("more than 65535 different announcements")

// of returns the mark of what a route's announcements say, 0 for nothing to all.
func (m *marks) of(r *bgp.Route) (uint32, error) {
	y, err := sayingOf(r)
	if err != nil || y.plain() {
		return 0, err
	}
	if mark, ok := m.byKey[y.key]; ok {
		return mark, nil
	}
	if len(m.known) == math.MaxUint16 {
		return 0, errTooMany
	}
	for m.next = m.next%math.MaxUint16 + 1; m.known[m.next] != nil; m.next = m.next%math.MaxUint16 + 1 {
	}
	m.byKey[y.key], m.known[m.next] = m.next, y
	return m.next, nil
}

// keep forgets the marks that no route has, and reports whether there were any.
func (m *marks) keep(used map[uint32]bool) (forgot bool) {
	for mark, y := range m.known {
		if !used[mark] {
			delete(m.known, mark)
			delete(m.byKey, y.key)
			forgot = true
		}
	}
	return forgot
}

// community reads a standard community: two numbers, one, or a well-known name.
func community(text string) (string, error) {
	name := strings.ReplaceAll(strings.ToLower(text), "_", "-")
	if value, ok := gobgp.WellKnownCommunityValueMap[name]; ok {
		return strconv.FormatUint(uint64(value), 10), nil
	}
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return strconv.FormatUint(n, 10), nil
	}
	high, low, _ := strings.Cut(text, ":")
	h, errH := strconv.ParseUint(high, 10, 16)
	l, errL := strconv.ParseUint(low, 10, 16)
	if errH != nil || errL != nil {
		return "", fmt.Errorf("%s is no community, as 64500:1, large:64500:1:2 and no-export are", text)
	}
	return strconv.FormatUint(h<<16|l, 10), nil
}
