package main

import (
	"fmt"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/test/pagetest"
)

// The table of docs/modes.md says what the drivers of all modes say of themselves.
func TestModesPage(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	order := []string{"nftables", "ipvs", "iptables", "userspace"}
	can := map[string]driver.Capability{}
	err := ns.Do(func() error {
		for _, name := range order {
			d, err := (&modeFlags{}).openDriver(findMode(name), driver.Options{Policy: true})
			if err != nil {
				return err
			}
			can[name] = d.Capabilities().Can
			if err := d.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s |\n| --- |%s\n", strings.Join(order, " | "), strings.Repeat(" --- |", len(order)))
	for of := driver.Services; of <= driver.All; of <<= 1 {
		if of&(driver.Fabric|driver.Farms) != 0 { // whatever the mode
			continue
		}
		fmt.Fprintf(&b, "| %s |", of)
		for _, name := range order {
			fmt.Fprintf(&b, " %s |", map[bool]string{true: "yes", false: "–"}[can[name]&of != 0])
		}
		fmt.Fprintln(&b)
	}
	pagetest.Check(t, "../../docs/modes.md", "the drivers' capabilities", b.String())
}
