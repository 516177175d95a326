package kube

import (
	"context"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/source/kinds"
)

// lease is a right that one of several agents has, as a Lease of the API's. It belongs to one
// goroutine.
//
// Whoever has it renews it. It is free once nobody has renewed it for its duration, by the clock of
// the one who looks: the clocks of machines are not compared. Nobody who only waits has to look.
type lease struct {
	api      *api
	path     string // of the namespace's leases
	holder   string // who we are
	duration time.Duration

	namespace, name string

	renewed time.Time // when we renewed it last; zero: we do not have it
	seen    leaseObject
	since   time.Time // when we first saw it so
}

// leaseObject is of a Lease what matters here.
type leaseObject struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metav1.ObjectMeta `json:"metadata"`
	Spec       struct {
		HolderIdentity       string           `json:"holderIdentity"`
		LeaseDurationSeconds int              `json:"leaseDurationSeconds"`
		AcquireTime          metav1.MicroTime `json:"acquireTime"`
		RenewTime            metav1.MicroTime `json:"renewTime"`
		LeaseTransitions     int              `json:"leaseTransitions"`
	} `json:"spec"`
}

func newLease(a *api, namespace, name, holder string, duration time.Duration) *lease {
	path := kinds.Resource{Group: "coordination.k8s.io", Version: "v1", Plural: "leases"}.In(namespace)
	return &lease{api: a, path: path, namespace: namespace, name: name, holder: holder, duration: duration}
}

// held reports whether we have the lease for some time to come: nobody takes it before that is
// over.
func (l *lease) held() bool {
	return !l.renewed.IsZero() && time.Since(l.renewed) < l.duration*2/3
}

// renewAt is when the lease is to be renewed, if we have it.
func (l *lease) renewAt() time.Time { return l.renewed.Add(l.duration / 3) }

// acquire renews the lease, or takes it if it is free, and reports whether we have it.
func (l *lease) acquire(ctx context.Context) (bool, error) {
	begun := time.Now()
	was := l.seen
	err := l.read(ctx)
	switch {
	case apierrors.IsNotFound(err):
		l.seen = leaseObject{}
	case err != nil:
		return l.held(), err
	case l.seen.Metadata.ResourceVersion != was.Metadata.ResourceVersion || l.since.IsZero():
		l.since = begun
	}
	o := l.seen
	if o.Spec.HolderIdentity != l.holder {
		l.renewed = time.Time{}
		limit := max(l.duration, time.Duration(o.Spec.LeaseDurationSeconds)*time.Second)
		if o.Spec.HolderIdentity != "" && time.Since(l.since) < limit {
			return false, nil
		}
		o.Spec.AcquireTime = metav1.NowMicro()
		o.Spec.LeaseTransitions++
	}
	o.Spec.HolderIdentity = l.holder
	if err := l.write(ctx, o); err != nil {
		l.renewed = time.Time{}
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) { // another was first
			return false, nil
		}
		return false, err
	}
	l.renewed = begun
	return true, nil
}

func (l *lease) read(ctx context.Context) error {
	var o leaseObject
	err := l.api.read(ctx, l.path+"/"+l.name, nil, mediaJSON, &o)
	if err == nil {
		l.seen = o
	}
	return err
}

// write creates the lease, or replaces the version that was read.
func (l *lease) write(ctx context.Context, o leaseObject) error {
	o.APIVersion, o.Kind = "coordination.k8s.io/v1", "Lease"
	o.Spec.LeaseDurationSeconds, o.Spec.RenewTime = int(l.duration.Seconds()), metav1.NowMicro()
	if o.Metadata.ResourceVersion == "" {
		o.Metadata = metav1.ObjectMeta{Name: l.name}
		return l.api.write(ctx, http.MethodPost, l.path, nil, mediaJSON, o)
	}
	return l.api.write(ctx, http.MethodPut, l.path+"/"+l.name, nil, mediaJSON, o)
}

// release gives the lease back, if we have it.
func (l *lease) release(ctx context.Context) error {
	if !l.held() {
		return nil
	}
	l.renewed = time.Time{}
	if err := l.read(ctx); err != nil || l.seen.Spec.HolderIdentity != l.holder {
		return err
	}
	o := l.seen
	o.Spec.HolderIdentity = ""
	return l.write(ctx, o)
}
