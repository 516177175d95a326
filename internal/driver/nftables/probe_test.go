package nftables

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/probe"
)

// The kernels on which the tests run have all that is needed.
func TestProbe(t *testing.T) {
	t.Parallel()
	ns := testNS(t)
	for _, policy := range []bool{false, true} {
		if err := openIn(t, ns, Options{Options: driver.Options{Policy: policy}}).Probe(t.Context()); err != nil {
			t.Errorf("policy %t: %v", policy, err)
		}
	}
	for _, r := range slices.Concat(Requirements, PolicyRequirements) {
		if err := ns.Do(func() error { return r.Check(t.Context()) }); err != nil {
			t.Errorf("%s: %v", r.Name, err)
		}
	}
}

// A kernel that does not know an expression says so, and the requirement says what is needed. It
// changes the requirements, so it is not beside the tests that ask for them.
func TestProbeNamesWhatIsMissing(t *testing.T) {
	ns := testNS(t)
	unknown := requirements([]ruleset.Requirement{{Name: "picking by moon", Since: "9.9", Modules: []string{"nft_moon"}, Fill: func(p *ruleset.Ruleset) {
		moon := nft.NewRule().Append(nft.Expression{Name: "moon", Data: func(*attr.Attrs) {}})
		p.Chains = []nft.Chain{{Name: "base", Hook: nft.FilterHook(unix.NF_INET_FORWARD, 0), Rules: []nft.Rule{moon}}}
	}}})[0]
	err := ns.Do(func() error { return unknown.Met(t.Context()) })
	if !errors.Is(err, probe.ErrNotSupported) || !strings.Contains(err.Error(), "picking by moon") || !strings.Contains(err.Error(), "needs Linux 9.9 with nft_moon") {
		t.Errorf("%v, want what is missing and what has it", err)
	}

	Requirements = append(Requirements, unknown)
	t.Cleanup(func() { Requirements = Requirements[:len(Requirements)-1] })
	d := openIn(t, ns, Options{})
	d.Refuse(func(Message) error { return unix.ENOENT })
	err = d.Probe(t.Context())
	if !errors.Is(err, probe.ErrNotSupported) || !strings.Contains(err.Error(), "picking by moon") || strings.Contains(err.Error(), "masquerade") {
		t.Errorf("%v, want the requirement that is not met alone", err)
	}

	Requirements = Requirements[:len(Requirements)-1]
	err = d.Probe(t.Context())
	Requirements = append(Requirements, unknown)
	if !errors.Is(err, probe.ErrNotSupported) || !strings.Contains(err.Error(), "Linux 6.1") {
		t.Errorf("%v, want the version that is known to do", err)
	}

	d.Refuse(func(Message) error { return unix.EPERM })
	if err := d.Probe(t.Context()); !errors.Is(err, unix.EPERM) || errors.Is(err, probe.ErrNotSupported) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("%v, want the capability", err)
	}
}
