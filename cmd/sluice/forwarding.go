package main

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/netns"
	"sluice.dev/sluice/internal/sysctl"
)

// forwarding looks after the parameters by which a machine passes packets on.
type forwarding struct {
	want     func() map[string]string // what is to be set; that of forwarding matters
	set      func()                   // sets them, and says what cannot be set
	contests *contest.Board
	node     string
}

// keep turns forwarding on again that another program turns off, until ctx ends: ever more slowly,
// if it goes on. While it is off, and while the contest lasts, that is shown.
func (f *forwarding) keep(ctx context.Context, here *netns.NS, log *slog.Logger) {
	const what = "forwarding"
	pace := contest.Pace{First: time.Second, Most: time.Minute, Lasts: contest.Lasts}
	refused := false // it could not be turned on, as in a container without privileges
	look := func() error {
		off := f.off()
		if now := time.Now(); len(off) > 0 && !refused && !now.Before(pace.Due()) {
			f.set()
			if off = f.off(); len(off) == 0 {
				pace.Wrote(now)
			}
			refused = len(off) > 0
		}
		reason := "another program goes on turning off the forwarding of packets, which is turned on again ever more slowly; without it, this machine passes nothing on: end it"
		switch lost := pace.Lost(time.Now()); {
		case len(off) == 0 && !lost:
			refused = false
			f.contests.Clear(what)
			return nil
		case !lost:
			reason = strings.Join(off, " and ") + " is 0, so that this machine passes nothing on: set it to 1, also in /etc/sysctl.d"
		}
		f.contests.Set(what, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: f.node}}.Issue(reason))
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		if err := here.Do(look); err != nil && ctx.Err() == nil {
			log.Warn("could not look whether the node forwards packets", "error", err)
		}
	}
}

// neededSysctls are what a node needs to forward packets; setSysctls says what cannot be had.
func (f *nodeFlags) neededSysctls() map[string]string {
	want, _ := sysctl.Needed(f.families())
	return want
}

// off names those of the parameters that are 0 and should not be.
func (f *forwarding) off() (keys []string) {
	for _, key := range []string{sysctl.Forward4, sysctl.Forward6} {
		if now, err := sysctl.Read(key); err == nil && now == "0" {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 { // as nearly always
		return nil
	}
	want := f.want()
	return slices.DeleteFunc(keys, func(key string) bool { return want[key] == "" })
}
