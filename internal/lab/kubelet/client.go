package kubelet

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// client asks the API for the few kinds that a kubelet has to do with. It has
// no limit of its own on requests: the number of pods is one.
type client struct {
	core, coordination rest.Interface
	params             runtime.ParameterCodec
}

func newClient(config *rest.Config) (*client, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("know the API's kinds: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	codecs := serializer.NewCodecFactory(scheme)
	connect := func(gv schema.GroupVersion, path string) (rest.Interface, error) {
		c := rest.CopyConfig(config)
		c.GroupVersion, c.APIPath, c.QPS = &gv, path, -1
		c.NegotiatedSerializer = codecs.WithoutConversion()
		c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
		c.ContentType = runtime.ContentTypeProtobuf
		return rest.RESTClientFor(c)
	}
	core, err := connect(corev1.SchemeGroupVersion, "/api")
	if err != nil {
		return nil, fmt.Errorf("connect to the API: %w", err)
	}
	coordination, err := connect(coordinationv1.SchemeGroupVersion, "/apis")
	if err != nil {
		return nil, fmt.Errorf("connect to the API: %w", err)
	}
	return &client{core, coordination, runtime.NewParameterCodec(scheme)}, nil
}

// objects are those of one kind in a place: the client of `gentype` does the same, and has a great deal behind it.
type objects[T runtime.Object] struct {
	rest      rest.Interface
	params    runtime.ParameterCodec
	plural    string
	namespace string
	empty     func() T
}

func (c *client) nodes() objects[*corev1.Node] {
	return objects[*corev1.Node]{c.core, c.params, "nodes", "", func() *corev1.Node { return &corev1.Node{} }}
}

func (c *client) pods(namespace string) objects[*corev1.Pod] {
	return objects[*corev1.Pod]{c.core, c.params, "pods", namespace, func() *corev1.Pod { return &corev1.Pod{} }}
}

func (c *client) events(namespace string) objects[*corev1.Event] {
	return objects[*corev1.Event]{c.core, c.params, "events", namespace, func() *corev1.Event { return &corev1.Event{} }}
}

func (c *client) leases() objects[*coordinationv1.Lease] {
	return objects[*coordinationv1.Lease]{c.coordination, c.params, "leases", corev1.NamespaceNodeLease,
		func() *coordinationv1.Lease { return &coordinationv1.Lease{} }}
}

func (r objects[T]) at(req *rest.Request) *rest.Request {
	return req.NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.plural)
}

func (r objects[T]) answer(ctx context.Context, req *rest.Request) (T, error) {
	o := r.empty()
	err := req.Do(ctx).Into(o)
	return o, err
}

func (r objects[T]) get(ctx context.Context, name string) (T, error) {
	return r.answer(ctx, r.at(r.rest.Get()).Name(name))
}

func (r objects[T]) create(ctx context.Context, o T) (T, error) {
	return r.answer(ctx, r.at(r.rest.Post()).Body(o))
}

func (r objects[T]) update(ctx context.Context, name string, o T) (T, error) {
	return r.answer(ctx, r.at(r.rest.Put()).Name(name).Body(o))
}

func (r objects[T]) patch(ctx context.Context, name string, kind types.PatchType, data []byte, subresource ...string) (T, error) {
	return r.answer(ctx, r.at(r.rest.Patch(kind)).Name(name).SubResource(subresource...).Body(data))
}

func (r objects[T]) delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return r.at(r.rest.Delete()).Name(name).Body(&o).Do(ctx).Error()
}

// follow lists and watches the objects that a field selector chooses.
func (r objects[T]) follow(selector string, list func() runtime.Object) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			into := list()
			return into, r.at(r.rest.Get()).VersionedParams(&o, r.params).Do(ctx).Into(into)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector, o.Watch = selector, true
			return r.at(r.rest.Get()).VersionedParams(&o, r.params).Watch(ctx)
		},
	}
}
