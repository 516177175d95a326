// Package deploy contains what installs Sluice: a Helm chart, manifests for kustomize, a systemd
// unit. A test compares them and tries them on a real API server.
package deploy

import "embed"

// Manifests are kustomize's manifests, YAML documents: what the chart makes with its default
// values.
//
//go:embed kustomize/base/sluice.yaml
var Manifests []byte

// Kustomize is the folder of all that kustomize installs, its components included.
//
//go:embed kustomize
var Kustomize embed.FS

// Chart is the folder that contains the Helm chart.
//
//go:embed all:helm/sluice
var Chart embed.FS
