package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/cpuaffinity"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/testbed"
)

// contender is one case of an experiment that is measured beside others.
type contender interface {
	fmt.Stringer
	// refusal says why it is not to be run; "" if nothing speaks against it.
	refusal() string
	// testbed builds the path that it stands on; the names of the namespaces begin with prefix.
	testbed(prefix string) (*testbed.Testbed, error)
	load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error)
}

// spec is a contender: a data plane that holds a cluster.
type spec struct {
	dataplane peer.Dataplane
	cluster   cluster.Cluster
}

func (s spec) String() string {
	return fmt.Sprintf("%s, %s services", s.dataplane.Name(), chart.Number(float64(s.cluster.Services)))
}

func (s spec) refusal() string {
	if most, why := s.dataplane.Limit(); most > 0 && s.cluster.Services > most {
		return why
	}
	return ""
}

func (spec) testbed(prefix string) (*testbed.Testbed, error) { return testbed.New(prefix) }

func (s spec) load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	return s.dataplane.Load(ctx, l.Node, s.cluster)
}

// stage is a case, built and loaded.
type stage[C contender] struct {
	spec C
	*testbed.Testbed
	loaded *peer.Loaded
}

// nextPrefix begins the names of the run's next testbed.
func (r *run) nextPrefix() string {
	r.testbeds++
	return fmt.Sprintf("%s-%d", r.prefix, r.testbeds)
}

// newTestbed makes the run's next testbed.
func (r *run) newTestbed() (*testbed.Testbed, error) { return testbed.New(r.nextPrefix()) }

// build makes and loads one stage; nil, and the reason kept, where the
// machine cannot run it.
func build[C contender](ctx context.Context, r *run, s C) (*stage[C], error) {
	if why := s.refusal(); why != "" {
		r.skip("%s: %s", s, why)
		return nil, nil
	}
	l, err := s.testbed(r.nextPrefix())
	if err != nil {
		return nil, err
	}
	loaded, err := s.load(ctx, l)
	if err != nil {
		err = fmt.Errorf("load %s: %w", s, err)
		if errors.Is(err, peer.ErrMissing) {
			r.skip("%s", err)
			err = nil
		}
		return nil, errors.Join(err, l.Close())
	}
	r.progress("loaded %s in %s", s, loaded.Took.Round(time.Millisecond))
	return &stage[C]{spec: s, Testbed: l, loaded: loaded}, nil
}

// buildAll makes the stages of all cases that the machine can run.
func buildAll[C contender](ctx context.Context, r *run, specs []C) ([]*stage[C], error) {
	var stages []*stage[C]
	for _, s := range specs {
		st, err := build(ctx, r, s)
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
func (s *stage[C]) Close() error { return errors.Join(s.loaded.Close(), s.Testbed.Close()) }

func closeAll[C contender](stages []*stage[C]) error {
	var errs []error
	for _, s := range stages {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// alternate builds all cases, keeps a CPU free for them, and measures each once
// a round.
func alternate[C contender](ctx context.Context, r *run, specs []C, measure func(context.Context, *run, *stage[C]) error) (err error) {
	stages, err := buildAll(ctx, r, specs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(stages)) }()
	if err := cpuaffinity.Reserve(packetCPU); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cpuaffinity.Release()) }()
	for round := range r.Options.Rounds {
		for _, s := range stages {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.progress("round %d of %d: %s", round+1, r.Options.Rounds, s.spec)
			if err := measure(ctx, r, s); err != nil {
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
