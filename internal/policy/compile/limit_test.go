package compile

import (
	"fmt"
	"iter"
	"os"
	"slices"
	"strconv"
	"testing"

	"sluice.dev/sluice/internal/lib/fair"
	"sluice.dev/sluice/internal/policy/compile/objects"
	"sluice.dev/sluice/internal/policy/compile/sets"
	"sluice.dev/sluice/internal/store"
)

// seeds are as many as the environment asks for.
func seeds(from, n uint64) (first, after uint64) {
	if text := os.Getenv("SEEDS"); text != "" {
		n, _ = strconv.ParseUint(text, 10, 64)
	}
	if text := os.Getenv("FIRST"); text != "" {
		from, _ = strconv.ParseUint(text, 10, 64)
	}
	return from, from + n
}

// counts checks what is counted against the objects themselves.
func counts(t testing.TB, c *Compiler) {
	t.Helper()
	sizes := func(matches func(*objects.Item) bool) (n int) {
		for _, it := range c.objects.Pods {
			if matches(it) {
				n += it.Size()
			}
		}
		for _, it := range c.objects.Sets {
			if matches(it) {
				n += it.Size()
			}
		}
		for _, it := range c.objects.Hosts {
			if matches(it) {
				n += it.Size()
			}
		}
		return n
	}
	if n := sizes(func(*objects.Item) bool { return true }); n != c.objects.Size {
		t.Errorf("size is %d, want %d", c.objects.Size, n)
	}
	for p := range c.variants.all {
		if p.progress == filled && (len(p.tallies) > 0 || p.ready != len(p.Groups)) {
			t.Errorf("a filled variant of %s has %d tallies", p.of.obj.Key, len(p.tallies))
		}
		if p.progress >= refusedAlone && (len(p.Groups) > 0 || len(p.Rules.Resolve()) > 0) {
			t.Errorf("a refused variant of %s holds something", p.of.obj.Key)
		}
		if !p.progress.settled() && !slices.Contains(c.variants.queue, p) {
			t.Errorf("a variant of %s is neither settled nor in the queue", p.of.obj.Key)
		}
	}
	for i, p := range c.variants.queue {
		if slices.Contains(c.variants.queue[:i], p) {
			t.Errorf("a variant of %s is twice in the queue", p.of.obj.Key)
		}
	}
}

// bounded checks what must hold of limits once nothing waits.
func bounded(t testing.TB, c *Compiler) {
	t.Helper()
	if c.sets.Total() > c.variants.limits.Together.Most {
		t.Errorf("%d are selected together, more than %d", c.sets.Total(), c.variants.limits.Together.Most)
	}
	known, total := map[string]bool{}, 0
	turns := fair.Turns(c.variants.counted(), (*variant).Namespace, func(p *variant) iter.Seq2[string, int] { return p.Selections }, (*variant).Compare)
	for _, p := range turns {
		n, more := p.selected(), 0
		for key, size := range p.Selections {
			if !known[key] {
				more += size
			}
		}
		switch p.progress {
		case filled:
			if n > c.variants.limits.Alone.Most {
				t.Errorf("%s selects %d", p.of.obj.Key, n)
			}
			for key := range p.Selections {
				known[key] = true
			}
			total += more
		case refusedAlone:
			if n <= c.variants.limits.Alone.Again {
				t.Errorf("%s is refused and selects %d", p.of.obj.Key, n)
			}
		case refusedTogether:
			if total+more <= c.variants.limits.Together.Again {
				t.Errorf("%s is refused and all come to %d with it", p.of.obj.Key, total+more)
			}
		default:
			t.Errorf("%s is not settled", p.of.obj.Key)
		}
	}
	if total != c.sets.Total() {
		t.Errorf("variants come to %d, groups to %d", total, c.sets.Total())
	}
}

func TestLimitsHold(t *testing.T) {
	first, after := seeds(0, 100)
	for seed := first; seed < after; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { reviewBounds(t, seed) })
	}
}

func reviewBounds(t *testing.T, seed uint64) {
	w := newWorld(seed)
	h := newHistory(worldConfig, pickOne[uint32](w, crowded, sets.IDSpace))
	h.selected, h.together, h.again = pickOne(w, 0, 4, 10, 70), pickOne(w, 0, 5, 10, 30), pickOne(w, 0, 1, 3, 8)
	h.room = pickOne(w, 0, 1, 5, 50, 500)
	for range 40 {
		var batch []store.Event
		for range 1 + w.IntN(4) {
			batch = append(batch, w.event())
		}
		if w.chance(10) {
			h.links = w.newLinks()
		}
		h.apply(t, batch...)
		cautiously(t, h.compiler)
		counts(t, h.compiler)
		if w.chance(20) {
			h.finish(t)
			counts(t, h.compiler)
			bounded(t, h.compiler)
			if h.again == 0 {
				same(t, h.compiler, h.fresh())
				complete(t, h.compiler)
			}
			sound(t, h.compiler.Policy())
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// Undoing every step in slices leaves nothing behind.
func TestUndoInSlices(t *testing.T) {
	first, after := seeds(0, 60)
	for seed := first; seed < after; seed++ {
		w := newWorld(seed)
		h := newHistory(Config{Node: "here"}, crowded)
		h.selected, h.together, h.again = pickOne(w, 0, 4, 70), pickOne(w, 0, 10, 30), pickOne(w, 0, 1, 4)
		h.room = pickOne(w, 1, 5, 50, 500)
		current := map[string]store.Event{}
		var undo []store.Event
		for range 40 {
			e := w.event()
			key := fmt.Sprint(e.Kind, e.Name)
			back, ok := current[key]
			if !ok {
				back = store.Event{Kind: e.Kind, Name: e.Name}
			}
			undo = append(undo, back)
			current[key] = e
			h.apply(t, e)
		}
		slices.Reverse(undo)
		for _, e := range undo {
			h.apply(t, e)
			counts(t, h.compiler)
		}
		h.finish(t)
		same(t, h.compiler, newHistory(h.cfg, crowded).fresh())
		empty(t, h.compiler)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
