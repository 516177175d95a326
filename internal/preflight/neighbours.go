package preflight

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/model"
)

// Neighbours is the kernel's table of neighbours of a family, which all network namespaces of the
// machine share. What is permanent, as the far ends of tunnels are, does not count.
type Neighbours struct {
	IPv4 bool
	Most int // gc_thresh3
	Full int // how often, since the machine started, there was no room for another one
}

// ReadNeighbours reads the tables of the families that the kernel has. Only in the machine's first
// network namespace can they be read; elsewhere there are none.
func ReadNeighbours() (tables []Neighbours) {
	for _, is4 := range []bool{true, false} {
		t := Neighbours{IPv4: is4}
		var err error
		if t.Most, err = sysctl.Number(t.Sysctl()); err != nil {
			continue
		}
		b, _ := os.ReadFile("/proc/thread-self/net/stat/" + map[bool]string{true: "arp_cache", false: "ndisc_cache"}[is4])
		t.Full = tableFulls(string(b))
		tables = append(tables, t)
	}
	return tables
}

// Sysctl is the kernel parameter that limits it.
func (t Neighbours) Sysctl() string {
	return "net." + strings.ToLower(model.FamilyName(t.IPv4)) + ".neigh.default.gc_thresh3"
}

// tableFulls adds up the column table_fulls, which has a line for each CPU.
func tableFulls(stat string) (sum int) {
	column := -1
	for line := range strings.Lines(stat) {
		fields := strings.Fields(line)
		if column < 0 {
			if column = slices.Index(fields, "table_fulls"); column < 0 {
				return 0
			}
			continue
		}
		if len(fields) > column {
			n, _ := strconv.ParseUint(fields[column], 16, 32)
			sum += int(n)
		}
	}
	return sum
}

// Crowded says why the table may have no room for this many nodes, and what to do; "": it has room.
func (t Neighbours) Crowded(nodes int) (seen, do string) {
	if nodes <= t.Most {
		return "", ""
	}
	return fmt.Sprintf("there are %d nodes, and the kernel knows %d neighbours of %s at the most, in all network namespaces together: where more are on this node's subnets, packets to them are lost", nodes, t.Most, model.FamilyName(t.IPv4)),
		fmt.Sprintf("set %s to %d or more (sysctl -w, and in /etc/sysctl.d)", t.Sysctl(), 4*nodes)
}

// neighbours reports whether the kernel has room for the other nodes.
func neighbours(f *Facts) (results []Result) {
	const name = "neighbours"
	var room []string
	for _, t := range f.Neighbours {
		family := model.FamilyName(t.IPv4)
		seen, do := t.Crowded(f.Nodes)
		if seen == "" && t.Full > 0 {
			seen = fmt.Sprintf("the kernel's table of %s neighbours was full %s since the machine started: it has room for %d, of all network namespaces together", family, model.Count(t.Full, "time"), t.Most)
			do = fmt.Sprintf("unless that has passed, raise %s (sysctl -w, and in /etc/sysctl.d)", t.Sysctl())
		}
		if seen != "" {
			results = append(results, Result{name, Warn, seen, do})
		} else {
			room = append(room, fmt.Sprintf("%d of %s", t.Most, family))
		}
	}
	if len(results) == 0 && len(room) > 0 {
		return one(name, OK, "room for "+strings.Join(room, " and "), "")
	}
	return results
}
