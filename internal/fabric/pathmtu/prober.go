// Package pathmtu finds out whether the network between nodes carries packets as large as the
// nodes' interfaces say. Where it does not, tunnels are slow or lose what is large, and nothing
// else tells.
//
// A probe is a UDP packet of some size that may not be fragmented, to a port on which nobody
// listens: the other node's refusal says that it has arrived. One packet a second leaves the node
// at most, whatever the number of nodes.
package pathmtu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
)

const (
	pause = time.Second      // between packets, and for an answer
	rest  = 10 * time.Second // until a path is asked again, at the earliest
	again = 10 * time.Minute // the same, how much one carries that carries too little
)

// smallest is the size of packets that every network carries, by whether it is of IPv4.
var smallest = map[bool]int{true: 576, false: 1280}

// Prober measures paths. Its methods are safe for concurrent use.
type Prober struct {
	sockets            map[bool]*socket // by whether they are of IPv4
	pause, rest, again time.Duration

	mu    sync.Mutex
	known map[model.Path]result
}

// result is what was found out of a path.
type result struct {
	measured time.Time // when it was last asked how much it carries
	asked    time.Time // the same, or whether it carries all
	largest  int       // that arrives; 0: nothing is known
}

// narrow reports whether a path carries less than it should.
func (r result) narrow(path model.Path) bool { return r.largest > 0 && r.largest < path.MTU }

// Open opens the prober's sockets in the calling thread's network namespace. A family that the
// kernel does not have is not probed.
func Open() (*Prober, error) {
	p := &Prober{sockets: map[bool]*socket{}, pause: pause, rest: rest, again: again, known: map[model.Path]result{}}
	for _, is4 := range []bool{true, false} {
		s, err := dial(is4)
		if err != nil && !errors.Is(err, errNoFamily) {
			p.Close()
			return nil, fmt.Errorf("open socket to probe MTUs: %w", err)
		}
		if err == nil {
			p.sockets[is4] = s
		}
	}
	return p, nil
}

// Close releases the sockets; Run must have ended.
func (p *Prober) Close() {
	for _, s := range p.sockets {
		s.close()
	}
}

// Run asks the paths that there are, one after the other, until ctx ends: by one packet for each
// that is known, and by more where that is lost or another has come to be.
func (p *Prober) Run(ctx context.Context, paths func() []model.Path) {
	for ctx.Err() == nil {
		path, r, ok := p.next(paths())
		if !ok {
			wake.Sleep(ctx, p.pause)
			continue
		}
		r = p.ask(ctx, path, r)
		p.mu.Lock()
		if _, still := p.known[path]; still && ctx.Err() == nil {
			p.known[path] = r
		}
		p.mu.Unlock()
	}
}

// ask finds out what a path carries, of which that is known.
func (p *Prober) ask(ctx context.Context, path model.Path, known result) result {
	now := result{measured: known.measured, asked: time.Now(), largest: known.largest}
	if known.largest > 0 {
		if arrived, _ := p.send(ctx, path.To, path.MTU); arrived {
			now.largest = path.MTU
			return now
		}
	}
	if !known.narrow(path) || time.Since(known.measured) > p.again {
		now.largest, now.measured = p.measure(ctx, path), now.asked
	}
	return now
}

// next chooses the path that was asked longest ago, and forgets those that there are no more.
func (p *Prober) next(paths []model.Path) (path model.Path, r result, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := make(map[model.Path]result, len(paths))
	for _, path := range paths {
		if p.sockets[path.To.Is4()] != nil && path.MTU > smallest[path.To.Is4()] {
			known[path] = p.known[path]
		}
	}
	p.known = known
	for x, r := range known {
		if time.Since(r.asked) >= p.rest && (!ok || r.asked.Before(known[path].asked)) {
			path, ok = x, true
		}
	}
	return path, known[path], ok
}

// measure returns the size of the largest packets that arrive, 0 if that cannot be told.
func (p *Prober) measure(ctx context.Context, path model.Path) (largest int) {
	least, most := smallest[path.To.Is4()], path.MTU
	if arrived, _ := p.send(ctx, path.To, least); !arrived {
		return 0 // it is down, or a firewall keeps its refusals
	}
	guess := 0
	for range 3 { // packets get lost for other reasons, too
		arrived, said := p.send(ctx, path.To, most)
		if arrived {
			return most
		}
		guess = cmp.Or(said, guess)
	}
	for most-least > 1 && ctx.Err() == nil {
		size := (least + most) / 2
		if guess > least && guess < most {
			size, guess = guess, 0
			if arrived, _ := p.send(ctx, path.To, size+1); !arrived {
				most = size + 1
			}
		}
		if arrived, _ := p.send(ctx, path.To, size); arrived {
			least = size
		} else {
			most = size
		}
	}
	return least
}

// send sends a packet of a size and reports whether it has arrived; said is the size that a router
// says to be possible, 0 if none does.
func (p *Prober) send(ctx context.Context, to netip.Addr, size int) (arrived bool, said int) {
	next := time.Now().Add(p.pause)
	defer func() { wake.Sleep(ctx, time.Until(next)) }()
	return p.sockets[to.Is4()].probe(to, size, next)
}

// Missing says by how many bytes the paths to addresses carry less than the interface of this node
// says.
func (p *Prober) Missing() map[netip.Addr]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	missing := map[netip.Addr]int{}
	for path, r := range p.known {
		if r.narrow(path) {
			missing[path.To] = path.MTU - r.largest
		}
	}
	return missing
}

// Issues names the paths that do not carry what the interface of this node says.
func (p *Prober) Issues() (list []model.Issue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for path, r := range p.known {
		if r.narrow(path) {
			list = append(list, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: path.Node}}.Issue(fmt.Sprintf(
				"packets of %d bytes, the MTU of %s on this node, do not reach its address %s, those of %d do: large packets between pods are lost or slow; "+
					"set the MTU of %s to %d on this node and the other, or mend the network between", path.MTU, path.Device, path.To, r.largest, path.Device, r.largest)))
		}
	}
	slices.SortFunc(list, model.Issue.Compare)
	return list
}
