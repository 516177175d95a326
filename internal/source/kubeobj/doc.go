// Package kubeobj translates Kubernetes API objects, as k8s.io/api declares them, into model
// values. All sources of Kubernetes objects use it, so that a manifest and the API server mean the
// same.
//
// Each function returns an object, an error, or both:
//
//   - an object and no error: the object has no fault;
//   - an object and an error: the object is usable; the error says what was left out of it and why;
//   - no object and an error: the object is faulty as a whole, and the caller keeps the last good
//     version.
//
// Errors name each faulty field as "spec.ports[0].port", several of them separated by "; ". The
// results share strings and maps with their input, but not slices, so the input's maps must not
// change afterwards. An input must have its namespace set. All functions are pure and safe for
// concurrent use.
package kubeobj
