package bench

import (
	"sluice.dev/sluice/test/bench/experiment/accelerate"
	"sluice.dev/sluice/test/bench/experiment/balancer"
	"sluice.dev/sluice/test/bench/experiment/baseline"
	"sluice.dev/sluice/test/bench/experiment/fabric"
	"sluice.dev/sluice/test/bench/experiment/hostile"
	"sluice.dev/sluice/test/bench/experiment/kubeproxy"
	"sluice.dev/sluice/test/bench/experiment/modes"
	"sluice.dev/sluice/test/bench/experiment/nodes"
	"sluice.dev/sluice/test/bench/experiment/policy"
	"sluice.dev/sluice/test/bench/experiment/services"
	"sluice.dev/sluice/test/bench/experiment/soak"
	"sluice.dev/sluice/test/bench/harness"
)

// Experiments returns all experiments in the order in which they run. A new one is a file in
// experiment/FAMILY with a harness.Experiment, and a line here.
func Experiments() []harness.Experiment {
	return []harness.Experiment{
		services.Connections,
		services.Requests,
		services.Latency,
		services.Programming,
		services.Changes,
		services.Footprint,
		services.Restart,
		policy.Rules,
		policy.Lists,
		policy.Copy,
		policy.Loading,
		policy.Changes,
		policy.Cut,
		policy.Start,
		policy.Cost,
		services.Removal,
		kubeproxy.Start,
		kubeproxy.Memory,
		kubeproxy.Change,
		kubeproxy.Burst,
		kubeproxy.CPU,
		kubeproxy.Connections,
		kubeproxy.Rollout,
		modes.Connections,
		modes.Changes,
		modes.Bulk,
		fabric.Bandwidth,
		fabric.Requests,
		fabric.CNI,
		fabric.Nodes,
		fabric.BGP,
		nodes.Pods,
		balancer.Requests,
		balancer.Loading,
		balancer.Changes,
		balancer.Interruptions,
		balancer.Packets,
		balancer.Checks,
		accelerate.Sockets,
		accelerate.Changes,
		accelerate.Direct,
		accelerate.Drop,
		accelerate.Connection,
		accelerate.Established,
		soak.Experiment,
		hostile.Objects,
		hostile.Memory,
		baseline.Experiment,
	}
}
