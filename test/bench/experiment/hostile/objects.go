// Package hostile has the experiments whose names begin with hostile: legal objects at their
// extremes.
package hostile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/hostile"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
)

// Objects is the experiment hostile-objects.
var Objects = harness.Experiment{
	Name:  "hostile-objects",
	Title: "Legal objects at their extremes",
	How: "A real agent on a node with pods reads a folder to which batches of tenants' objects are added: all kinds that it reads, with each field at its extremes, drawn from a seed. Half of them are later changed into others; " +
		"now and then the agent is killed and started again, and at the end of each series all objects are removed. Meanwhile bystanders connect to a service that nothing happens to (a hundred times a second), " +
		"change the endpoint of another service and wait until packets follow, try what policy forbids, and ask the agent whether it is healthy. Other nodes have 10,000 pods, or as many as --pods says; some change with each batch. After each series `sluice plan` of a fresh process must find nothing to do. " +
		"If something fails, the bench looks for the fewest and smallest objects with which it still fails, on other testbeds, and reports them with the seed.",
	Run:    runObjects,
	Charts: noCharts,
}

const (
	takenObjects  = "objects taken"
	takenVersions = "versions of objects taken"
	slowestChange = "slowest change of a bystander's service"
	triedShut     = "connections tried that policy forbids"
)

// A series is so many batches. At its end all objects are removed.
const (
	hostileBatch  = 20
	hostileSeries = 5
)

func runObjects(ctx context.Context, r *harness.Run) (err error) {
	r.Options.Rounds, r.Result.Rounds = 1, 1
	t := &search{Run: r, objects: hostileObjects(r), count: r.Objects, found: map[string]int{}, kinds: map[string]int{}, faulty: map[string]int{}}
	if !r.Full() {
		t.objects.Most = 50_000
	}
	if t.count == 0 {
		t.count = 10_000
		if !r.Full() {
			t.count = 300
		}
	}
	defer func() { err = errors.Join(err, t.closeNode()) }()
	for done := 0; done < t.count; done += hostileBatch * hostileSeries {
		err := t.series(ctx, r.From+done, r.From+t.count)
		if ctx.Err() != nil { // the results so far count
			r.Stopped = true
			t.Note("Stopped after %d of %d objects; go on with --from %d.", t.taken, t.count, r.From+done)
			break
		}
		if err != nil {
			return err
		}
		t.Logf("%d of %d objects: slowest change %s, most memory %d MB, kinds of problems: %d", min(done+hostileBatch*hostileSeries, t.count), t.count, t.slowest.Round(time.Millisecond), t.heaviest>>20, len(t.found))
	}
	t.setGoals()
	return nil
}

// search tries the objects of a seed and looks for those that cause problems.
type search struct {
	*harness.Run
	objects hostile.Objects
	count   int
	node    *testNode // nil: there is none, or it had a problem

	found    map[string]int // how often each problem came, by problem.key
	kinds    map[string]int // the same by problem.kind
	taken    int            // objects
	versions int            // including those that objects were changed into
	slowest  time.Duration
	heaviest int // bytes
	served   int
	tried    int
	faulty   map[string]int // reasons for which the agent refused objects
}

func (t *search) closeNode() error {
	if t.node == nil {
		return nil
	}
	defer func() { t.node = nil }()
	return t.node.Close()
}

// series adds some batches of objects, those before end, to a testNode and removes all. The first
// problem ends the series and is minimised.
func (t *search) series(ctx context.Context, first, end int) (err error) {
	if t.node == nil {
		if t.node, err = newTestNode(ctx, t.Run); err != nil {
			return err
		}
	}
	var history []cluster.File // in the order in which they were added
	draw := rand.New(rand.NewPCG(t.objects.Seed, uint64(first)))
	for batch := range hostileSeries {
		from := first + batch*hostileBatch
		var files []cluster.File
		versions := 0
		for n := from; n < min(from+hostileBatch, end); n++ {
			files = append(files, t.objects.Draw(n, 0)...)
			versions++
		}
		for n := first; n < min(from, end); n++ { // half of the present objects change
			if draw.IntN(2) == 0 {
				files = append(files, t.objects.Draw(n, batch)...)
				versions++
			}
		}
		history = append(history, files...)
		all, err := t.apply(ctx, func() ([]problem, error) {
			if err := errors.Join(t.node.add(files), t.node.write(remotePods(t.Run).Change(from/hostileBatch))); err != nil || batch != hostileSeries/2 {
				return nil, err
			}
			return t.node.restart(ctx), nil
		})
		if err != nil {
			return err
		}
		t.taken, t.versions = t.taken+max(0, min(hostileBatch, end-from)), t.versions+versions
		if len(all) > 0 {
			return t.minimise(ctx, all, history)
		}
	}
	all, err := t.apply(ctx, func() ([]problem, error) {
		return nil, t.node.removeAll()
	})
	if err == nil && len(all) == 0 {
		all = t.node.compareWithPlan(ctx)
	}
	if err == nil && len(all) > 0 {
		err = t.minimise(ctx, all, history)
	}
	return err
}

// apply changes the testNode's objects and waits until they are in the kernel.
func (t *search) apply(ctx context.Context, do func() ([]problem, error)) ([]problem, error) {
	all, err := do()
	if err != nil || len(all) > 0 {
		return all, err
	}
	seen := t.node.settle(ctx)
	t.slowest, t.heaviest = max(t.slowest, seen.slowest), max(t.heaviest, seen.heaviest)
	t.served, t.tried = t.served+seen.served, t.tried+seen.tried
	for _, why := range seen.faults {
		t.faulty[numbers.ReplaceAllString(why, "N")]++
	}
	return seen.problems, ctx.Err()
}

// minimise looks for the fewest and smallest objects that cause the same problem, once for each
// problem.
func (t *search) minimise(ctx context.Context, all []problem, history []cluster.File) error {
	if err := errors.Join(ctx.Err(), t.closeNode()); err != nil { // an agent that is being stopped seems to have problems
		return err
	}
	for _, one := range all {
		t.Logf("%s: %.300s", one.kind, one.what)
		t.kinds[one.kind]++
		t.found[one.key()]++
	}
	worst := all[0]
	if t.found[worst.key()] > 1 || worst.kind == problemSlow && worst.took < 2*mostDelay {
		return nil // it is known, or the machine may be slow
	}
	began := time.Now()
	fails := func(files []cluster.File) bool {
		if ctx.Err() != nil || time.Since(began) > minimiseTimeout {
			return false
		}
		same := t.reproduces(ctx, files, worst)
		t.Logf("minimising %q: %d files of %d bytes: %t", worst.kind, len(files), bytesOf(files), same)
		return same
	}
	files := history
	result := "it did not occur on a testbed of its own; all objects so far are"
	if fails(files) {
		files = hostile.Fewer(files, fails)
		for i := range files {
			files[i] = hostile.Less(files[i], func(f cluster.File) bool {
				some := slices.Clone(files)
				some[i] = f
				return fails(some)
			})
		}
		result = "the smallest objects that cause it are"
	}
	if ctx.Err() != nil {
		result = "not reduced, as the run was stopped; all objects so far are"
	}
	file := fmt.Sprintf("hostile-problem-%d.json", len(t.found))
	t.Note("Seed %d: %s (%.500s); %s in %s, %d files of %d bytes: %.1500s", t.objects.Seed, worst.kind, worst.what, result, file, len(files), bytesOf(files), files[0].JSON)
	return os.WriteFile(filepath.Join(t.Out, file), listOf(files), 0o644)
}

// minimiseTimeout is how long minimise goes on; then it reports what it has found.
const minimiseTimeout = 3 * time.Minute

// reproduces adds files to a new testNode and reports whether they cause the same problem.
func (t *search) reproduces(ctx context.Context, files []cluster.File, one problem) bool {
	b, err := newTestNode(ctx, t.Run)
	if err != nil {
		return false
	}
	defer func() { _ = b.Close() }() // the next run removes what is left
	same := func(all []problem) bool {
		return slices.ContainsFunc(all, func(o problem) bool { return o.key() == one.key() && o.took >= one.took/2 })
	}
	if b.add(files) != nil {
		return false
	}
	if same(b.settle(ctx).problems) || b.write(remotePods(t.Run).Change(0)) == nil && same(b.settle(ctx).problems) || same(b.restart(ctx)) || same(b.settle(ctx).problems) {
		return true
	}
	return b.removeAll() == nil && (same(b.settle(ctx).problems) || same(b.compareWithPlan(ctx)))
}

func bytesOf(files []cluster.File) (sum int) {
	for _, f := range files {
		sum += len(f.JSON)
	}
	return sum
}

// listOf makes one List of many manifests.
func listOf(files []cluster.File) []byte {
	items := make([]json.RawMessage, len(files))
	for i, f := range files {
		items[i] = f.JSON
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		panic(err) // it was made of JSON
	}
	return append(text, '\n')
}

func (t *search) setGoals() {
	for _, m := range []struct {
		metric, unit string
		n            float64
	}{
		{takenObjects, "", float64(t.taken)}, {takenVersions, "", float64(t.versions)}, {slowestChange, "ms", float64(t.slowest.Milliseconds())},
		{harness.Resident, "MB", float64(t.heaviest) / 1e6}, {harness.Answered, "", float64(t.served)}, {triedShut, "", float64(t.tried)},
	} {
		t.Add(report.Measurement{Dataplane: peer.Sluice{}.Name(), Metric: m.metric, Unit: m.unit}, m.n)
	}
	for _, kind := range problemKinds {
		n := t.kinds[kind]
		t.Goal(fmt.Sprintf("%s hostile objects: %s", chart.Number(float64(t.taken)), kind), "never", fmt.Sprintf("%d times", n), n == 0)
	}
	reasons := slices.SortedFunc(maps.Keys(t.faulty), func(a, b string) int { return cmp.Or(t.faulty[b]-t.faulty[a], strings.Compare(a, b)) })
	for i, why := range reasons {
		if i == 12 {
			t.Note("Objects at fault for %d other reasons.", len(reasons)-i)
			break
		}
		t.Note("Objects at fault, %s times: %.250s.", chart.Number(float64(t.faulty[why])), why)
	}
}

// numbers matches addresses and counts, in which faults of one kind differ.
var numbers = regexp.MustCompile(`[0-9a-f]*:[0-9a-f:]+|[0-9]+`)

func noCharts(*report.Result) []report.Figure { return nil }
