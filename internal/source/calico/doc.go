// Package calico translates Calico's resources (projectcalico.org/v3, and the
// same kinds as crd.projectcalico.org/v1 stores them) into model values: tiers,
// policies, network sets, host endpoints, pools and blocks, and the language of their
// selectors. Every source that meets them shares it.
//
// Decoding is strict: a field that is not known here, or not supported, makes
// the whole object refused by the field's name, so that nothing is ever applied
// in part. What only describes an object (its status, the metadata of rules,
// performance hints) is passed over. Errors name each field at fault as
// "spec.ingress[0].http: is not supported", several of them separated by "; ".
//
// What the fields mean is taken from Calico's resource reference
// (https://docs.tigera.io/calico/latest/reference/resources/) and the
// validation rules of its API types. All functions are pure and safe for
// concurrent use.
package calico
