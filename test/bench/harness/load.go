package harness

import (
	"context"

	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/load"
	"sluice.dev/sluice/test/bench/testbed"
)

// Load sends requests through a testbed; the connection table is emptied before and after.
func (r *Run) Load(ctx context.Context, l *testbed.Testbed, c load.Config) (*load.Result, error) {
	if err := l.FlushConntrack(); err != nil {
		return nil, err
	}
	c.Client, c.Sources, c.Backend, c.Port, c.CPU = l.Client, testbed.ClientAddrs(), l.Backend, cluster.TargetPort, PacketCPU
	res, err := load.Run(ctx, c)
	if err != nil {
		return nil, err
	}
	return res, l.FlushConntrack()
}
