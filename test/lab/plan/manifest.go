package plan

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/internal/source/manifest"
)

// Objects is what a user's manifests declare, as far as the lab uses it.
type Objects struct {
	Namespaces []*corev1.Namespace
	Accounts   []*corev1.ServiceAccount // policies select by their labels
	Workloads  []Workload
	Services   []*corev1.Service
	Slices     []*discoveryv1.EndpointSlice
	Policies   []Policy
	Passed     map[string]int // objects of other kinds, by kind
	Faults     []string       // what could not be read: the file, the document or object, and the reason
}

// Read reads manifests from files and folders as agents do: YAML with one or many documents, JSON,
// and Lists. From a folder it reads the .yaml, .yml and .json files, not those of sub-folders.
// Malformed objects are left out and listed in Faults. An error means that a path cannot be read,
// or that nothing in it is usable.
func Read(paths ...string) (*Objects, error) {
	objs := &Objects{}
	for _, p := range paths {
		info, err := os.Stat(p)
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		dir, pattern := p, ""
		if !info.IsDir() {
			dir, pattern = filepath.Dir(p), filepath.Base(p)
		}
		if err := objs.add(os.DirFS(dir), dir, pattern); err != nil {
			return nil, err
		}
	}
	return objs, objs.finish()
}

// ReadFS is Read for all manifests at the top level of a file system.
func ReadFS(fsys fs.FS) (*Objects, error) {
	objs := &Objects{}
	if err := objs.add(fsys, ".", ""); err != nil {
		return nil, err
	}
	return objs, objs.finish()
}

// add reads one file of a folder, or all its manifests if name is empty. where is the name of the
// folder in errors.
func (o *Objects) add(fsys fs.FS, where, name string) error {
	names := []string{name}
	if name == "" {
		names = nil
		entries, err := fs.ReadDir(fsys, ".")
		if err != nil {
			return fmt.Errorf("read manifests in %s: %w", where, err)
		}
		for _, e := range entries {
			switch path.Ext(e.Name()) {
			case ".yaml", ".yml", ".json":
				names = append(names, e.Name())
			}
		}
		if len(names) == 0 {
			return fmt.Errorf("read manifests in %s: no .yaml, .yml or .json file there", where)
		}
	}
	for _, n := range names {
		data, err := fs.ReadFile(fsys, n)
		if err != nil {
			return fmt.Errorf("read manifest: %w", err)
		}
		o.parse(filepath.Join(where, n), data)
	}
	return nil
}

// parse adds all documents of one file.
func (o *Objects) parse(file string, data []byte) {
	for d := range manifest.Documents(data) {
		line, err := d.ErrAt, d.Err
		if err == nil {
			line, err = d.Line, o.object(d.JSON)
		}
		if err != nil {
			o.Faults = append(o.Faults, fmt.Sprintf("%s:%d: a document is left out: %v", file, line, err))
		}
	}
}

// object adds one object, or a list's.
func (o *Objects) object(doc []byte) error {
	var head struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        struct{ Namespace, Name string }
		Items           []json.RawMessage
	}
	if err := json.Unmarshal(doc, &head); err != nil {
		return err
	}
	for i, item := range head.Items {
		if err := o.object(item); err != nil {
			return fmt.Errorf("item %d: %w", i+1, err)
		}
	}
	if head.Items != nil {
		return nil
	}
	var err error
	if policyScope(head.APIVersion, head.Kind) == notPolicy {
		err = o.typed(head.APIVersion, head.Kind, doc)
	} else {
		err = o.policy(Policy{
			APIVersion: head.APIVersion, Kind: head.Kind,
			Namespace: head.Metadata.Namespace, Name: head.Metadata.Name, Object: slices.Clone(doc),
		})
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", head.Kind, head.Metadata.Name, err)
	}
	return nil
}

// typed decodes an object of a kind that the lab knows, and counts the others.
func (o *Objects) typed(version, kind string, doc []byte) error {
	switch version + " " + kind {
	case "v1 Namespace":
		return decode(doc, &o.Namespaces)
	case "v1 ServiceAccount":
		return decode(doc, &o.Accounts)
	case "v1 Service":
		return decode(doc, &o.Services)
	case "discovery.k8s.io/v1 EndpointSlice":
		return decode(doc, &o.Slices)
	case "v1 Pod":
		return addWorkload(o, doc, podWorkload)
	case "apps/v1 Deployment":
		return addWorkload(o, doc, func(d *appsv1.Deployment) Workload {
			return workload(kind, d.ObjectMeta, d.Spec.Replicas, d.Spec.Template)
		})
	case "apps/v1 ReplicaSet":
		return addWorkload(o, doc, func(r *appsv1.ReplicaSet) Workload {
			return workload(kind, r.ObjectMeta, r.Spec.Replicas, r.Spec.Template)
		})
	case "apps/v1 StatefulSet":
		return addWorkload(o, doc, statefulWorkload)
	case "apps/v1 DaemonSet":
		return addWorkload(o, doc, func(d *appsv1.DaemonSet) Workload {
			return workload(kind, d.ObjectMeta, nil, d.Spec.Template)
		})
	}
	if kind == "" {
		return errors.New("no kind: not a Kubernetes object")
	}
	if o.Passed == nil {
		o.Passed = map[string]int{}
	}
	o.Passed[kind]++
	return nil
}

// finish defaults namespaces and removes what an API server would refuse: objects without a name,
// and duplicates of kind and name. If nothing remains, it returns an error.
func (o *Objects) finish() error {
	seen := map[string]bool{}
	refused := func(kind, namespace, name string) bool {
		key := kind + " " + namespace + "/" + name
		switch {
		case name == "":
			o.Faults = append(o.Faults, fmt.Sprintf("a %s in namespace %s is left out: it has no name", kind, namespace))
		case seen[key]:
			o.Faults = append(o.Faults, key+" is declared twice: the second is left out")
		default:
			seen[key] = true
			return false
		}
		return true
	}
	o.Services = slices.DeleteFunc(o.Services, func(s *corev1.Service) bool {
		s.Namespace = orDefault(s.Namespace)
		return refused("Service", s.Namespace, s.Name)
	})
	o.Accounts = slices.DeleteFunc(o.Accounts, func(a *corev1.ServiceAccount) bool {
		a.Namespace = orDefault(a.Namespace)
		return refused("ServiceAccount", a.Namespace, a.Name)
	})
	o.Slices = slices.DeleteFunc(o.Slices, func(s *discoveryv1.EndpointSlice) bool {
		s.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
		s.Namespace = orDefault(s.Namespace)
		return refused("EndpointSlice", s.Namespace, s.Name)
	})
	o.Policies = slices.DeleteFunc(o.Policies, func(p Policy) bool { return refused(p.Resource(), p.Namespace, p.Name) })
	o.Workloads = slices.DeleteFunc(o.Workloads, func(w Workload) bool { return refused(w.Kind, w.Namespace, w.Name) })
	if len(o.Services)+len(o.Workloads)+len(o.Slices) == 0 {
		return fmt.Errorf("read manifests: no Service and no workload in them; %s", cmp.Or(strings.Join(o.Faults, "; "), "only other kinds"))
	}
	return nil
}

func decode[T any](doc []byte, to *[]*T) error {
	v := new(T)
	if err := json.Unmarshal(doc, v); err != nil {
		return err
	}
	*to = append(*to, v)
	return nil
}

func addWorkload[T any](o *Objects, doc []byte, f func(*T) Workload) error {
	v := new(T)
	if err := json.Unmarshal(doc, v); err != nil {
		return err
	}
	o.Workloads = append(o.Workloads, f(v))
	return nil
}

func orDefault(namespace string) string {
	if namespace == "" {
		return metav1.NamespaceDefault
	}
	return namespace
}
