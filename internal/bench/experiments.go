package bench

import (
	"sluice.dev/sluice/internal/bench/experiment/balancer"
	"sluice.dev/sluice/internal/bench/experiment/baseline"
	"sluice.dev/sluice/internal/bench/experiment/fabric"
	"sluice.dev/sluice/internal/bench/experiment/hostile"
	"sluice.dev/sluice/internal/bench/experiment/kubeproxy"
	"sluice.dev/sluice/internal/bench/experiment/modes"
	"sluice.dev/sluice/internal/bench/experiment/policy"
	"sluice.dev/sluice/internal/bench/experiment/services"
	"sluice.dev/sluice/internal/bench/experiment/soak"
	"sluice.dev/sluice/internal/bench/harness"
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
		balancer.Requests,
		balancer.Loading,
		balancer.Changes,
		balancer.Interruptions,
		balancer.Packets,
		balancer.Checks,
		soak.Experiment,
		hostile.Objects,
		hostile.Memory,
		baseline.Experiment,
	}
}
