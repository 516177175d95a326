package kube

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/cespare/xxhash/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/kinds"
)

// Recorder reports faults to the Kubernetes API, as Events of the objects at fault: `kubectl
// describe` shows them. It also says of Services that this node announces their addresses, as
// MetalLB does.
//
// All nodes find the same faults. So the name of an Event is made of the object and the text: the
// first node that finds the fault creates the Event and repeats it while the fault lasts, and the
// others find it there. The API server forgets an Event after an hour; then another node takes
// over.
type Recorder struct {
	reports
	node string

	setting   sync.Mutex // for the following, each of at most maxReported
	faulty    map[model.Issue]string
	announced []model.Issue // what is said of Services
}

// assigned is in the place of a fault where a node announces an address of a Service. It is the
// Event's reason, too, and MetalLB's, which people's scripts know.
const assigned = "nodeAssigned"

// event is the Event for one fault.
type event struct {
	path  string
	mine  bool  // this node created it
	count int32 // how often this node has sent it
}

const (
	reportedBy    = "sluice.dev/agent"
	maxNote       = 1024 // bytes; the API server accepts no more
	maxInstance   = 128  // likewise
	maxEventName  = 200  // bytes of the object's name in the Event's; with a digest it has to stay below 253
	mediaMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// NewRecorder returns a recorder for the node of that name. It does nothing until it runs.
func NewRecorder(config Config, node string, log *slog.Logger) *Recorder {
	r := &Recorder{reports: newReports(config, log), node: node[:min(len(node), maxInstance)]}
	r.failure, r.tell = "faults cannot be reported as Kubernetes Events", r.record
	return r
}

// Report sets the present faults. It returns at once, and is safe for concurrent use.
func (r *Recorder) Report(issues []model.Issue) {
	now := map[model.Issue]string{}
	for _, i := range issues {
		if i.Object.Name.Name != "" && kinds.Find(i.Object.Kind) != nil && len(now) < maxReported {
			now[i] = i.Reason
		}
	}
	r.setting.Lock()
	defer r.setting.Unlock()
	r.faulty = now
	r.setAll()
}

// Announce sets the addresses that this node announces by ARP or NDP now, with the Services that
// have them. Of more than are reported, it is always the first by address. It is as Report.
func (r *Recorder) Announce(addresses map[netip.Addr][]model.Name) {
	var now []model.Issue
	for _, a := range slices.SortedFunc(maps.Keys(addresses), netip.Addr.Compare) {
		how := map[bool]string{true: "ARP", false: "NDP"}[a.Is4()]
		for _, s := range addresses[a] {
			if len(now) < maxReported {
				now = append(now, model.Ref{Kind: model.ServiceKind, Name: s}.Issue(fmt.Sprintf("node %s announces %s by %s", r.node, a, how)))
			}
		}
	}
	r.setting.Lock()
	defer r.setting.Unlock()
	r.announced = now
	r.setAll()
}

// setAll sets what is to be told, faults first.
func (r *Recorder) setAll() {
	now := map[model.Issue]string{}
	maps.Copy(now, r.faulty)
	for _, i := range r.announced {
		if len(now) < maxReported {
			now[i] = assigned
		}
	}
	r.set(now)
}

// record creates the Event, or updates this node's own, as the fault lasts.
func (r *Recorder) record(ctx context.Context, i model.Issue, s *report) (again time.Duration, err error) {
	e := &s.event
	if e.mine {
		err := r.repeat(ctx, e)
		if !apierrors.IsNotFound(err) {
			return r.pace.again, err
		}
		e.mine = false
	}
	object, err := r.find(ctx, i.Object)
	if err != nil || object == nil {
		return r.pace.others, err
	}
	made := r.event(i, object)
	if s.fault == assigned {
		made.Type, made.Reason, made.Action = corev1.EventTypeNormal, assigned, "Announce"
	}
	e.path = kinds.Resource{Group: eventsv1.GroupName, Version: "v1", Plural: "events"}.In(made.Namespace)
	err = r.api.write(ctx, http.MethodPost, e.path, nil, mediaJSON, made)
	e.mine, e.count, e.path = err == nil, 1, e.path+"/"+made.Name
	switch {
	case e.mine:
		return r.pace.again, nil
	case apierrors.IsAlreadyExists(err) && s.fault == assigned:
		// It is this node's, of the last time: now it is to be the newest of the Service again.
		e.mine = true
		return r.pace.again, r.repeat(ctx, e)
	case apierrors.IsAlreadyExists(err):
		return r.pace.others, nil
	}
	return 0, err
}

// repeat makes an Event a series, or continues it.
func (r *Recorder) repeat(ctx context.Context, e *event) error {
	series := eventsv1.EventSeries{Count: e.count + 1, LastObservedTime: metav1.NowMicro()}
	err := r.api.write(ctx, http.MethodPatch, e.path, nil, mediaMergePatch, map[string]any{"series": series})
	if err == nil {
		e.count++
	}
	return err
}

// find reads what an Event has to say of its object; nil: the object is gone.
func (r *Recorder) find(ctx context.Context, ref model.Ref) (*corev1.ObjectReference, error) {
	object, err := r.findNamed(ctx, ref, ref.Name.Name)
	if object == nil && err == nil && (ref.Kind == model.CalicoPolicy || ref.Kind == model.GlobalNetworkPolicy) {
		// Calico stores the policies of the default tier so.
		return r.findNamed(ctx, ref, model.DefaultTier.Name+"."+ref.Name.Name)
	}
	return object, err
}

// findNamed finds the object by the name that the API has it under.
func (r *Recorder) findNamed(ctx context.Context, ref model.Ref, name string) (*corev1.ObjectReference, error) {
	kind := kinds.Find(ref.Kind)
	found, place, err := find[metav1.PartialObjectMetadata](ctx, r.api, kind, model.Name{Namespace: ref.Name.Namespace, Name: name}, mediaMetadata, false)
	if found == nil || err != nil {
		return nil, err
	}
	return &corev1.ObjectReference{APIVersion: place.APIVersion(), Kind: kind.Name, Namespace: ref.Name.Namespace, Name: name, UID: found.UID}, nil
}

// event makes the Event of a fault.
func (r *Recorder) event(i model.Issue, object *corev1.ObjectReference) *eventsv1.Event {
	text := note(i)
	name := strings.TrimRight(object.Name[:min(len(object.Name), maxEventName)], "-.")
	e := &eventsv1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: eventsv1.SchemeGroupVersion.String(), Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: object.Namespace, Name: fmt.Sprintf("%s.%016x", name, xxhash.Sum64String(string(object.UID)+text))},
		EventTime:  metav1.NowMicro(), ReportingController: reportedBy, ReportingInstance: r.node,
		Type: corev1.EventTypeWarning, Reason: "Fault", Action: "Program", Note: text, Regarding: *object,
	}
	if e.Namespace == "" {
		e.Namespace = metav1.NamespaceDefault // which the API requires for objects without a namespace
	}
	return e
}

// objectName matches the name of an object with a namespace in a text: "Service shop/web", "pod
// shop/web-1".
var objectName = regexp.MustCompile(`\b([A-Z][A-Za-z]*|pod) ([a-z0-9][-a-z0-9]*)/[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?`)

// note returns the text of a fault, as public has it.
func note(i model.Issue) string { return public(i.Text(), i.Object.Name.Namespace) }

// public returns a text about an object in a namespace in printable characters. Someone who may
// read what is said of the object there may know of no other namespace: an object in one becomes
// "another Service".
func public(text, namespace string) string {
	text = objectName.ReplaceAllStringFunc(text, func(name string) string {
		if part := objectName.FindStringSubmatch(name); part[2] != namespace {
			return "another " + part[1]
		}
		return name
	})
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, text)
	if len(text) > maxNote {
		text = strings.ToValidUTF8(text[:maxNote-len("…")], "") + "…"
	}
	return text
}
