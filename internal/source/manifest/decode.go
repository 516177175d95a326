package manifest

import (
	"fmt"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/internal/source/kubeobj"
)

// decoder fills Kubernetes' own types from JSON, with the fields that kubeobj
// looks at and no others: several times as fast as decoding everything by
// reflection, and without garbage for what is thrown away. A decoder serves
// one goroutine.
type decoder struct {
	scanner
	names interner

	slice     discoveryv1.EndpointSlice // filled anew for each slice
	addresses []string                  // room for the addresses of slice
	zones     []discoveryv1.ForZone     // room for the hints of slice
	nodes     []discoveryv1.ForNode
	hints     []discoveryv1.EndpointHints
}

var yes, no = true, false

// str reads a string that is likely to be unlike all others.
func (d *decoder) str(to *string) error {
	b, err := d.text()
	if err == nil && b != nil {
		*to = string(b)
	}
	return err
}

// name reads a string that is likely to come again.
func (d *decoder) name(to *string) error {
	b, err := d.text()
	if err == nil && b != nil {
		*to = *d.names.intern(b)
	}
	return err
}

func (d *decoder) namePointer(to **string) error {
	b, err := d.text()
	if err == nil && b != nil {
		*to = d.names.intern(b)
	}
	return err
}

// enumPointer is namePointer for the types that Kubernetes makes of strings.
func enumPointer[T ~string](d *decoder, to **T) error {
	b, err := d.text()
	if err == nil && b != nil {
		v := T(*d.names.intern(b))
		*to = &v
	}
	return err
}

func (d *decoder) boolPointer(to **bool) error {
	if d.null() {
		return nil
	}
	var v bool
	if err := d.boolean(&v); err != nil {
		return err
	}
	*to = &no
	if v {
		*to = &yes
	}
	return nil
}

func (d *decoder) int32Pointer(to **int32) error {
	if d.null() {
		return nil
	}
	*to = new(int32)
	return d.int32(*to)
}

func (d *decoder) intOrString(to *intstr.IntOrString) error {
	if d.peek() == '"' {
		to.Type = intstr.String
		return d.str(&to.StrVal)
	}
	to.Type = intstr.Int
	return d.int32(&to.IntVal)
}

func (d *decoder) time(to *metav1.Time) error {
	b, err := d.text()
	if err != nil || b == nil {
		return err
	}
	if to.Time, err = time.Parse(time.RFC3339, string(b)); err != nil {
		return &fieldError{reason: fmt.Sprintf("%.40q is no time such as 2006-01-02T15:04:05Z", b)}
	}
	return nil
}

func (d *decoder) strings(to *[]string) error {
	*to = nil
	return d.list(func(int) error {
		*to = append(*to, "")
		return d.str(&(*to)[len(*to)-1])
	})
}

func (d *decoder) stringMap(to *map[string]string) error {
	*to = nil
	return d.object(func(key []byte) error {
		var v string
		k := *d.names.intern(key)
		err := d.str(&v)
		if *to == nil {
			*to = make(map[string]string, 4)
		}
		(*to)[k] = v
		return err
	})
}

// grow appends an empty item to a list and returns a pointer to it.
func grow[T any](list *[]T) *T {
	var zero T
	*list = append(*list, zero)
	return &(*list)[len(*list)-1]
}

func (d *decoder) meta(m *metav1.ObjectMeta) error {
	return d.object(func(key []byte) error {
		switch string(key) {
		case "name":
			return d.str(&m.Name)
		case "namespace":
			return d.name(&m.Namespace)
		case "labels":
			return d.stringMap(&m.Labels)
		case "annotations":
			return d.annotations(m)
		case "creationTimestamp":
			return d.time(&m.CreationTimestamp)
		case "deletionTimestamp":
			m.DeletionTimestamp = nil
			if d.null() {
				return nil
			}
			m.DeletionTimestamp = new(metav1.Time)
			return d.time(m.DeletionTimestamp)
		}
		return d.skip()
	})
}

// annotations keeps those that kubeobj reads; others can be large.
func (d *decoder) annotations(m *metav1.ObjectMeta) error {
	return d.object(func(key []byte) error {
		i := slices.Index(kubeobj.Annotations, string(key))
		if i < 0 {
			return d.skip()
		}
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		var v string
		err := d.str(&v)
		m.Annotations[kubeobj.Annotations[i]] = v
		return err
	})
}
