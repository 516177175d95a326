module sluice.dev/sluice/test/kube/clusterpolicy

go 1.26.6

require sigs.k8s.io/network-policy-api v0.3.0

require (
	k8s.io/apiextensions-apiserver v0.37.1 // indirect
	k8s.io/apimachinery v0.37.1 // indirect
	k8s.io/client-go v0.37.1 // indirect
	sigs.k8s.io/controller-runtime v0.25.2 // indirect
)
