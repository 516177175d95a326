package kubetest

import (
	"slices"
)

// Cases is the whole table. Objects are dual-stack, and requests go to the addresses of both
// families, unless a step says otherwise.
func Cases() []*Case {
	return slices.Concat(
		basicCases(), portCases(), typeCases(), externalCases(), affinityCases(), policyCases(), terminatingCases(),
		readinessCases(), sliceCases(), topologyCases(), flowCases(), lifeCases(), restartCases(),
	)
}
