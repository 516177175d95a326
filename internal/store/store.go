// Package store holds the current objects of all sources with the indexes that
// the compiler needs, and the set of keys that changed since it last looked.
package store

import (
	"sluice.dev/sluice/internal/model"
)

// Kind names a kind of object that the store holds.
type Kind uint8

// The kinds, with the type that Event.Object has for each.
const (
	Services       Kind = iota // *model.Service
	EndpointSlices             // *model.EndpointSlice
	Pods                       // *model.Pod
	Nodes                      // *model.Node; the Name has no namespace
	Namespaces                 // *model.Namespace; the Name has no namespace
)

// Event is one object's current version, or its absence.
type Event struct {
	Kind   Kind
	Name   model.Name
	Object any // a pointer to the kind's model type; nil: the object is gone
}
