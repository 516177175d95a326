package kubetest

import (
	"context"
	"fmt"
	"reflect"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// object is an object of the API.
type object interface {
	metav1.Object
	runtime.Object
}

// api reads and writes the objects of the kinds that the table needs.
type api struct {
	clients map[schema.GroupVersion]*rest.RESTClient
	codec   runtime.ParameterCodec
}

func newAPI(config *rest.Config) (*api, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make scheme: %w", err)
		}
	}
	a := &api{map[schema.GroupVersion]*rest.RESTClient{}, runtime.NewParameterCodec(scheme)}
	for _, gv := range []schema.GroupVersion{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, appsv1.SchemeGroupVersion, networkingv1.SchemeGroupVersion} {
		c := rest.CopyConfig(config)
		c.QPS = -1                           // as fast as the server allows
		c.WarningHandler = rest.NoWarnings{} // about deprecated kinds, which have to work nevertheless
		c.GroupVersion, c.APIPath = &gv, "/apis"
		if gv.Group == "" {
			c.APIPath = "/api"
		}
		c.AcceptContentTypes, c.ContentType = runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON, runtime.ContentTypeProtobuf
		c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		client, err := rest.RESTClientFor(c)
		if err != nil {
			return nil, fmt.Errorf("make client: %w", err)
		}
		a.clients[gv] = client
	}
	return a, nil
}

// kind returns the API's resource of o's kind.
func kind(o object) (gv schema.GroupVersion, resource string) {
	switch o.(type) {
	case *corev1.Namespace:
		return corev1.SchemeGroupVersion, "namespaces"
	case *corev1.Node:
		return corev1.SchemeGroupVersion, "nodes"
	case *corev1.Pod:
		return corev1.SchemeGroupVersion, "pods"
	case *corev1.Service:
		return corev1.SchemeGroupVersion, "services"
	//lint:ignore SA1019 what is still mirrored into slices
	case *corev1.Endpoints:
		return corev1.SchemeGroupVersion, "endpoints"
	case *discoveryv1.EndpointSlice:
		return discoveryv1.SchemeGroupVersion, "endpointslices"
	case *networkingv1.ServiceCIDR:
		return networkingv1.SchemeGroupVersion, "servicecidrs"
	}
	panic(fmt.Sprintf("no resource is known for %T", o))
}

// name is what errors call an object.
func name(o object) string {
	_, resource := kind(o)
	return resource + " " + o.GetName()
}

// at begins a request for an object.
func (a *api) at(verb string, o object) *rest.Request {
	gv, resource := kind(o)
	return a.clients[gv].Verb(verb).NamespaceIfScoped(o.GetNamespace(), o.GetNamespace() != "").Resource(resource)
}

// patience is the time-out for what the cluster does by itself. On a busy machine scheduler and
// controllers take a while to lead again after the API was away.
const patience = 2 * time.Minute

// create creates an object, in place of the given one. A new namespace refuses pods until its
// service account exists; create waits for that.
func (a *api) create(ctx context.Context, o object) error {
	return until(ctx, func() error {
		err := a.at("POST", o).Body(o).Do(ctx).Into(o)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("create %s: %w", name(o), err)
		if apierrors.IsForbidden(err) {
			return err
		}
		return final{err}
	})
}

// get reads the object that has o's name, into o.
func (a *api) get(ctx context.Context, o object) error {
	got, err := a.at("GET", o).Name(o.GetName()).Do(ctx).Get()
	if err != nil {
		return fmt.Errorf("get %s: %w", name(o), err)
	}
	reflect.ValueOf(o).Elem().Set(reflect.ValueOf(got).Elem()) // decoding into o would keep removed keys of its maps
	return nil
}

// change reads the object with o's name, changes it and writes it, or its status.
func change[O object](ctx context.Context, a *api, o O, subresource string, f func(O)) error {
	return until(ctx, func() error {
		if err := a.get(ctx, o); err != nil {
			return final{err}
		}
		f(o)
		err := a.at("PUT", o).Name(o.GetName()).SubResource(subresource).Body(o).Do(ctx).Into(o)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("change %s: %w", name(o), err)
		if apierrors.IsConflict(err) {
			return err
		}
		return final{err}
	})
}

// remove deletes the object with o's name. It may take grace seconds to end; with a negative
// number, the object decides. Removing an absent object succeeds.
func (a *api) remove(ctx context.Context, o object, grace int64) error {
	options := &metav1.DeleteOptions{}
	if grace >= 0 {
		options.GracePeriodSeconds = &grace
	}
	err := a.at("DELETE", o).Name(o.GetName()).Body(options).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", name(o), err)
	}
	return nil
}

// removeAll deletes all objects of o's kind in its namespace, at once.
func (a *api) removeAll(ctx context.Context, o object) error {
	if err := a.at("DELETE", o).Body(metav1.NewDeleteOptions(0)).Do(ctx).Error(); err != nil {
		return fmt.Errorf("delete all of %T in %s: %w", o, o.GetNamespace(), err)
	}
	return nil
}

// list reads all objects of a namespace that a label selector matches, into a list of o's kind.
func (a *api) list(ctx context.Context, o object, labels string, into runtime.Object) error {
	options := metav1.ListOptions{LabelSelector: labels}
	if err := a.at("GET", o).VersionedParams(&options, a.codec).Do(ctx).Into(into); err != nil {
		return fmt.Errorf("list %T: %w", into, err)
	}
	return nil
}

// final is an error that retries cannot help.
type final struct{ error }

func (f final) Unwrap() error { return f.error }
