package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/kernel/nft"
)

// way is how packets with the mark become the node's own, in one family.
type way struct {
	rule  *netlink.Rule
	route *netlink.Route
}

func ways() (all []way) {
	mask := uint32(toProxy)
	for family, all4 := range map[int]net.IP{unix.AF_INET: net.IPv4zero.To4(), unix.AF_INET6: net.IPv6zero} {
		rule := netlink.NewRule()
		rule.Family, rule.Mark, rule.Mask, rule.Table, rule.Priority = family, toProxy, &mask, RouteTable, RouteTable
		const loopback = 1 // in every namespace
		all = append(all, way{rule, &netlink.Route{
			Family: family, LinkIndex: loopback, Table: RouteTable, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
			Dst: &net.IPNet{IP: all4, Mask: net.CIDRMask(0, 8*len(all4))},
		}})
	}
	return all
}

var familyNames = map[int]string{unix.AF_INET: "IPv4", unix.AF_INET6: "IPv6"}

// missing says what is not there of the table and the way to the proxy.
func (r *redirect) missing() (lines []string, err error) {
	if !r.built {
		lines = append(lines, "create table inet "+TableName)
	}
	for _, w := range ways() {
		rules, err := r.route.RuleListFiltered(w.rule.Family, w.rule, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PRIORITY|netlink.RT_FILTER_MARK|netlink.RT_FILTER_MASK)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return nil, fmt.Errorf("list routing rules: %w", err)
		}
		routes, err := r.route.RouteListFiltered(w.route.Family, w.route, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE)
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		if len(rules) == 0 || len(routes) == 0 {
			lines = append(lines, fmt.Sprintf("route %s with mark %#x by table %d", familyNames[w.rule.Family], toProxy, RouteTable))
		}
	}
	return lines, nil
}

// addWays adds what is missing of the way to the proxy.
func (r *redirect) addWays() error {
	for _, w := range ways() {
		if err := r.route.RuleAdd(w.rule); err != nil && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EAFNOSUPPORT) {
			return fmt.Errorf("add routing rule: %w", err)
		}
		if err := r.route.RouteReplace(w.route); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
			return fmt.Errorf("add route of table %d: %w", RouteTable, err)
		}
	}
	return nil
}

// purge removes the table and the way to the proxy, unless they are of another process.
func (r *redirect) purge() error {
	if r.closed {
		return nil // the table has gone
	}
	var err error
	if !r.built {
		there, err := r.sock.ReadFlags(context.Background(), TableName)
		if err != nil {
			return fmt.Errorf("read table %s: %w", TableName, err)
		}
		if there != nil {
			return fmt.Errorf("%w: table %s", driver.ErrBusy, TableName)
		}
	}
	if r.built {
		b := nft.NewBatch(TableName)
		b.DeleteTable()
		_, err = b.Send(r.sock)
		r.built = false
	}
	for _, w := range ways() {
		for _, remove := range []error{r.route.RouteDel(w.route), r.route.RuleDel(w.rule)} {
			if remove != nil && !errors.Is(remove, unix.ESRCH) && !errors.Is(remove, unix.ENOENT) && !errors.Is(remove, unix.EAFNOSUPPORT) {
				err = errors.Join(err, fmt.Errorf("remove the way to the proxy: %w", remove))
			}
		}
	}
	return err
}

// close closes the sockets; the table goes with them.
func (r *redirect) close() error {
	r.closed = true
	r.route.Close()
	return r.sock.Close()
}
