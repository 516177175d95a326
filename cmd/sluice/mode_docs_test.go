package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/driver"
)

var updateModes = flag.Bool("update-modes", false, "write the table of docs/modes.md")

// The table of docs/modes.md says what the drivers of all modes say of themselves.
func TestModesPage(t *testing.T) {
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
	const path, begin, end = "../../docs/modes.md", "<!-- the drivers' capabilities -->\n\n", "\n<!-- end -->"
	text := read(t, path)
	before, rest, found := strings.Cut(text, begin)
	table, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no table between its two marks", path)
	}
	if *updateModes {
		if err := os.WriteFile(path, []byte(before+begin+b.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if table != b.String() {
		t.Errorf("the table of %s is not what the drivers say (go test ./cmd/sluice -run TestModesPage -update-modes):\n%s", path, b.String())
	}
}
