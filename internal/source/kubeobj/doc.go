// Package kubeobj translates Kubernetes API objects, as k8s.io/api declares
// them, into model values. Every source that speaks Kubernetes objects shares
// it, so that a manifest and the API server mean the same thing.
//
// Each function returns an object, an error, or both:
//
//   - an object and no error: all of it is good;
//   - an object and an error: the object is usable, the error says what was
//     left out of it and why;
//   - no object and an error: the object as a whole is at fault, and the
//     caller keeps the last good version of it.
//
// Errors name each field at fault as "spec.ports[0].port", several of them
// separated by "; ". The results share strings and maps with their input,
// never slices, so the input's maps must not change afterwards. An input must
// have its namespace set already. All functions are pure and safe for
// concurrent use.
package kubeobj
