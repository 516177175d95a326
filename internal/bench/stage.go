package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/lane"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/pin"
)

// spec is one case of an experiment: a data plane that holds a cluster.
type spec struct {
	dataplane peer.Dataplane
	cluster   cluster.Cluster
}

func (s spec) String() string {
	return fmt.Sprintf("%s, %s services", s.dataplane.Name(), chart.Number(float64(s.cluster.Services)))
}

// stage is a case, built and loaded.
type stage struct {
	spec
	*lane.Lane
	loaded *peer.Loaded
}

// newLane makes the run's next lane.
func (r *run) newLane() (*lane.Lane, error) {
	r.lanes++
	return lane.New(fmt.Sprintf("%s-%d", r.prefix, r.lanes))
}

// build makes and loads one stage; nil, and the reason kept, where the
// machine cannot run it.
func (r *run) build(ctx context.Context, s spec) (*stage, error) {
	if most, why := s.dataplane.Limit(); most > 0 && s.cluster.Services > most {
		r.skip("%s: %s", s, why)
		return nil, nil
	}
	l, err := r.newLane()
	if err != nil {
		return nil, err
	}
	loaded, err := s.dataplane.Load(ctx, l.Node, s.cluster)
	if err != nil {
		err = fmt.Errorf("load %s: %w", s, err)
		if errors.Is(err, peer.ErrMissing) {
			r.skip("%s", err)
			err = nil
		}
		return nil, errors.Join(err, l.Close())
	}
	r.progress("loaded %s in %s", s, loaded.Took.Round(time.Millisecond))
	return &stage{spec: s, Lane: l, loaded: loaded}, nil
}

// buildAll makes the stages of all cases that the machine can run.
func (r *run) buildAll(ctx context.Context, specs []spec) ([]*stage, error) {
	var stages []*stage
	for _, s := range specs {
		st, err := r.build(ctx, s)
		if err != nil {
			return nil, errors.Join(err, closeAll(stages))
		}
		if st != nil {
			stages = append(stages, st)
		}
	}
	return stages, nil
}

// Close ends the stage's processes and removes its namespaces.
func (s *stage) Close() error { return errors.Join(s.loaded.Close(), s.Lane.Close()) }

func closeAll(stages []*stage) error {
	var errs []error
	for _, s := range stages {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// alternate builds all cases, keeps a CPU free for them, and measures each once
// a round.
func (r *run) alternate(ctx context.Context, specs []spec, measure func(context.Context, *stage) error) (err error) {
	stages, err := r.buildAll(ctx, specs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(stages)) }()
	if err := pin.Reserve(packetCPU); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pin.Release()) }()
	for round := range r.Options.Rounds {
		for _, s := range stages {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.progress("round %d of %d: %s", round+1, r.Options.Rounds, s.spec)
			if err := measure(ctx, s); err != nil {
				return fmt.Errorf("measure %s: %w", s.spec, err)
			}
		}
	}
	return nil
}

// record files a sample of this stage.
func (r *run) record(s spec, variant, metric, unit string, sample float64) {
	r.add(Measurement{
		Dataplane: s.dataplane.Name(), Services: s.cluster.Services, Endpoints: s.cluster.Services * s.cluster.Endpoints,
		Variant: variant, Metric: metric, Unit: unit,
	}, sample)
}

// cases pairs each data plane with each number of services; the sizes of one
// data plane follow each other, as they are compared with each other.
func cases(endpoints int, nodePort uint16, services []int, planes ...peer.Dataplane) []spec {
	var specs []spec
	for _, d := range planes {
		for _, n := range services {
			specs = append(specs, spec{d, cluster.Cluster{Services: n, Endpoints: endpoints, NodePort: nodePort}})
		}
	}
	return specs
}
