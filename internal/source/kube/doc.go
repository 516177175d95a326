// Package kube is the source that reads objects from the Kubernetes API and follows their changes.
//
// Each kind has a follower. It reads the whole list page by page, translates each object at once
// and keeps nothing but the result; then it watches. When a watch ends for whatever reason, it
// continues from where it was. It reads the list again only if the API has no history left, has
// gone back to an older state, or was away for long, as it may be another one by then. Nothing of a
// list is delivered before all of it has been read, and then only what is new, changed or gone. So
// an API that is away or slow, or has lost its history, changes nothing.
//
// From client-go the package takes the part that reaches an API server: kubeconfig files,
// credentials and their rotation, TLS. It does not take its reflector. That decodes lists and
// watches as a whole, so that one object that does not fit its type would hold up all of its kind.
// It holds all objects in their API types while it reads a list, it reads the list again after most
// errors, and it reports to nobody what went wrong. Built-in kinds are requested in protobuf.
// Policies are requested in JSON: there a field that this program does not know can be noticed, and
// the policy refused, as the field might have narrowed what the policy allows.
//
// Lists are consistent reads (without a resourceVersion), so that what is read is never older than
// what an earlier agent has programmed.
//
// Optional kinds (ClusterNetworkPolicy, Calico's) are followed while the API's discovery names
// them, which is checked every few seconds. Calico's are read as projectcalico.org/v3 if that is
// served, otherwise as crd.projectcalico.org/v1, never both.
//
// An API server that is just starting refuses requests that it will allow, and lacks kinds that it
// will serve. Neither counts before it says that it is ready, or has said the same for long.
//
// A kind that the agent may not read, or that fails where others do not, does not hold up the rest:
// Issues and Lacking name it. A fault in an object affects no other object, and its last good
// version stays. If a policy never had one, a policy that denies is delivered in its place, if it
// is known to whom it applies. The same goes for network sets, see model.StandIn.
package kube
