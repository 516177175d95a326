package bench

// What several experiments measure.
const (
	started      = "start to programmed"
	adopted      = "start to adopted"
	resident     = "resident memory"
	kernelMemory = "kernel memory"
	idleCPU      = "CPU, nothing changes"
	churnCPU     = "CPU, 50 changes a second"
	failed       = "failed requests"
	answered     = "answered requests"
	half         = "p50"
	ninetyNine   = "p99"
	perFlow      = "time per new flow"
)

// The services that the flows of perFlow go to.
const (
	lastHit = "last service hit"
	evenHit = "spread over all services"
)

// maxFlows is the most flows of a run: the connection table holds 262,144 entries.
const maxFlows = 200_000
