package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/contest"
	"sluice.dev/sluice/internal/lib/wake"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
	"sluice.dev/sluice/internal/source/kubeobj"
)

// NodeChange makes one change to a Node, whenever it is due. Where somebody else goes on undoing
// it, the pauses double, and the Node names who does. Nothing waits for it; a failure is logged
// once, and tried again.
type NodeChange struct {
	// Contests, if set, shows that somebody goes on undoing the change.
	Contests *contest.Board

	api         *api
	log         *slog.Logger
	node        string
	failure     string   // what cannot be done, in the log
	field       []string // that is changed: its path
	undone      string   // what somebody does who undoes it
	look, retry time.Duration
	lasts       time.Duration // a contest
	most        time.Duration // the longest pause between changes that are undone
	patch       func(*corev1.Node) any
	sub         string // the subresource that is patched, with its "/"; "": the Node itself
	media       string // of the patch
	made        func() // called after a change
}

// newNodeChange returns a change of a field. What the API has already, as it does while our view of
// it lags, patch leaves: it returns nil.
func newNodeChange(config Config, node string, log *slog.Logger, patch func(*corev1.Node) any) *NodeChange {
	return &NodeChange{
		api: config.api(usualTiming(), log), log: log, node: node, patch: patch, made: func() {},
		look: time.Second, retry: 10 * time.Second, most: 10 * time.Minute, lasts: contest.Lasts,
	}
}

// write makes the change, and reports whether the API did not have it yet.
func (c *NodeChange) write(ctx context.Context) (changed bool, err error) {
	now, err := named[corev1.Node](ctx, c.api, nodePlace, model.Name{Name: c.node}, mediaJSON, true)
	if err != nil || now == nil {
		return false, err
	}
	patch := c.patch(now)
	if patch == nil {
		return false, nil
	}
	if err := c.api.write(ctx, http.MethodPatch, nodePlace.Path()+"/"+url.PathEscape(c.node)+c.sub, nil, c.media, patch); err != nil {
		return false, err
	}
	c.made()
	return true, nil
}

var nodePlace = kinds.Find(model.NodeKind).Places[0]

// Run makes the change until ctx ends, whenever due says that the Node is there without it.
func (c *NodeChange) Run(ctx context.Context, due func() bool) {
	what := strings.Join(c.field, ".")
	pace := contest.Pace{First: c.retry, Most: c.most, Lasts: c.lasts} // also for what was written to be told of
	for failing, pause := false, time.Duration(0); ; {
		if !wake.Sleep(ctx, pause) {
			return
		}
		if pause = c.look; !pace.Lost(time.Now()) {
			c.Contests.Clear(what)
		}
		if !due() {
			continue
		}
		if pace.Undone(time.Now()); time.Now().Before(pace.Due()) {
			continue
		}
		var others []string
		if !pace.Over(time.Now()) {
			others = c.managers(ctx)
		}
		changed, err := c.write(ctx)
		if err != nil && ctx.Err() == nil && !failing {
			c.log.Warn(c.failure+"; trying again", "node", c.node, "error", err)
		}
		if failing = err != nil; !changed {
			pause = c.retry
			continue
		}
		if pace.Wrote(time.Now()); pace.Lost(time.Now()) {
			reason := fmt.Sprintf("%s: field manager %s does, each time, so the pauses between tries double; end one of the two", c.undone, strings.Join(others, ", "))
			c.Contests.Set(what, model.Ref{Kind: model.NodeKind, Name: model.Name{Name: c.node}}.Issue(reason))
		}
	}
}

// managers are those of the field, as far as the API tells.
func (c *NodeChange) managers(ctx context.Context) []string {
	o, err := named[metav1.PartialObjectMetadata](ctx, c.api, nodePlace, model.Name{Name: c.node}, mediaMetadata, true)
	if err == nil && o != nil {
		if names := kubeobj.Managers(o.ManagedFields, c.field...); len(names) > 0 {
			return names
		}
	}
	return []string{"(unknown)"}
}
