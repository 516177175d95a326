package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab/load"
)

// BalancerConfig is what a balancer's story needs.
type BalancerConfig struct {
	Name   string // of the lab: lower-case letters and digits
	Sluice string // the program
	Farms  string // file of 'sluice balance'
	Next   []Hint
}

// balancerStory is a story of a lab without a cluster.
type balancerStory struct {
	story
	net *balancerNet
}

// Balancer tells what 'sluice balance' does with the farms of a file: a client sends requests to
// the first of them all the time, while a server is killed, another is drained, and the balancer
// itself is killed and started again. Nothing of it remains when Balancer returns.
func Balancer(ctx context.Context, t *Teller, c BalancerConfig) (err error) {
	farms, err := readFarms(c.Farms)
	if err != nil {
		return err
	}
	s := &balancerStory{story: story{Teller: t, name: c.Name}}
	s.Begin("balancer")
	s.net, err = newBalancerNet(c, farms)
	defer func() { err = errors.Join(err, s.net.Close()) }()
	if err != nil {
		return err
	}
	took, err := s.net.balance(ctx)
	if err != nil {
		return err
	}
	s.Say("a client, the balancer and %s: up after %s", model.Count(len(s.net.servers), "server"), span(took))
	s.step(ctx, "requests", s.spread)
	s.step(ctx, "crash", s.crash)
	s.step(ctx, "drain", s.drain)
	s.step(ctx, "restart", s.restart)
	s.next(ctx, c.Next)
	return s.end(ctx)
}

// asked is how many requests show who answers.
const asked = 300

// spread shows who answers the requests of one client.
func (s *balancerStory) spread(context.Context) error {
	rows := [][]string{{"farm", "", "scheduler"}}
	for _, b := range s.net.farms[0].Backends {
		rows[0] = append(rows[0], b.Name)
	}
	for _, f := range s.net.farms {
		answers := map[string]int{}
		for range asked {
			a, err := ask(s.net.client.Name, f.at(), answerTime)
			if err != nil {
				return fmt.Errorf("the client asks %s: %w", f.Name, err)
			}
			answers[a.Pod]++
		}
		row := []string{f.Name, f.at().String(), f.Scheduler}
		for _, b := range f.Backends {
			row = append(row, fmt.Sprint(answers[b.Name]))
		}
		rows = append(rows, row)
	}
	s.Say("who answers %d requests of one client to each farm, each on a connection of its own:", asked)
	s.Rows(rows...)
	return nil
}

// underLoad calls do while the client sends requests to the first farm, and returns how many there
// were. It fails if one of them did.
func (s *balancerStory) underLoad(do func(*load.Load) error) (sent int64, err error) {
	l, err := s.load()
	if err != nil {
		return 0, err
	}
	l.More(between)
	err = do(l)
	l.More(between)
	sent, failed := l.Outcome()
	return sent, errors.Join(err, failed)
}

func (s *balancerStory) load() (*load.Load, error) {
	return load.Start(load.Config{Routes: []load.Route{{From: s.net.client.Name, To: s.net.farms[0].at()}}})
}

// crash kills the second server of the first farm, and starts it again.
func (s *balancerStory) crash(ctx context.Context) error {
	f := s.net.farms[0]
	victim := f.Backends[1].Name
	l, err := s.load()
	if err != nil {
		return err
	}
	defer l.Stop()
	l.More(between)
	s.Progress("%s is killed", victim)
	begin := time.Now()
	s.net.kill(victim)
	if err := s.net.await(ctx, victim, "down"); err != nil {
		return err
	}
	took := time.Since(begin)
	l.Stop()
	s.Say("%s is killed while the client sends requests to %s", victim, f.Name)
	s.Say("its check says so after %s: %s of %s requests failed until then", span(took), thousands(l.Failed()), thousands(l.Sent()))
	sent, err := s.underLoad(func(*load.Load) error { return s.table(ctx) })
	if err != nil {
		return err
	}
	s.Good("0 of %s requests failed since", thousands(sent))
	sent, err = s.underLoad(func(*load.Load) error {
		begin = time.Now()
		return errors.Join(s.net.revive(victim), s.net.await(ctx, victim, "serving"))
	})
	if err != nil {
		return err
	}
	s.Good("%s is started again, and serves after %s: 0 of %s requests failed", victim, span(time.Since(begin)), thousands(sent))
	return nil
}

// drain takes the last server of the first farm out, and puts it back.
func (s *balancerStory) drain(ctx context.Context) error {
	f := s.net.farms[0]
	last := f.Backends[len(f.Backends)-1].Name
	sent, err := s.underLoad(func(l *load.Load) error {
		took, err := s.net.set(ctx, f.Name, last, "draining")
		if err != nil {
			return err
		}
		s.Say("the API has %s drain, which the kernel knows %s later: connections to it may finish", last, span(took))
		before, err := s.net.backend(ctx, last)
		if err != nil {
			return err
		}
		if err := s.table(ctx); err != nil {
			return err
		}
		l.More(between)
		after, err := s.net.backend(ctx, last)
		if err == nil && (after.State != "draining" || after.Chosen != before.Chosen) {
			err = fmt.Errorf("%s is %s and got %d new connections", last, after.State, after.Chosen-before.Chosen)
		}
		if err == nil {
			_, err = s.net.set(ctx, f.Name, last, "up")
		}
		return err
	})
	if err == nil {
		s.Good("0 of %s requests failed, and %s got no new connection until it was back", thousands(sent), last)
	}
	return err
}

// restart kills the balancer and starts it again.
func (s *balancerStory) restart(ctx context.Context) error {
	sent, err := s.underLoad(func(l *load.Load) error {
		if err := s.net.killBalancer(); err != nil {
			return err
		}
		l.More(between)
		took, err := s.net.balance(ctx)
		if err != nil {
			return err
		}
		s.Say("the balancer is killed, and another one takes over, ready after %s", span(took))
		return s.table(ctx)
	})
	if err == nil {
		s.Good("0 of %s requests failed", thousands(sent))
	}
	return err
}

// table shows what 'sluice farms' prints of the first farm's backends. It takes a second, which the
// rates are those of.
func (s *balancerStory) table(ctx context.Context) error {
	name := s.net.farms[0].Name
	text, err := s.net.run(ctx, "farms", name)
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	from := max(strings.Index(lines[0], "BACKEND"), 0) // what is left of it is the same in all lines
	for i, l := range lines {
		lines[i] = strings.TrimRight(l[min(from, len(l)):], " ")
	}
	s.Ran("sluice", "farms", name, "|", "cut", fmt.Sprintf("-c%d-", from+1))
	s.Quote(lines...)
	return nil
}

// backend returns how a backend of the first farm is doing.
func (n *balancerNet) backend(ctx context.Context, name string) (b agent.FarmBackendReport, err error) {
	farms, err := agent.NewClient(n.socket()).Farms(ctx)
	if err != nil {
		return b, err
	}
	for _, f := range farms {
		i := slices.IndexFunc(f.Backends, func(b agent.FarmBackendReport) bool { return b.Name == name })
		if f.Name == n.farms[0].Name && i >= 0 {
			return f.Backends[i], nil
		}
	}
	return b, fmt.Errorf("the balancer does not know %s of %s", name, n.farms[0].Name)
}
