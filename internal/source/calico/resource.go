package calico

import (
	"encoding/json"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	"sluice.dev/sluice/internal/source/fault"
)

// resource is what all kinds have in common. Nobody looks at the status.
type resource struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   json.RawMessage `json:"metadata"`
	Spec       json.RawMessage `json:"spec"`
	Status     json.RawMessage `json:"status"`
}

// metadata is what is of interest of an object's metadata; there may be more.
type metadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`

	CreationTimestamp metav1.Time `json:"creationTimestamp"`
}

// metadataAnnotation is where Calico, storing a resource, puts most of the
// metadata that its user gave it: the labels, and the name of a policy.
const metadataAnnotation = "projectcalico.org/metadata"

// open decodes a resource: its spec strictly, its metadata as far as it is of interest.
func open[Spec any](data []byte, f *fault.List) (metadata, Spec) {
	var spec Spec
	m, text := head(data, f)
	body(text, &spec, f)
	return m, spec
}

// head decodes all but the spec of a resource.
func head(data []byte, f *fault.List) (m metadata, spec json.RawMessage) {
	var r resource
	if !strict(data, &r, "", f) {
		return m, nil
	}
	if len(r.Metadata) > 0 {
		read(r.Metadata, &m, "metadata", f)
	}
	if stored, ok := m.Annotations[metadataAnnotation]; ok {
		restore(&m, stored, f)
	}
	checkName("metadata.name", m.Name, f)
	return m, r.Spec
}

// body decodes a spec strictly; it may be missing.
func body(text json.RawMessage, spec any, f *fault.List) {
	if len(text) > 0 {
		strict(text, spec, "spec", f)
	}
}

// read decodes what may hold more than v has fields for.
func read(data []byte, v any, where string, f *fault.List) {
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, v); err != nil {
		misfit(data, err, where, f)
	}
}

// restore adds the user's metadata to that of a stored object.
func restore(m *metadata, stored string, f *fault.List) {
	var user metadata
	read([]byte(stored), &user, "metadata.annotations["+metadataAnnotation+"]", f)
	if user.Name != "" {
		m.Name = user.Name
	}
	if m.Labels == nil {
		m.Labels = user.Labels
		return
	}
	maps.Copy(m.Labels, user.Labels)
}

// namespace is where a namespaced object is.
func (m *metadata) namespace(f *fault.List) string {
	if m.Namespace == "" {
		return "default"
	}
	checkName("metadata.namespace", m.Namespace, f)
	return m.Namespace
}

// checkName holds names to the characters that the API server admits: they go
// into log lines and comments in the kernel.
func checkName(field, name string, f *fault.List) {
	if name == "" {
		f.Reject(field, "is missing")
	} else if len(validation.IsDNS1123Subdomain(name)) > 0 {
		f.Reject(field, "%q is no name: that has at most 253 lower-case letters, digits, '-' and '.', and each part between dots begins and ends with a letter or digit", name)
	}
}
