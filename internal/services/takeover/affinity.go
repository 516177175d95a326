package takeover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"

	wire "sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/xtables"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Remembered returns where kube-proxy has sent the clients of services with session affinity, in
// the calling thread's network namespace. What can't be read is told by the error, and left out.
//
// In nftables mode each endpoint has a set of its clients. In iptables mode each has a list of the
// match "recent"; that tells when a client was seen in the kernel's own count of time, so that it
// is not known how long a client has been away.
func Remembered(ctx context.Context) ([]state.Remembered, error) {
	sets, err := fromSets()
	lists, listErr := fromLists(ctx)
	return append(sets, lists...), errors.Join(err, listErr)
}

// affinityName matches the names of sets of clients,
// "affinity-HASH-namespace/service/protocol/port__address/port".
var affinityName = regexp.MustCompile(`^affinity-[^-]*-([^/]*)/([^/]*)/([^/]*)/([^/]*?)__(.*)/([^/]*)$`)

func fromSets() ([]state.Remembered, error) {
	conn, err := connect()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.CloseLasting() }()
	var found []state.Remembered
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	for _, t := range tables {
		if t.Name != proxyTable {
			continue
		}
		more, err := fromTable(conn, t)
		found = append(found, more...)
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

func fromTable(conn *nftables.Conn, table *nftables.Table) ([]state.Remembered, error) {
	sets, err := conn.GetSets(table)
	if err != nil {
		return nil, fmt.Errorf("list sets of table %s: %w", table.Name, err)
	}
	var found []state.Remembered
	for _, s := range sets {
		r, ok := parseSetName(s.Name)
		if !ok {
			continue
		}
		elements, err := conn.GetSetElements(s)
		if err != nil {
			return found, fmt.Errorf("list elements of %s: %w", s.Name, err)
		}
		for _, e := range elements {
			if r.Client, ok = netip.AddrFromSlice(e.Key); ok {
				r.Left = e.Expires
				found = append(found, r)
			}
		}
	}
	return found, nil
}

// parseSetName reads of which service port and backend a set of clients is.
func parseSetName(name string) (r state.Remembered, ok bool) {
	parts := affinityName.FindStringSubmatch(name)
	if parts == nil {
		return r, false
	}
	// A colon can't be in a name of nftables: the addresses of IPv6 have dots in its place.
	a, err := netip.ParseAddr(parts[5])
	if err != nil {
		a, err = netip.ParseAddr(strings.ReplaceAll(parts[5], ".", ":"))
	}
	number, portErr := strconv.ParseUint(parts[6], 10, 16)
	r = state.Remembered{
		Service: model.Name{Namespace: parts[1], Name: parts[2]}, Port: parts[4], Protocol: protocols[parts[3]],
		Backend: netip.AddrPortFrom(a, uint16(number)),
	}
	return r, err == nil && portErr == nil && r.Protocol != 0
}

// recentLists is where the match "recent" shows its lists, each under the name of an endpoint's
// chain.
const recentLists = "/proc/thread-self/net/xt_recent"

func fromLists(ctx context.Context) ([]state.Remembered, error) {
	files, err := filepath.Glob(recentLists + "/KUBE-SEP-*")
	if err != nil || len(files) == 0 {
		return nil, err
	}
	chains, err := endpointChains(ctx)
	if err != nil {
		return nil, err
	}
	// A client may be in the lists of several endpoints; it is at that where it was seen last.
	type client struct {
		service, addr string
	}
	latest := map[client]uint64{}
	where := map[client]state.Remembered{}
	for _, file := range files {
		r, ok := chains[filepath.Base(file)]
		if !ok {
			continue
		}
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read clients of an endpoint: %w", err)
		}
		for lines := bufio.NewScanner(strings.NewReader(string(b))); lines.Scan(); {
			addr, seen, ok := parseRecent(lines.Text())
			key := client{r.Service.String() + ":" + r.Port, addr.String()}
			if ok && seen >= latest[key] {
				r.Client = addr
				latest[key], where[key] = seen, r
			}
		}
	}
	return slices.Collect(maps.Values(where)), nil
}

// parseRecent reads a line "src=10.0.0.1 ttl: 64 last_seen: 4295012345 oldest_pkt: 1 4295012345".
func parseRecent(line string) (client netip.Addr, seen uint64, ok bool) {
	fields := strings.Fields(line)
	for i, f := range fields {
		if src, is := strings.CutPrefix(f, "src="); is {
			client, _ = netip.ParseAddr(src)
		}
		if f == "last_seen:" && i+1 < len(fields) {
			seen, _ = strconv.ParseUint(fields[i+1], 10, 64)
		}
	}
	return client.Unmap(), seen, client.IsValid()
}

// endpointChains are the endpoints of the chains KUBE-SEP-…, by the chain's name, in either back
// end of iptables.
func endpointChains(ctx context.Context) (map[string]state.Remembered, error) {
	chains := map[string]state.Remembered{}
	families, err := xtables.LegacyFamilies()
	if err != nil {
		return nil, fmt.Errorf("list tables of iptables-legacy: %w", err)
	}
	for _, f := range families {
		if !slices.Contains(f.Tables, "nat") {
			continue
		}
		saved, err := savedTable(ctx, f, "nat")
		if err != nil {
			return nil, err
		}
		for _, c := range saved {
			for _, rule := range c.Rules {
				parseRule(rule, f.Family == "ip").addEndpoint(c.Name, chains)
			}
		}
	}
	return chains, fromNftChains(chains)
}

func fromNftChains(chains map[string]state.Remembered) error {
	conn, err := connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseLasting() }()
	all, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, c := range all {
		if c.Table.Name != "nat" || !strings.HasPrefix(c.Name, endpointPrefix) {
			continue
		}
		rules, err := wire.ForeignRules(c.Table, c.Name)
		if err != nil {
			return fmt.Errorf("list rules of chain %s: %w", c.Name, err)
		}
		for _, rule := range rules {
			r := readRule(rule)
			r.readComment(rule)
			r.addEndpoint(c.Name, chains)
		}
	}
	return nil
}

// endpointPrefix begins the names of the chains of endpoints.
const endpointPrefix = "KUBE-SEP-"

// addEndpoint notes what a rule of a chain says of its endpoint, if it does.
func (x xrule) addEndpoint(chain string, chains map[string]state.Remembered) {
	if !x.dnat.IsValid() || x.protocol == 0 || !strings.HasPrefix(chain, endpointPrefix) {
		return
	}
	r := state.Remembered{Protocol: x.protocol, Backend: x.dnat}
	name, port, _ := strings.Cut(x.comment, ":")
	if namespace, service, ok := strings.Cut(name, "/"); ok {
		r.Service, r.Port = model.Name{Namespace: namespace, Name: service}, port
	}
	chains[chain] = r
}
