// Package kubeapi is a small client of the Kubernetes API for the parts of a lab that write to it:
// typed, for a few kinds, and without its own limit on requests. (`k8s.io/client-go/kubernetes`
// knows all kinds, and is as large.)
package kubeapi

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Client asks an API server. It is safe for concurrent use.
type Client struct {
	core, coordination, discovery rest.Interface
	params                        runtime.ParameterCodec
}

// New makes a client; it does not connect to the server yet.
func New(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register the API's kinds: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	c := &Client{params: runtime.NewParameterCodec(scheme)}
	for gv, into := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion: &c.core, coordinationv1.SchemeGroupVersion: &c.coordination, discoveryv1.SchemeGroupVersion: &c.discovery,
	} {
		cfg := rest.CopyConfig(config)
		cfg.GroupVersion, cfg.APIPath, cfg.QPS = &gv, "/apis", -1
		if gv.Group == "" {
			cfg.APIPath = "/api"
		}
		cfg.NegotiatedSerializer = codecs.WithoutConversion()
		cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
		cfg.ContentType = runtime.ContentTypeProtobuf
		var err error
		if *into, err = rest.RESTClientFor(cfg); err != nil {
			return nil, fmt.Errorf("connect to the API: %w", err)
		}
	}
	return c, nil
}

// Objects are the objects of one kind, in one namespace or in none; for Follow, an empty namespace
// means all.
type Objects[T runtime.Object] struct {
	rest      rest.Interface
	params    runtime.ParameterCodec
	plural    string
	namespace string
	empty     func() T
	list      func() runtime.Object
}

// Nodes are the cluster's nodes.
func (c *Client) Nodes() Objects[*corev1.Node] {
	return Objects[*corev1.Node]{c.core, c.params, "nodes", "",
		func() *corev1.Node { return &corev1.Node{} }, func() runtime.Object { return &corev1.NodeList{} }}
}

// Pods are those of a namespace.
func (c *Client) Pods(namespace string) Objects[*corev1.Pod] {
	return Objects[*corev1.Pod]{c.core, c.params, "pods", namespace,
		func() *corev1.Pod { return &corev1.Pod{} }, func() runtime.Object { return &corev1.PodList{} }}
}

// Services are those of a namespace.
func (c *Client) Services(namespace string) Objects[*corev1.Service] {
	return Objects[*corev1.Service]{c.core, c.params, "services", namespace,
		func() *corev1.Service { return &corev1.Service{} }, func() runtime.Object { return &corev1.ServiceList{} }}
}

// EndpointSlices are those of a namespace.
func (c *Client) EndpointSlices(namespace string) Objects[*discoveryv1.EndpointSlice] {
	return Objects[*discoveryv1.EndpointSlice]{c.discovery, c.params, "endpointslices", namespace,
		func() *discoveryv1.EndpointSlice { return &discoveryv1.EndpointSlice{} },
		func() runtime.Object { return &discoveryv1.EndpointSliceList{} }}
}

// Events are those of a namespace.
func (c *Client) Events(namespace string) Objects[*corev1.Event] {
	return Objects[*corev1.Event]{c.core, c.params, "events", namespace,
		func() *corev1.Event { return &corev1.Event{} }, func() runtime.Object { return &corev1.EventList{} }}
}

// Leases are those of a namespace.
func (c *Client) Leases(namespace string) Objects[*coordinationv1.Lease] {
	return Objects[*coordinationv1.Lease]{c.coordination, c.params, "leases", namespace,
		func() *coordinationv1.Lease { return &coordinationv1.Lease{} }, func() runtime.Object { return &coordinationv1.LeaseList{} }}
}

func (o Objects[T]) at(req *rest.Request) *rest.Request {
	return req.NamespaceIfScoped(o.namespace, o.namespace != "").Resource(o.plural)
}

func (o Objects[T]) answer(ctx context.Context, req *rest.Request) (T, error) {
	into := o.empty()
	err := req.Do(ctx).Into(into)
	return into, err
}

// Get reads an object. Errors of this and the other methods are the API's, for package api/errors.
func (o Objects[T]) Get(ctx context.Context, name string) (T, error) {
	return o.answer(ctx, o.at(o.rest.Get()).Name(name))
}

// Create creates an object and returns the result.
func (o Objects[T]) Create(ctx context.Context, object T) (T, error) {
	return o.answer(ctx, o.at(o.rest.Post()).Body(object))
}

// Update replaces an object of that name, if it still has the same version.
func (o Objects[T]) Update(ctx context.Context, name string, object T) (T, error) {
	return o.answer(ctx, o.at(o.rest.Put()).Name(name).Body(object))
}

// Patch patches an object or a subresource of it, and returns the result.
func (o Objects[T]) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, subresource ...string) (T, error) {
	return o.answer(ctx, o.at(o.rest.Patch(kind)).Name(name).SubResource(subresource...).Body(data))
}

// Delete deletes an object.
func (o Objects[T]) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return o.at(o.rest.Delete()).Name(name).Body(&options).Do(ctx).Error()
}

// Follow passes the objects that a field selector chooses (empty: all), and their changes, to a
// store until ctx ends. If the API is away, it retries at least every two seconds or so; client-go
// by itself waits up to a minute.
func (o Objects[T]) Follow(ctx context.Context, selector string, store cache.ReflectorStore) {
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			into := o.list()
			return into, o.at(o.rest.Get()).VersionedParams(&options, o.params).Do(ctx).Into(into)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector, options.Watch = selector, true
			return o.at(o.rest.Get()).VersionedParams(&options, o.params).Watch(ctx)
		},
	}
	patience := &wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 2 * time.Second}
	cache.NewReflectorWithOptions(from, o.empty(), store, cache.ReflectorOptions{Backoff: patience}).RunWithContext(ctx)
}
