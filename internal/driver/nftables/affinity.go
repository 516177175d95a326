package nftables

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/driver"
	"sluice.dev/sluice/internal/driver/nftables/ruleset"
	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/kernel/passes"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

var _ driver.Rememberer = (*Driver)(nil)

// forgetter removes what is remembered of clients whose backend is no longer one for them. The
// ruleset does so itself with the client's next packet; but not every client comes back, and
// whether a backend serves clients from outside is not looked at there.
//
// Where a map is nearly full, it forgets the oldest clients of the frontends that have most.
type forgetter struct {
	*passes.Passes[struct{}]
	reader *nft.Socket   // reads the maps while the driver works
	took   time.Duration // the last time; of the passes alone

	count     [2]atomic.Int64 // clients of IPv4 and IPv6 when it last looked
	forgotten atomic.Int64    // to make room
}

// forgetPause is the time between two readings of the maps after changes for which nobody waits,
// and readPause without any; reading shall not take more than one part of readShare of the time.
const (
	forgetPause = time.Second
	readPause   = 5 * time.Second
	readShare   = 50
)

// losesAffinity reports whether a client may be remembered on a backend that the
// change takes from it.
func losesAffinity(before, after *state.Frontend) bool {
	if before == nil || ruleset.AffinityTimeout(before) == 0 {
		return false
	}
	if after == nil || ruleset.AffinityTimeout(after) == 0 || after.LocalOnly && !before.LocalOnly {
		return true
	}
	lost := func(old, now []netip.AddrPort) bool {
		return slices.ContainsFunc(old, func(b netip.AddrPort) bool { return !state.Has(now, b) })
	}
	return lost(before.Backends, after.Backends) || lost(before.Local, after.Local)
}

// forgetAffinity is a pass.
func (d *Driver) forgetAffinity() (err error) {
	began := time.Now()
	for i, fp := range d.ruleset.Families {
		err = errors.Join(err, d.forgetFamily(i, fp))
	}
	d.forget.took = time.Since(began)
	if err != nil && d.life.Err() == nil {
		d.log.Warn("clients with session affinity could not be forgotten", "error", err)
	}
	return err
}

// lookAfterAffinity has the maps read from time to time, as they may be nearly full.
func (d *Driver) lookAfterAffinity() {
	for wake.Sleep(d.life, readPause) {
		d.forget.Suggest(struct{}{})
	}
}

// Settle implements driver.Settler.
func (d *Driver) Settle(ctx context.Context) error {
	return d.forget.Wait(ctx)
}

// forgetFamily reads the family's map, deletes what is no longer right, and makes room if it is
// nearly full.
func (d *Driver) forgetFamily(i int, fp *ruleset.Family) error {
	var wrong []nft.Element
	counts := map[state.FrontendKey]int{}
	all := 0
	err := d.readRemembered(fp, func(e *nft.Element) {
		all++
		_, k, _ := fp.Remembered(e)
		counts[k]++
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.state != nil && !remembersRight(d.state, fp, e) {
			wrong = append(wrong, *e)
		}
	})
	if err != nil {
		return err
	}
	d.forget.count[i].Store(int64(all))
	if err := table.Forget(wrong, deleteAtOnce, d.deleteElements); err != nil || all-len(wrong) <= int(fp.Affinity.Size)/4*3 {
		return err
	}
	return d.makeRoom(fp, counts)
}

// readRemembered yields what the family's map holds. What an interrupted reading leaves out is of
// the next one.
func (d *Driver) readRemembered(fp *ruleset.Family, f func(*nft.Element)) error {
	err := d.forget.reader.ReadSet(d.life, ruleset.TableName, fp.Affinity, func(e nft.Element) { f(&e) })
	if errors.Is(err, nft.ErrInterrupted) || errors.Is(err, unix.ENOENT) { // no table, no affinity
		return nil
	}
	return err
}

// makeRoom forgets the oldest clients of the frontends that have most, until the map is half full.
// A frontend that has no more than its share loses none.
func (d *Driver) makeRoom(fp *ruleset.Family, counts map[state.FrontendKey]int) error {
	share := fairShare(slices.Collect(maps.Values(counts)), int(fp.Affinity.Size)/2)
	byAge := map[state.FrontendKey][]client{}
	err := d.readRemembered(fp, func(e *nft.Element) {
		if _, k, _ := fp.Remembered(e); counts[k] > share && e.Life != nil {
			c := client{left: e.Life.Expires}
			copy(c.addr[:], e.Key[:])
			byAge[k] = append(byAge[k], c)
		}
	})
	if err != nil {
		return err
	}
	var gone, most int
	var of state.FrontendKey
	for k, clients := range byAge {
		slices.SortFunc(clients, func(a, b client) int { return cmp.Compare(a.left, b.left) })
		forgotten := clients[:max(0, len(clients)-share)]
		for chunk := range slices.Chunk(forgotten, deleteAtOnce) {
			elements := make([]nft.Element, len(chunk))
			for i, c := range chunk {
				elements[i] = fp.AffinityElement(c.addr[:fp.IP.Bits/8], k)
			}
			if err := table.Forget(elements, deleteAtOnce, d.deleteElements); err != nil {
				return err
			}
		}
		gone += len(forgotten)
		d.forget.forgotten.Add(int64(len(forgotten)))
		if len(clients) > most {
			most, of = len(clients), k
		}
	}
	d.log.Warn("session affinity: too many clients for the kernel's map; the oldest of the services that have most are balanced anew",
		"forgotten", gone, "frontends", len(byAge), "most", d.serviceOf(of), "frontend", of, "clients", most)
	return nil
}

// client is one that is remembered, and for how long still.
type client struct {
	addr [16]byte
	left time.Duration
}

func (d *Driver) serviceOf(k state.FrontendKey) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state == nil || d.state.Services.Frontends[k] == nil {
		return ""
	}
	return d.state.Services.Frontends[k].Service.String()
}

// fairShare is the most that each may have so that all together have no more than there is room
// for.
func fairShare(counts []int, room int) int {
	slices.Sort(counts)
	for i, n := range counts {
		if n >= room/(len(counts)-i) {
			return room / (len(counts) - i)
		}
		room -= n
	}
	return room
}

// deleteAtOnce is how many clients are forgotten in one transaction, which others wait for.
const deleteAtOnce = 200

// Remembered implements driver.Rememberer.
func (d *Driver) Remembered() driver.Remembered {
	return driver.Remembered{IPv4: int(d.forget.count[0].Load()), IPv6: int(d.forget.count[1].Load()),
		Most: ruleset.AffinitySize, Forgotten: int(d.forget.forgotten.Load())}
}

// deleteElements deletes elements of one set in a transaction of its own.
func (d *Driver) deleteElements(elements []nft.Element) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Delete(elements)
}

// remembersRight reports whether the state may send the client where the element of the map
// of affinity says.
func remembersRight(s *state.State, fp *ruleset.Family, e *nft.Element) bool {
	client, k, backend := fp.Remembered(e)
	f := s.Services.Frontends[k]
	if f == nil || ruleset.AffinityTimeout(f) == 0 {
		return false
	}
	if f.LocalOnly && !model.Within(client, s.Services.Settings.ClusterCIDRs) {
		// Outside, or the node itself, which then chooses again among all: that is no harm.
		return state.Has(f.Local, backend)
	}
	return state.Has(f.Backends, backend) || state.Has(f.Local, backend)
}
