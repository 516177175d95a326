package main

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/netns"
	"sluice.dev/sluice/internal/sysctl"
)

// keepForwarding turns forwarding on again that another program turns off, until ctx ends: ever
// more slowly, if it goes on. While it is off, and while the contest lasts, that is shown.
func (o runOptions) keepForwarding(ctx context.Context, here *netns.NS, node string, contests *contest.Board, log *slog.Logger) {
	const what = "forwarding"
	pace := contest.Pace{First: time.Second, Most: time.Minute, Lasts: contest.Lasts}
	refused := false // it could not be turned on, as in a container without privileges
	keep := func() error {
		off := o.notForwarding()
		if now := time.Now(); len(off) > 0 && !refused && !now.Before(pace.Due()) {
			setSysctls(log, o)
			if off = o.notForwarding(); len(off) == 0 {
				pace.Wrote(now)
			}
			refused = len(off) > 0
		}
		reason := "another program goes on turning off the forwarding of packets, which is turned on again ever more slowly; without it, nothing passes to this node's pods: end it"
		switch lost := pace.Lost(time.Now()); {
		case len(off) == 0 && !lost:
			refused = false
			contests.Clear(what)
			return nil
		case !lost:
			reason = strings.Join(off, " and ") + " is 0, so that nothing passes to this node's pods: set it to 1, also in /etc/sysctl.d"
		}
		contests.Set(what, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: node}}.Issue(reason))
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		if err := here.Do(keep); err != nil && ctx.Err() == nil {
			log.Warn("could not look whether the node forwards packets", "error", err)
		}
	}
}

// notForwarding names the parameters that have not the value that the node needs.
func (o runOptions) notForwarding() (off []string) {
	want, _ := sysctl.Needed(o.families()) // setSysctls says what cannot be had
	for _, key := range []string{sysctl.Forward4, sysctl.Forward6} {
		if now, err := sysctl.Read(key); err == nil && want[key] != "" && now != want[key] {
			off = append(off, key)
		}
	}
	return off
}
