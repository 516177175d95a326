// Package kube is the source that reads objects from the Kubernetes API and
// follows their changes.
//
// Each kind has a follower: it reads the whole list page by page, translates each object as soon as
// it has been read and keeps nothing but the result, then watches. It goes on from where it was
// when a watch ends for whatever reason, and reads the list anew only where the API has no history
// left, has gone back to an older one, or was away for long, as it may be another one by then.
// Nothing of a list is delivered before all of it has been read, and then only what is new, other
// or gone. So an API that is away, slow or forgetful changes nothing.
//
// Of client-go the package takes what knows how to reach an API server:
// kubeconfig files, credentials and their rotation, TLS. It does not take its
// reflector. That decodes lists and watches as a whole, so that one object that
// does not fit its type would hold up all of its kind; it holds all objects in
// their API types while it reads a list; it reads the list anew after most
// errors; and it tells nobody what went wrong. Built-in kinds are asked for in protobuf.
// Policies are asked for in JSON: in it, a field that this program does not know
// can be seen, and refused, as it might have narrowed what the policy allows.
//
// Lists are consistent reads (no resourceVersion is asked for), so that what is
// read is never older than what an earlier life of the agent has programmed.
//
// Kinds that the API need not have (ClusterNetworkPolicy, Calico's) are followed
// while its discovery names them, which is looked at every few seconds. Calico's
// are read as projectcalico.org/v3 where that is served, or else as
// crd.projectcalico.org/v1, never both.
//
// An API server that is just starting refuses what it will allow, and lacks kinds that it will
// have. Both are believed only of one that calls itself ready, or that says so for long.
//
// A kind that may not be read, or that fails where others do not, does not hold
// up the rest: it is told in Issues and Lacking. What is at fault in an object
// costs no other object anything, and its last good version stays. Where a policy
// never had one, a policy that denies is delivered in its place, if it is known whom it
// applies to; so it is with network sets, see model.StandIn.
package kube
