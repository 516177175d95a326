package kubetest

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Case is one behaviour of a service proxy.
type Case struct {
	Name  string   // words joined by dashes; the name of its Kubernetes namespace begins with it
	Shows string   // the behaviour, in one line
	Tests []string // titles of the end-to-end tests of Kubernetes that check it; none: it goes beyond them
	Alone bool     // it disturbs other cases, so no case may run beside it
	Steps []Step
}

// Step is a change, or a question to the network.
type Step interface {
	fmt.Stringer
	run(ctx context.Context, e *Env) error
}

// action is a step that changes something.
type action struct {
	text string
	do   func(ctx context.Context, e *Env) error
}

func (a action) String() string                        { return a.text }
func (a action) run(ctx context.Context, e *Env) error { return a.do(ctx, e) }

// Difference is an expectation for some data planes instead of the question's own.
type Difference struct {
	In   []Dataplane
	Want Want
	Why  string
}

// Question is a step that sends requests until the outcome is as expected, or patience ends.
type Question struct {
	From     string // a pod of the case, one of the clients, a node, or the host outside
	Protocol corev1.Protocol
	To       Target
	Flow     string // requests belong to one flow: in a case, those with one name use the same sockets
	Size     int    // bytes of each request; 0: a short one
	Want     Want
	Differs  []Difference
}

// ask makes a question.
func ask(from string, protocol corev1.Protocol, to Target, want Want) Question {
	return Question{From: from, Protocol: protocol, To: to, Want: want}
}

// flow makes the question's requests belong to a named flow.
func (q Question) flow(name string) Question { q.Flow = name; return q }

// large makes each request carry that many bytes.
func (q Question) large(size int) Question { q.Size = size; return q }

// unless gives the question another expectation in some data planes, and says why.
func (q Question) unless(want Want, why string, in ...Dataplane) Question {
	q.Differs = append(q.Differs[:len(q.Differs):len(q.Differs)], Difference{in, want, why})
	return q
}

func (q Question) String() string {
	text := fmt.Sprintf("%s asks %s over %s", q.From, q.To, q.Protocol)
	if q.Flow != "" {
		text += ", flow " + q.Flow
	}
	return text
}

// want returns the expectation in a data plane.
func (q Question) want(d Dataplane) Want {
	for _, x := range q.Differs {
		for _, in := range x.In {
			if in == d {
				return x.Want
			}
		}
	}
	return q.Want
}

// Differences lists where a data plane differs from what the case's questions expect.
func (c *Case) Differences(d Dataplane) []Difference {
	var found []Difference
	for _, s := range c.Steps {
		q, ok := s.(Question)
		if !ok {
			continue
		}
		for _, x := range q.Differs {
			for _, in := range x.In {
				if in == d {
					found = append(found, x)
				}
			}
		}
	}
	return found
}
