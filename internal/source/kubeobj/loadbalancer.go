package kubeobj

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sluice.dev/sluice/internal/model"
)

// MetalLB's annotations of Services. Each is also read with the older prefix.
const (
	metallbPrefix = "metallb.io/"
	olderPrefix   = "metallb.universe.tf/"

	poolAnnotation    = "address-pool"
	ipsAnnotation     = "loadBalancerIPs"
	sharingAnnotation = "allow-shared-ip"
)

// AddressManager is the field manager of the addresses that Sluice writes into statuses.
const AddressManager = "sluice-addresses"

var serviceAnnotations = []string{
	rangesAnnotation, schedulerAnnotation,
	metallbPrefix + poolAnnotation, metallbPrefix + ipsAnnotation, metallbPrefix + sharingAnnotation,
	olderPrefix + poolAnnotation, olderPrefix + ipsAnnotation, olderPrefix + sharingAnnotation,
}

// loadBalancer returns what a service says of the addresses that a pool gives it. A fault is noted
// in there: it is one only where pools give addresses.
func loadBalancer(o *corev1.Service) *model.LoadBalancer {
	lb := &model.LoadBalancer{Wanted: o.Spec.Type == corev1.ServiceTypeLoadBalancer}
	for i := range o.Status.LoadBalancer.Ingress {
		if a, err := parseAddr(o.Status.LoadBalancer.Ingress[i].IP); err == nil {
			lb.Ingress = append(lb.Ingress, a)
		}
	}
	if !lb.Wanted && len(lb.Ingress) == 0 {
		return nil
	}
	lb.Writer = writer(o)
	lb.Class, lb.Labels = ptr.Deref(o.Spec.LoadBalancerClass, ""), o.Labels
	lb.Pool, lb.SharingKey = annotation(o, poolAnnotation), annotation(o, sharingAnnotation)
	lb.PreferDualStack = ptr.Deref(o.Spec.IPFamilyPolicy, "") == corev1.IPFamilyPolicyPreferDualStack
	lb.IPs, lb.Fault = askedFor(o)
	return lb
}

// writer returns the field manager of a status's addresses; "": it is Sluice, or not known.
func writer(o *corev1.Service) string {
	if names := Managers(o.ManagedFields, "status", "loadBalancer", "ingress"); len(names) > 0 && !slices.Contains(names, AddressManager) {
		return names[len(names)-1]
	}
	return ""
}

// Managers returns the field managers of the field of an object at a path. An item of a list that
// has keys is "k:" with those as JSON, as managedFields have it.
func Managers(fields []metav1.ManagedFieldsEntry, path ...string) (names []string) {
	for _, f := range fields {
		if f.FieldsV1 != nil && manages(f.FieldsV1.GetRawBytes(), path) {
			names = append(names, f.Manager)
		}
	}
	return names
}

func manages(fields []byte, path []string) bool {
	if !bytes.Contains(fields, []byte(`"f:`+path[len(path)-1]+`"`)) {
		return false // as most do not: they are not decoded
	}
	for _, name := range path {
		var in map[string]json.RawMessage
		if json.Unmarshal(fields, &in) != nil {
			return false
		}
		if !strings.HasPrefix(name, "k:") {
			name = "f:" + name
		}
		fields = in[name]
	}
	return fields != nil
}

// annotation returns one of MetalLB's annotations, under whichever prefix it is there.
func annotation(o *corev1.Service, name string) string {
	if v, ok := o.Annotations[metallbPrefix+name]; ok {
		return v
	}
	return o.Annotations[olderPrefix+name]
}

// askedFor returns the addresses that a service asks for, or what is wrong with them.
func askedFor(o *corev1.Service) (ips []netip.Addr, fault string) {
	list, field := o.Spec.LoadBalancerIP, "spec.loadBalancerIP"
	if listed := annotation(o, ipsAnnotation); listed != "" {
		if list != "" {
			return nil, "spec.loadBalancerIP and the annotation " + metallbPrefix + ipsAnnotation + " cannot both be there; leave the former out"
		}
		list, field = listed, "the annotation "+metallbPrefix+ipsAnnotation
	}
	if list == "" {
		return nil, ""
	}
	for text := range strings.SplitSeq(list, ",") {
		a, err := parseAddr(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Sprintf("%s: %v", field, err)
		}
		if len(ips) == 2 || len(ips) == 1 && ips[0].Is4() == a.Is4() {
			return nil, fmt.Sprintf("%s: %s: a service has at most one address of each family", field, a)
		}
		ips = append(ips, a)
	}
	return ips, ""
}
