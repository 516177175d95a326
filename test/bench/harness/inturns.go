package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/test/bench/chart"
	"sluice.dev/sluice/test/bench/cluster"
	"sluice.dev/sluice/test/bench/cpuaffinity"
	"sluice.dev/sluice/test/bench/peer"
	"sluice.dev/sluice/test/bench/report"
	"sluice.dev/sluice/test/bench/testbed"
)

// Case is one of the cases that an experiment compares.
type Case interface {
	fmt.Stringer
	// SkipReason says why the case cannot be run; "" if it can.
	SkipReason() string
	// NewTestbed builds its testbed; the names of the namespaces begin with prefix.
	NewTestbed(prefix string) (*testbed.Testbed, error)
	// Load programs the testbed's node.
	Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error)
}

// ServiceCase is the case of a data plane that carries out a cluster's services.
type ServiceCase struct {
	Dataplane peer.Dataplane
	Cluster   cluster.Cluster
}

func (s ServiceCase) String() string {
	return fmt.Sprintf("%s, %s services", s.Dataplane.Name(), chart.Number(float64(s.Cluster.Services)))
}

// SkipReason implements Case.
func (s ServiceCase) SkipReason() string {
	if most, why := s.Dataplane.Limit(); most > 0 && s.Cluster.Services > most {
		return why
	}
	return ""
}

// NewTestbed implements Case.
func (ServiceCase) NewTestbed(prefix string) (*testbed.Testbed, error) { return testbed.New(prefix) }

// Load implements Case.
func (s ServiceCase) Load(ctx context.Context, l *testbed.Testbed) (*peer.Loaded, error) {
	return s.Dataplane.Load(ctx, l.Node, s.Cluster)
}

// Setup is a case with its testbed, programmed.
type Setup[C Case] struct {
	Case C
	*testbed.Testbed
	Loaded *peer.Loaded
}

// NewSetup builds and programs a case. If the machine cannot run it, NewSetup notes the reason in
// the result and returns nil.
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

// newSetups builds all cases that the machine can run.
func newSetups[C Case](ctx context.Context, r *Run, specs []C) ([]*Setup[C], error) {
	var setups []*Setup[C]
	for _, s := range specs {
		st, err := NewSetup(ctx, r, s)
		if err != nil {
			return nil, errors.Join(err, closeAll(setups))
		}
		if st != nil {
			setups = append(setups, st)
		}
	}
	return setups, nil
}

// Close ends the case's processes and removes its namespaces.
func (s *Setup[C]) Close() error { return errors.Join(s.Loaded.Close(), s.Testbed.Close()) }

func closeAll[C Case](setups []*Setup[C]) error {
	var errs []error
	for _, s := range setups {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// InTurns builds all cases, keeps PacketCPU free for them, and measures each case once a round.
func InTurns[C Case](ctx context.Context, r *Run, specs []C, measure func(context.Context, *Run, *Setup[C]) error) (err error) {
	setups, err := newSetups(ctx, r, specs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(setups)) }()
	if err := cpuaffinity.Reserve(PacketCPU); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cpuaffinity.Release()) }()
	for round := range r.Options.Rounds {
		for _, s := range setups {
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

// Record adds a sample of a case to the result.
func (r *Run) Record(s ServiceCase, variant, metric, unit string, sample float64) {
	r.Add(report.Measurement{
		Dataplane: s.Dataplane.Name(), Services: s.Cluster.Services, Endpoints: s.Cluster.Services * s.Cluster.Endpoints,
		Variant: variant, Metric: metric, Unit: unit,
	}, sample)
}

// Cases pairs each data plane with each number of services. The sizes of one data plane are
// neighbours, as they are compared with each other.
func Cases(endpoints int, nodePort uint16, services []int, planes ...peer.Dataplane) []ServiceCase {
	var specs []ServiceCase
	for _, d := range planes {
		for _, n := range services {
			specs = append(specs, ServiceCase{d, cluster.Cluster{Services: n, Endpoints: endpoints, NodePort: nodePort}})
		}
	}
	return specs
}
