package kinds

import "strings"

// Resource is where an API serves objects.
type Resource struct {
	Group, Version string // Group "" is the core
	Plural         string
}

// Path is the resource's place below the API's address.
func (r Resource) Path() string {
	if r.Group == "" {
		return "/api/" + r.Version + "/" + r.Plural
	}
	return "/apis/" + r.Group + "/" + r.Version + "/" + r.Plural
}

// In is the resource's place in a namespace; "" is the cluster.
func (r Resource) In(namespace string) string {
	if namespace == "" {
		return r.Path()
	}
	return strings.TrimSuffix(r.Path(), r.Plural) + "namespaces/" + namespace + "/" + r.Plural
}

// APIVersion is "v1", "projectcalico.org/v3".
func (r Resource) APIVersion() string {
	if r.Group == "" {
		return r.Version
	}
	return r.Group + "/" + r.Version
}

// String returns "networkpolicies.networking.k8s.io", as the API's own messages do.
func (r Resource) String() string {
	if r.Group == "" {
		return r.Plural
	}
	return r.Plural + "." + r.Group
}
