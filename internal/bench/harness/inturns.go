package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/internal/bench/chart"
	"sluice.dev/sluice/internal/bench/cluster"
	"sluice.dev/sluice/internal/bench/cpuaffinity"
	"sluice.dev/sluice/internal/bench/peer"
	"sluice.dev/sluice/internal/bench/report"
	"sluice.dev/sluice/internal/bench/testbed"
)

// Case is one case of an experiment that is measured beside others.
type Case interface {
	fmt.Stringer
	// refusal says why it is not to be run; "" if nothing speaks against it.
	SkipReason() string
	// testbed builds the path that it stands on; the names of the namespaces begin with prefix.
	NewTestbed(prefix string) (*testbed.Testbed, error)
	Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error)
}

// ServiceCase is a contender: a data plane that holds a cluster.
type ServiceCase struct {
	Dataplane peer.Dataplane
	Cluster   cluster.Cluster
}

func (s ServiceCase) String() string {
	return fmt.Sprintf("%s, %s services", s.Dataplane.Name(), chart.Number(float64(s.Cluster.Services)))
}

func (s ServiceCase) SkipReason() string {
	if most, why := s.Dataplane.Limit(); most > 0 && s.Cluster.Services > most {
		return why
	}
	return ""
}

func (ServiceCase) NewTestbed(prefix string) (*testbed.Testbed, error) { return testbed.New(prefix) }

func (s ServiceCase) Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	return s.Dataplane.Load(ctx, l.Node, s.Cluster)
}

// Setup is a case, built and loaded.
type Setup[C Case] struct {
	Case C
	*testbed.Testbed
	Loaded *peer.Loaded
}

// NewSetup makes and loads one stage; nil, and the reason kept, where the
// machine cannot run it.
func NewSetup[C Case](ctx context.Context, r *Run, s C) (*Setup[C], error) {
	if why := s.SkipReason(); why != "" {
		r.Skip("%s: %s", s, why)
		return nil, nil
	}
	l, err := s.NewTestbed(r.NextPrefix())
	if err != nil {
		return nil, err
	}
	loaded, err := s.Load(ctx, l)
	if err != nil {
		err = fmt.Errorf("load %s: %w", s, err)
		if errors.Is(err, peer.ErrMissing) {
			r.Skip("%s", err)
			err = nil
		}
		return nil, errors.Join(err, l.Close())
	}
	r.Logf("loaded %s in %s", s, loaded.Took.Round(time.Millisecond))
	return &Setup[C]{Case: s, Testbed: l, Loaded: loaded}, nil
}

// newSetups makes the stages of all cases that the machine can run.
func newSetups[C Case](ctx context.Context, r *Run, specs []C) ([]*Setup[C], error) {
	var stages []*Setup[C]
	for _, s := range specs {
		st, err := NewSetup(ctx, r, s)
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
func (s *Setup[C]) Close() error { return errors.Join(s.Loaded.Close(), s.Testbed.Close()) }

func closeAll[C Case](stages []*Setup[C]) error {
	var errs []error
	for _, s := range stages {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// InTurns builds all cases, keeps a CPU free for them, and measures each once
// a round.
func InTurns[C Case](ctx context.Context, r *Run, specs []C, measure func(context.Context, *Run, *Setup[C]) error) (err error) {
	stages, err := newSetups(ctx, r, specs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(stages)) }()
	if err := cpuaffinity.Reserve(PacketCPU); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cpuaffinity.Release()) }()
	for round := range r.Options.Rounds {
		for _, s := range stages {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r.Logf("round %d of %d: %s", round+1, r.Options.Rounds, s.Case)
			if err := measure(ctx, r, s); err != nil {
				return fmt.Errorf("measure %s: %w", s.Case, err)
			}
		}
	}
	return nil
}

// Record files a sample of this stage.
func (r *Run) Record(s ServiceCase, variant, metric, unit string, sample float64) {
	r.Add(report.Measurement{
		Dataplane: s.Dataplane.Name(), Services: s.Cluster.Services, Endpoints: s.Cluster.Services * s.Cluster.Endpoints,
		Variant: variant, Metric: metric, Unit: unit,
	}, sample)
}

// Cases pairs each data plane with each number of services; the sizes of one
// data plane follow each other, as they are compared with each other.
func Cases(endpoints int, nodePort uint16, services []int, planes ...peer.Dataplane) []ServiceCase {
	var specs []ServiceCase
	for _, d := range planes {
		for _, n := range services {
			specs = append(specs, ServiceCase{d, cluster.Cluster{Services: n, Endpoints: endpoints, NodePort: nodePort}})
		}
	}
	return specs
}
