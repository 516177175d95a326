package ipvs

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// destinationKey is a destination of a virtual server.
type destinationKey struct {
	server state.FrontendKey
	at     netip.AddrPort
}

// Traffic returns what backends have got; of bytes, those that come through this machine. It is
// safe for concurrent use.
func (d *Farms) Traffic(context.Context) (map[driver.Backend]driver.Traffic, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[driver.Backend]driver.Traffic{}
	if d.state == nil {
		return all, nil
	}
	servers, err := d.conn.services()
	if err != nil {
		return nil, err
	}
	find := map[string]func(netip.AddrPort) int{}
	for _, s := range servers {
		f := d.state.Farms[d.fronts[s.key].farm]
		if f == nil || !d.conn.owns(s) {
			continue
		}
		if err := d.conn.destinations(s); err != nil {
			return nil, err
		}
		if find[f.Name] == nil {
			find[f.Name] = f.Finder()
		}
		for at, t := range s.traffic {
			if i := find[f.Name](at); i >= 0 {
				b := driver.Backend{Farm: f.Name, Name: f.Backends[i].Name}
				sum := all[b]
				sum.Chosen, sum.Active, sum.Bytes = sum.Chosen+t.connections, sum.Active+t.active, sum.Bytes+t.bytes
				all[b] = sum
				d.tally.Count(destinationKey{s.key, at}, b, driver.Counts{Times: t.connections, Bytes: t.bytes})
			}
		}
	}
	d.tally.End(d.state.Farms, func(b driver.Backend, _ *state.Farm, got driver.Counts) {
		sum := all[b]
		sum.TotalChosen, sum.TotalBytes = got.Times, got.Bytes
		all[b] = sum
	})
	return all, nil
}

// Sessions returns the clients that a farm remembers now. It is safe for concurrent use.
func (d *Farms) Sessions(_ context.Context, farm string) (sessions []model.LiveSession, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil || d.state.Farms[farm] == nil || d.state.Farms[farm].Persist == 0 {
		return nil, nil
	}
	f := d.state.Farms[farm]
	find := f.Finder()
	err = d.tuning.ns.Do(func() error {
		table, err := os.Open("/proc/thread-self/net/ip_vs_conn")
		if err != nil {
			return err
		}
		defer table.Close()
		return eachTemplate(table, func(k state.FrontendKey, s model.LiveSession, to netip.AddrPort) {
			if d.fronts[k].farm != farm {
				return
			}
			if i := find(to); i >= 0 {
				s.Backend = f.Backends[i].Name
			}
			sessions = append(sessions, s)
		})
	})
	return sessions, err
}

// eachTemplate yields the clients in the kernel's table of connections that stay on a destination:
// entries that stand for a client's connections have no port of it.
func eachTemplate(table io.Reader, yield func(state.FrontendKey, model.LiveSession, netip.AddrPort)) error {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		field := strings.Fields(lines.Text())
		if len(field) < 9 || field[2] != "0000" {
			continue
		}
		protocol, known := map[string]model.Protocol{"TCP": model.TCP, "UDP": model.UDP, "SCTP": model.SCTP}[field[0]]
		client, at, to := tableAddr(field[1]), tableAddr(field[3]), tableAddr(field[5])
		port, err := strconv.ParseUint(field[4], 16, 16)
		toPort, toErr := strconv.ParseUint(field[6], 16, 16)
		left, leftErr := strconv.Atoi(field[8])
		if errors.Join(err, toErr, leftErr) != nil || !known || !at.IsValid() {
			continue
		}
		var s model.LiveSession
		s.Client.SrcIP, s.Left = client, time.Duration(left)*time.Second
		yield(state.FrontendKey{Addr: at, Protocol: protocol, Port: uint16(port)}, s, netip.AddrPortFrom(to, uint16(toPort)))
	}
	return lines.Err()
}

// tableAddr reads an address of the table: eight hexadecimal digits, or one of IPv6 in full.
func tableAddr(text string) netip.Addr {
	if b, err := hex.DecodeString(text); err == nil {
		a, _ := netip.AddrFromSlice(b)
		return a
	}
	a, _ := netip.ParseAddr(text)
	return a
}

// Forget is what the balancer's API asks for. IPVS does not forget a client before its time.
func (d *Farms) Forget(_ context.Context, farm string, _ []model.FlowValues) error {
	return fmt.Errorf("IPVS forgets no single clients: farm %s remembers them until their time is over", farm)
}
