package main

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/sysctl"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
)

// forwarding looks after the parameters by which a machine passes packets on.
type forwarding struct {
	families func() (ipv4, ipv6 bool) // that are in use
	record   string                   // of parameters that are set
	contests *contest.Board
	node     string
	log      *slog.Logger
}

// keep turns forwarding on again that another program turns off, until ctx ends: ever more slowly,
// if it goes on, or if it is refused, as in a container without privileges. While it is off, and
// while the contest lasts, that is shown.
func (f *forwarding) keep(ctx context.Context, here *netns.NS) {
	tries := contest.Pace{First: time.Second, Most: time.Minute}
	turned := contest.Pace{First: time.Second, Most: time.Minute, Lasts: contest.Lasts}
	said, contested := "", "" // why it was refused; what was turned on
	look := func() error {
		is4, is6 := f.off()
		want, lacks := sysctl.Needed(is4, is6)
		if now := time.Now(); len(want) > 0 && !now.Before(tries.Due()) {
			tries.Wrote(now)
			err := writeSysctls(f.log, f.record, want)
			if err != nil && err.Error() != said {
				f.log.Warn("not all kernel parameters are set and recorded", "error", err)
				said = err.Error()
			}
			was4, was6 := is4, is6
			if is4, is6 = f.off(); is4 != was4 || is6 != was6 {
				turned.Wrote(now)
				contested = strings.Join(slices.Sorted(maps.Keys(want)), ", ")
			}
		}
		lost := turned.Lost(time.Now())
		off := func(key, family, advice string) string {
			return key + " is 0, so that this machine passes no " + family + " on: " + advice
		}
		const set = "set it to 1, also in /etc/sysctl.d"
		var reasons []string
		if lost {
			reasons = append(reasons, "another program goes on turning off the forwarding of packets ("+contested+"), which is turned on again ever more slowly; without it, this machine passes nothing on: end it")
		}
		if is4 && !lost {
			reasons = append(reasons, off(sysctl.Forward4, "IPv4", set))
		}
		switch {
		case is6 && lacks != nil:
			reasons = append(reasons, off(sysctl.Forward6, "IPv6", lacks.Error()))
		case is6 && !lost:
			reasons = append(reasons, off(sysctl.Forward6, "IPv6", set))
		}
		if len(reasons) == 0 {
			said = ""
			f.contests.Clear(contest.Forwarding)
			return nil
		}
		f.contests.Set(contest.Forwarding, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: f.node}}.Issue(strings.Join(reasons, "; ")))
		return nil
	}
	for wake.Sleep(ctx, time.Second) {
		if err := here.Do(look); err != nil && ctx.Err() == nil {
			f.log.Warn("could not look whether the node forwards packets", "error", err)
		}
	}
}

// off reports which of the families in use are not passed on.
func (f *forwarding) off() (is4, is6 bool) {
	zero := func(key string) bool {
		now, err := sysctl.Read(key)
		return err == nil && now == "0"
	}
	is4, is6 = zero(sysctl.Forward4), zero(sysctl.Forward6)
	if is4 || is6 {
		used4, used6 := f.families()
		is4, is6 = is4 && used4, is6 && used6
	}
	return is4, is6
}
