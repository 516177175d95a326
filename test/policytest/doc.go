// Package policytest holds what network policy is tested with: cases as data
// (Kubernetes' end-to-end tests of NetworkPolicy and the conformance suite of
// ClusterNetworkPolicy), random clusters, and the machinery that puts them to Sluice and
// to the oracle, in theory and in real packets between network namespaces.
package policytest
