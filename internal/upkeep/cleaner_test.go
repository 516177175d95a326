package upkeep

import (
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/internal/kernel/conntrack"
	"sluice.dev/sluice/internal/model"
)

// What is to be deleted in a hurry is not held up by what is not.
func TestCleanerPause(t *testing.T) {
	filter := func(p model.Protocol) []conntrack.Filter { return []conntrack.Filter{{Protocol: p}} }
	for name, c := range map[string]struct {
		todo cleaning
		want time.Duration
	}{
		"TCP and SCTP":   {cleaning{filters: append(filter(model.TCP), filter(model.SCTP)...)}, patientInterval},
		"UDP":            {cleaning{filters: append(filter(model.TCP), filter(model.UDP)...)}, passInterval},
		"a sweep":        {cleaning{sweep: true}, passInterval},
		"a lost address": {cleaning{lost: []netip.Addr{netip.IPv4Unspecified()}}, passInterval},
	} {
		if got := c.todo.pause(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
