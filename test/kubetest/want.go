package kubetest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/test/lab/echo"
)

// outcome is the outcome of a request.
type outcome string

const (
	isAnswered   outcome = "answered"
	isRefused    outcome = "refused"    // by a reset or an ICMP error
	isSilent     outcome = "silent"     // no answer comes
	isUnanswered outcome = "unanswered" // either of the two
	isBroken     outcome = "broken"     // a connection that was established is reset
	isStatus     outcome = "status"     // an HTTP status from any server
)

// Want is the expected outcome of requests.
type Want struct {
	outcome  outcome
	pods     []string // exactly these pods answer
	same     bool     // one pod answers all requests
	several  bool     // more than one pod answers
	together bool     // same and several apply to all addresses of the target together
	seen     string   // own or node: which address the pod sees
	port     uint16   // of the answering pod
	status   int
	pause    time.Duration // between requests
}

// answeredBy expects that exactly these pods answer.
func answeredBy(pods ...string) Want { return Want{outcome: isAnswered, pods: pods} }

// answered expects that some pod answers.
func answered() Want { return Want{outcome: isAnswered} }

// sticky expects that one pod answers all requests.
func sticky() Want { return Want{outcome: isAnswered, same: true} }

// spread expects that more than one pod answers.
func spread() Want { return Want{outcome: isAnswered, several: true} }

// refused expects a reset or an ICMP error.
func refused() Want { return Want{outcome: isRefused} }

// silent expects that no answer comes.
func silent() Want { return Want{outcome: isSilent} }

// unanswered expects either of the two.
func unanswered() Want { return Want{outcome: isUnanswered} }

// broken expects that a flow's connection has been reset.
func broken() Want { return Want{outcome: isBroken} }

// says expects a status of an HTTP server.
func says(status int) Want { return Want{outcome: isStatus, status: status} }

// These are the ways in which a pod can see a client.
const (
	own  = "own"    // with its own address
	node = "a node" // with the address of another node
)

// seeing expects which address the pod sees.
func (w Want) seeing(whose string) Want { w.seen = whose; return w }

// on expects on which of its ports the pod answers.
func (w Want) on(port uint16) Want { w.port = port; return w }

// every sets the pause between requests.
func (w Want) every(pause time.Duration) Want { w.pause = pause; return w }

// overAll applies sticky and spread to all addresses of the target together.
func (w Want) overAll() Want { w.together = true; return w }

func (w Want) String() string {
	text := string(w.outcome)
	switch {
	case w.pods != nil:
		text += " by " + strings.Join(w.pods, ", ")
	case w.same:
		text += " by one pod"
	case w.several:
		text += " by several pods"
	case w.outcome == isStatus:
		text += fmt.Sprintf(" %d", w.status)
	}
	if w.port != 0 {
		text += fmt.Sprintf(" on port %d", w.port)
	}
	if w.seen != "" {
		text += fmt.Sprintf(", seen with %s's address", map[string]string{own: "the client", node: node}[w.seen])
	}
	return text
}

// patient is the time-out of a request that should be answered; hasty is that of one that should be
// silent.
const (
	patient = 2 * time.Second
	hasty   = 400 * time.Millisecond
)

// timeout is how long requests wait for the expected outcome.
func (w Want) timeout() time.Duration {
	if w.outcome == isSilent || w.outcome == isUnanswered {
		return hasty
	}
	return patient
}

// result is the outcome of one request.
type result struct {
	from   []netip.Addr // the client's own addresses
	answer echo.Answer
	status int
	err    error
}

// fits returns what of a result differs from the expectation for each.
func (w Want) fits(r result, nodes []netip.Addr) error {
	switch w.outcome {
	case isRefused:
		if !errors.Is(r.err, echo.ErrRefused) {
			return fmt.Errorf("not refused: %s", r)
		}
	case isSilent:
		if !errors.Is(r.err, echo.ErrSilent) {
			return fmt.Errorf("not silent: %s", r)
		}
	case isUnanswered:
		if !errors.Is(r.err, echo.ErrRefused) && !errors.Is(r.err, echo.ErrSilent) {
			return fmt.Errorf("answered: %s", r)
		}
	case isBroken:
		if r.err == nil {
			return fmt.Errorf("not broken: %s", r)
		}
	case isStatus:
		if r.err != nil || r.status != w.status {
			return fmt.Errorf("not %d: %s", w.status, r)
		}
	case isAnswered:
		if r.err != nil {
			return fmt.Errorf("not answered: %w", r.err)
		}
		return w.fitsAnswer(r, nodes)
	}
	return nil
}

func (w Want) fitsAnswer(r result, nodes []netip.Addr) error {
	if w.pods != nil && !slices.Contains(w.pods, r.answer.Pod) {
		return fmt.Errorf("answered by %s", r.answer.Pod)
	}
	if w.port != 0 && r.answer.Port != w.port {
		return fmt.Errorf("answered on port %d", r.answer.Port)
	}
	isOwn := slices.Contains(r.from, r.answer.Client.Addr())
	isNode := slices.Contains(nodes, r.answer.Client.Addr())
	if w.seen == own && !isOwn || w.seen == node && (isOwn || !isNode) {
		return fmt.Errorf("%s sees the client as %s", r.answer.Pod, r.answer.Client.Addr())
	}
	return nil
}

func (r result) String() string {
	switch {
	case r.err != nil:
		return r.err.Error()
	case r.status != 0:
		return fmt.Sprintf("status %d", r.status)
	}
	return fmt.Sprintf("%s answers on port %d", r.answer.Pod, r.answer.Port)
}

// These are the numbers of requests that suffice.
const (
	atLeast = 6   // answered ones, whatever the answer
	inARow  = 10  // of one pod, to conclude that a client stays with it
	atMost  = 100 // to see all pods: of three, one is missed in one of 10^17 rounds
	turned  = 2   // refused ones
)

// enough reports whether the results, each as expected, suffice; an error says that they never
// will.
func (w Want) enough(results []result) (bool, error) {
	seen := map[string]bool{}
	for _, r := range results {
		seen[r.answer.Pod] = true
	}
	switch {
	case w.outcome != isAnswered:
		return len(results) >= turned, nil
	case w.same && len(seen) > 1:
		return false, fmt.Errorf("answered by %d pods, after %d requests", len(seen), len(results))
	case w.same:
		return len(results) >= inARow, nil
	case w.several && len(seen) > 1:
		return true, nil
	case !w.several && (w.pods == nil || len(seen) == len(w.pods)) && len(results) >= atLeast:
		return true, nil
	case len(results) >= atMost:
		return false, fmt.Errorf("answered by %s alone, after %d requests", strings.Join(sortedKeys(seen), ", "), len(results))
	}
	return false, nil
}

// excludes reports whether no results can fit both expectations.
func (w Want) excludes(other Want) bool {
	switch {
	case w.outcome != other.outcome:
		return w.outcome != isUnanswered && other.outcome != isUnanswered || w.outcome == isAnswered || other.outcome == isAnswered
	case w.same && other.several || w.several && other.same:
		return w.together == other.together
	}
	return w.pods != nil && other.pods != nil && !slices.Equal(w.pods, other.pods) || w.status != other.status ||
		w.seen != other.seen && w.seen != "" && other.seen != "" || w.port != other.port && w.port != 0 && other.port != 0
}
