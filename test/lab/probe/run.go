package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/netns"
)

// These are the time-outs: for an answer, long enough for TCP to try three times; and a minimum and
// a multiple of the slowest answer before, for a refusal, which has to come at once, and for the
// expected silence of dropped requests.
const (
	answerTime  = 5 * time.Second
	refusalTime = 700 * time.Millisecond
	silenceTime = 500 * time.Millisecond
	slowFactor  = 4
)

// workers is how many requests a source sends at the same time: waiting for silence costs no CPU.
const workers = 16

// Result is the outcome of one Try's requests.
type Result struct {
	Try
	Sent        int
	By          map[string]int // answers by pod, "namespace/name"
	Kept        int            // answers to requests whose source address the pod saw
	Masqueraded int
	Failed      int // requests with the wrong outcome
	Excused     int // those that the cluster's changes meanwhile explain, which do not count as failed
	Reason      string
	Slowest     time.Duration // of the answers
}

// Run sends n requests for each try, one after the other. Results are in the order of the tries. It
// returns an error if ctx ends or a source cannot be entered; if a source no longer exists, all its
// tries fail.
//
// Expected drops and refusals come last: the duration of the answers tells how busy the machine is,
// and so how long a silence has to be, and what is at once.
func Run(ctx context.Context, tries []Try, n int) ([]Result, error) {
	results := make([]Result, len(tries))
	do := func(last bool, slowest time.Duration) error {
		return eachSource(ctx, tries, last, func(i int, gone bool) {
			if gone {
				results[i] = Result{Try: tries[i], Sent: 1, Failed: 1, Reason: "the source's network namespace is gone"}
				return
			}
			results[i] = tries[i].send(n, slowest)
		})
	}
	if err := do(false, 0); err != nil {
		return nil, err
	}
	var slowest time.Duration
	for _, r := range results {
		slowest = max(slowest, r.Slowest)
	}
	return results, do(true, slowest)
}

// quiet reports whether a try's requests may be dropped.
func (t Try) quiet() bool { return t.Fate == Dropped || t.partly() || t.Fate == Unknown }

// partly reports whether a try's requests may be answered or dropped.
func (t Try) partly() bool { return t.Fate == Partly || t.Fate == Differs }

// eachSource does the tries that come last, or the others, for all sources at the same time.
func eachSource(ctx context.Context, tries []Try, last bool, do func(i int, gone bool)) error {
	queues := map[string][]int{} // by source: indexes of tries
	for i, t := range tries {
		if (t.quiet() || t.Fate == Refused) == last {
			queues[t.NetNS] = append(queues[t.NetNS], i)
		}
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(queues))
	for name, queue := range queues {
		wg.Go(func() { errs <- fromSource(ctx, name, queue, do) })
	}
	wg.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	return errors.Join(append(all, ctx.Err())...)
}

// fromSource works on the queue with threads inside a network namespace, if it still exists.
func fromSource(ctx context.Context, name string, queue []int, do func(i int, gone bool)) error {
	ns, err := netns.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		for _, i := range queue {
			do(i, true)
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	work := make(chan int, len(queue))
	for _, i := range queue {
		work <- i
	}
	close(work)
	errs := make([]error, min(workers, len(queue)))
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			errs[w] = ns.Do(func() error {
				for i := range work {
					if ctx.Err() != nil {
						return nil
					}
					do(i, false)
				}
				return nil
			})
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// patience is how long a try waits for its answer, after the slowest of others so far.
func (t Try) patience(slowest time.Duration) time.Duration {
	switch {
	case t.Fate == Refused:
		return max(refusalTime, slowFactor*slowest)
	case t.quiet():
		return max(silenceTime, slowFactor*slowest)
	}
	return answerTime
}

// send sends the try's requests from the calling thread's network, and checks each outcome. It
// stops after two failures.
func (t Try) send(n int, slowest time.Duration) Result {
	r := Result{Try: t, By: map[string]int{}}
	switch t.Fate {
	case Dropped, Unknown, Healthy, Unhealthy:
		n = 1
	}
	for range n {
		r.Sent++
		begin := time.Now()
		if reason := r.request(t.patience(slowest)); reason != "" {
			r.Failed++
			r.Reason = reason
		} else {
			r.Slowest = max(r.Slowest, time.Since(begin))
		}
		if r.Failed == 2 {
			break
		}
	}
	return r
}

// request sends one request and returns what is wrong with its outcome.
func (r *Result) request(timeout time.Duration) string {
	if r.Frontend.Kind == HealthCheck {
		return r.checkHealth(echo.Status(r.To, timeout))
	}
	return r.check(echo.Ask(r.Protocol, r.To, timeout))
}

func (r *Result) checkHealth(code int, err error) string {
	want := map[Fate]int{Healthy: http.StatusOK, Unhealthy: http.StatusServiceUnavailable}[r.Fate]
	switch {
	case err != nil:
		return err.Error()
	case code != want:
		return fmt.Sprintf("HTTP status %d, should be %d (%s)", code, want, r.Why)
	}
	return ""
}

// check records one request's outcome and returns what is wrong with it.
func (r *Result) check(a echo.Answer, err error) string {
	if err == nil {
		return r.answered(a)
	}
	fate := Fate("")
	switch {
	case errors.Is(err, echo.ErrRefused):
		fate = Refused
	case errors.Is(err, echo.ErrSilent):
		fate = Dropped
	}
	switch {
	case r.Fate == Unknown || fate == r.Fate || r.partly() && fate == Dropped:
		return ""
	case r.Fate == Refused && fate == Dropped:
		return fmt.Sprintf("no answer, should be refused at once (%s)", r.Why)
	case r.Fate == Dropped && fate == Refused:
		return fmt.Sprintf("refused, should be dropped (%s)", r.Why)
	case fate == Refused:
		return "refused"
	case fate == Dropped:
		return fmt.Sprintf("no answer within %v", answerTime)
	}
	return err.Error()
}

func (r *Result) answered(a echo.Answer) string {
	pod := a.Namespace + "/" + a.Pod
	first := len(r.By) == 0
	seen := r.By[pod] > 0
	r.By[pod]++
	kept := slices.Contains(r.Addrs, a.Client.Addr())
	if kept {
		r.Kept++
	} else {
		r.Masqueraded++
	}
	switch {
	case r.Fate == Unknown:
		return ""
	case r.Fate != Answered && !r.partly():
		return fmt.Sprintf("answered by %s, should be %s (%s)", pod, r.Fate, r.Why)
	case !r.Expect.By[pod] && r.Fate == Partly:
		return fmt.Sprintf("answered by %s, which is no endpoint that policies let it reach", pod)
	case !r.Expect.By[pod]:
		return fmt.Sprintf("answered by %s, which is no endpoint for this traffic", pod)
	case r.Sticky && !first && !seen:
		return fmt.Sprintf("answered by %s, another pod than before, despite session affinity", pod)
	case r.Keep && !kept && r.Source.Name != pod:
		return fmt.Sprintf("%s saw client %s, not the client's own address", pod, a.Client.Addr())
	}
	return ""
}

// family is for people.
func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
