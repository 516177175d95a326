package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Result is the outcome of a case.
type Result struct {
	Case *Case
	Err  error // nil: everything was as expected
	Took time.Duration
	Load Load // the measured loads of the case

	Before error // the error of the first attempt, if there were two
}

// run runs cases, up to width at the same time, exclusive ones last. It calls done for each, one
// after the other. With a data plane other than Sluice, a failed case gets a second attempt: it is
// there for comparison, and its occasional failures should not stop us. What the cases make bears
// their names and the label, so that they may run again under another one.
func (w *world) run(ctx context.Context, d Dataplane, label string, cases []*Case, width int, done func(Result)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, width)
	for i, k := range cases {
		if k.Alone {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			r := w.try(ctx, d, k, k.Name+label, i+1)
			<-slots
			mu.Lock()
			defer mu.Unlock()
			done(r)
		})
	}
	wg.Wait()
	for i, k := range cases {
		if k.Alone {
			done(w.try(ctx, d, k, k.Name+label, i+1))
		}
	}
}

// again is the difference between the numbers and names of the second attempt and the first.
const again = 100

// try runs a case, once or twice. number is less than again.
func (w *world) try(ctx context.Context, d Dataplane, c *Case, namespace string, number int) Result {
	first := w.runCase(ctx, d, c, namespace, number)
	if first.Err == nil || d == Sluice {
		return first
	}
	second := w.runCase(ctx, d, c, namespace+"-again", number+again)
	second.Before = first.Err
	return second
}

func (w *world) runCase(ctx context.Context, d Dataplane, c *Case, namespace string, number int) Result {
	start := time.Now()
	e := &Env{
		cluster: w, dataplane: d, namespace: namespace, number: number,
		speakers: map[netip.Addr]string{},
		found:    map[string][]netip.AddrPort{}, places: map[types.UID]*place{}, flows: map[string]*flow{},
	}
	err := w.begin(ctx, e)
	if err == nil {
		err = e.steps(ctx, c.Steps)
	}
	return Result{Case: c, Err: errors.Join(err, e.close(), w.end(ctx, e)), Took: time.Since(start), Load: e.load}
}

func (e *Env) steps(ctx context.Context, steps []Step) error {
	for i, s := range steps {
		if err := s.run(ctx, e); err != nil {
			return fmt.Errorf("step %d of %d: %s: %w", i+1, len(steps), s, err)
		}
	}
	return nil
}

func (w *world) begin(ctx context.Context, e *Env) error {
	ns := &corev1.Namespace{}
	ns.Name = e.namespace
	return w.create(ctx, ns)
}

// end removes what the case made. It does not wait for pods to end. The namespace stays, as long as
// the cluster does: to remove one, Kubernetes asks for objects of each kind that there is.
func (w *world) end(ctx context.Context, e *Env) error {
	var errs []error
	//lint:ignore SA1019 what is still mirrored into slices
	for _, o := range []object{&corev1.Service{}, &corev1.Pod{}, &corev1.Endpoints{}, &discoveryv1.EndpointSlice{}} {
		errs = append(errs, w.removeAll(ctx, e.in(o)))
	}
	return errors.Join(errs...)
}
