package demo

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/test/lab"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/lab/probe"
)

// Tiers is the application of Policy's lab.
//
//go:embed tiers.yaml
var Tiers []byte

//go:embed default-deny.yaml
var defaultDeny string

// Policy tells what network policies do, in a lab that runs Tiers: from no policy to one that
// denies everything, to the one that `sluice why` suggests for a single pair, and back. The lab is
// as it was when Policy returns without an error.
func Policy(ctx context.Context, t *Teller, l *lab.Lab, took time.Duration, next []Hint) error {
	s := &story{Teller: t, name: l.Name, lab: l}
	s.cluster(took)
	s.step(ctx, "open", func(ctx context.Context) error {
		s.Say("without a policy everybody reaches everybody")
		return s.reachNow(ctx, true)
	})
	s.step(ctx, "deny", func(ctx context.Context) error { return s.applyAndReach(ctx, defaultDeny) })
	var no *probe.Try
	var to string
	s.step(ctx, "denied", func(ctx context.Context) (err error) {
		if no, err = s.pair(ctx, "default/api", "default/db", probe.Dropped); err == nil {
			to, err = s.deny(ctx, &denial{Try: *no})
		}
		return err
	})
	if to != "" {
		s.step(ctx, "allow", func(ctx context.Context) error { return s.allow(ctx, *no, to) })
	}
	s.step(ctx, "clean up", func(ctx context.Context) error {
		took, err := s.changePolicies(ctx, func([]plan.Policy) []plan.Policy { return nil })
		if err != nil {
			return err
		}
		s.Say("policies deleted: out of the kernel after %s", took)
		return s.reachNow(ctx, false)
	})
	s.next(ctx, next)
	return s.end(ctx)
}

// allow applies the policy that `sluice why` suggests for a denied request, and sends it again.
func (s *story) allow(ctx context.Context, t probe.Try, to string) error {
	args := []string{"why", t.Source.Name, to, "--suggest"}
	text, err := sluice(ctx, s.lab, t.Source.Node, args...)
	if err != nil {
		return err
	}
	s.Ran(append([]string{"sluice"}, args...)...)
	_, manifest, found := strings.Cut(text, "---\n") // behind the explanation
	if !found {
		return fmt.Errorf("it suggests no policy: %s", text)
	}
	if err := s.applyAndReach(ctx, manifest); err != nil {
		return err
	}
	a, err := ask(t.NetNS, t.To, answerTime)
	if err != nil {
		return fmt.Errorf("%s asked %s: %w", t.Source.Name, port(t.Frontend), err)
	}
	s.Good("%s asks %s: answered by %s/%s", t.Source.Name, port(t.Frontend), a.Namespace, a.Pod)
	return nil
}

// pair returns the request of a workload to a service, whose expected fate has to be this one.
func (s *story) pair(ctx context.Context, client, service string, fate probe.Fate) (*probe.Try, error) {
	pairs, err := s.lab.PairTries(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(pairs, func(t probe.Try) bool { return t.Of == client && t.Service == service && t.Fate == fate })
	if i < 0 {
		return nil, fmt.Errorf("no request from %s to %s is %s by the policies", client, service, fate)
	}
	return &pairs[i], nil
}

// reachNow is reach for the lab as it is now.
func (s *story) reachNow(ctx context.Context, legend bool) error {
	pairs, err := s.lab.PairTries(ctx)
	if err != nil {
		return err
	}
	return s.reach(ctx, pairs, legend)
}

// applyAndReach adds a policy, and shows it and who reaches whom then.
func (s *story) applyAndReach(ctx context.Context, manifest string) error {
	policy, err := readPolicy(manifest)
	if err != nil {
		return err
	}
	took, err := s.changePolicies(ctx, func(old []plan.Policy) []plan.Policy { return append(old, policy) })
	if err != nil {
		return err
	}
	s.Quote(strings.Split(strings.TrimSpace(manifest), "\n")...)
	s.Say("applied: in the kernel after %s", took)
	return s.reachNow(ctx, false)
}

func readPolicy(manifest string) (plan.Policy, error) {
	var head struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	object, err := yaml.YAMLToJSON([]byte(manifest))
	if err == nil {
		err = yaml.Unmarshal(object, &head)
	}
	if err != nil {
		return plan.Policy{}, fmt.Errorf("read policy: %w", err)
	}
	return plan.NewPolicy(head.APIVersion, head.Kind, head.Namespace, head.Name, object)
}

// changePolicies changes the lab's policies, and returns once all agents have programmed it, with
// the time that this took.
func (s *story) changePolicies(ctx context.Context, change func([]plan.Policy) []plan.Policy) (took string, err error) {
	return s.measure(ctx, func() error {
		err := s.lab.Change(ctx, func(c *plan.Cluster) error { c.Policies = change(c.Policies); return nil })
		if err != nil {
			return err
		}
		return s.lab.Sync(ctx)
	})
}
