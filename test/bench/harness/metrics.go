package harness

// The metrics that several experiments share.
const (
	Started      = "start to programmed"
	Adopted      = "start to adopted"
	Resident     = "resident memory"
	KernelMemory = "kernel memory"
	IdleCPU      = "CPU, nothing changes"
	ChurnCPU     = "CPU, 50 changes a second"
	Failed       = "failed requests"
	Answered     = "answered requests"
	Half         = "p50"
	NinetyNine   = "p99"
	PerFlow      = "time per new flow"
)

// The variants of PerFlow: where the flows go.
const (
	LastHit = "last service hit"
	EvenHit = "spread over all services"
)
