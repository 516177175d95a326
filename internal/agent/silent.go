package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
)

// These bound how many pods are asked whether they answer, and for how long.
const (
	maxAsked  = 4
	askedTime = 3 * time.Second // as a busy node takes its time, too
)

// silentPods connects to the pods of this node that TCP connections may go to, as the kubelet's
// probes do: no policy keeps a node from its own pods. It also asks the senders whether they answer
// at all: a pod without a route back to the node has a route to nobody. It returns which pods do
// not answer.
func (a *Agent) silentPods(ctx context.Context, connections []verdict.Answer) (faults []string) {
	const unused = 9 // discard: whether it is taken or refused, the pod has answered
	pods := map[netip.AddrPort]model.Ref{}
	for _, con := range connections {
		if con.Outcome == verdict.Allowed && con.From.Node == a.Node && con.From.Object.Kind == model.PodKind && len(pods) < maxAsked {
			pods[netip.AddrPortFrom(con.From.Address, unused)] = con.From.Object
		}
		for _, p := range con.Paths {
			to := netip.AddrPortFrom(p.To.Address, p.To.Port)
			if con.Protocol == model.TCP.String() && p.Outcome == verdict.Allowed && p.To.Node == a.Node && p.To.Object.Kind == model.PodKind && len(pods) < maxAsked {
				pods[to] = p.To.Object
			}
		}
	}
	if a.Connect == nil || len(pods) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askedTime)
	defer cancel()
	var mu sync.Mutex
	var group sync.WaitGroup
	for to, pod := range pods {
		group.Go(func() {
			if err := a.Connect(ctx, to); err != nil && (to.Port() != unused || !errors.Is(err, unix.ECONNREFUSED)) {
				mu.Lock()
				defer mu.Unlock()
				faults = append(faults, fmt.Sprintf("asked from node %s, %s", a.Node, noAnswer(pod, to, err)))
			}
		})
	}
	group.Wait()
	slices.Sort(faults)
	return faults
}

// noAnswer says what it means that a pod has not taken a connection.
func noAnswer(pod model.Ref, to netip.AddrPort, err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Sprintf("pod %v refuses TCP %d: nothing listens there, or the pod's own rules reject it", pod.Name, to.Port())
	case os.IsTimeout(err), errors.Is(err, unix.EHOSTUNREACH):
		return fmt.Sprintf("pod %v does not answer at %v: see its interface, its address, its routes, and its own rules", pod.Name, to.Addr())
	}
	return fmt.Sprintf("pod %v cannot be asked at %v: %v", pod.Name, to, err)
}
