package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/test/lab/control"
	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// owners are who carries out what.
type owners struct{ policies, services, network, addresses string }

// now shows who carries out what, as it is seen, and that it is as it should be.
func (s *migration) now(ctx context.Context, want owners) error {
	var got owners
	for _, look := range []struct {
		into *string
		at   func(context.Context) (string, error)
	}{{&got.policies, s.whoEnforces}, {&got.services, s.whoBalances}, {&got.network, s.whoAttaches}, {&got.addresses, s.whoGives}} {
		var err error
		if *look.into, err = look.at(ctx); err != nil {
			return err
		}
	}
	mac, _, _ := s.who.since()
	s.Say("now: policies %s, services %s, pod network %s, addresses %s (%s answers for %s)",
		got.policies, got.services, got.network, got.addresses, s.nodeOf(mac), s.given[web])
	if got != want {
		return fmt.Errorf("it should be %+v", want)
	}
	given, err := s.addressesNow(ctx)
	if err != nil {
		return err
	}
	if !maps.Equal(given, s.given) {
		return fmt.Errorf("the addresses of Services are others than before: %v, not %v", given, s.given)
	}
	if got.policies == "Sluice" {
		if err := s.healthy(ctx); err != nil {
			return err
		}
	}
	for name, port := range map[string]uint16{"fixed": 80, "reserved": 80, "shared-1": 80, "shared-2": 81} {
		if _, err := ask(s.lab.NodeNS(plan.Outside), netip.AddrPortFrom(netip.MustParseAddr(given[name]), port), answerTime); err != nil {
			return fmt.Errorf("ask for the address of %s: %w", name, err)
		}
	}
	return nil
}

// healthy waits until no agent has anything to complain of.
func (s *migration) healthy(ctx context.Context) error {
	var out string
	for _, node := range s.nodes() {
		pod, err := s.agent(ctx, node)
		if err != nil {
			return err
		}
		err = s.until(ctx, "the agent of "+node+" finds no fault", func() (bool, error) {
			out, err = s.kubectl(ctx, "-n", "kube-system", "exec", pod, "--", "sluice", "status")
			return err == nil && strings.HasPrefix(out, "state        OK"), err
		})
		if err != nil {
			return fmt.Errorf("%w: sluice status on %s:\n%s", err, node, out)
		}
	}
	return nil
}

// addressesNow are those of Services, by name.
func (s *migration) addressesNow(ctx context.Context) (map[string]string, error) {
	var list corev1.ServiceList
	err := s.lab.Plane(func(p *control.Plane) error { return p.Get(ctx, "/api/v1/namespaces/default/services", &list) })
	given := map[string]string{}
	for i := range list.Items {
		if ips := plan.IngressIPs(&list.Items[i]); len(ips) > 0 {
			given[list.Items[i].Name] = model.Join(ips, ",")
		}
	}
	return given, err
}

// whoEnforces asks for a port that a policy denies.
func (s *migration) whoEnforces(ctx context.Context) (string, error) {
	s.lab.Status(ctx)
	for _, node := range s.nodes() {
		from, to := s.pod("client", "node1"), s.pod(web, node)
		if from == nil || to == nil {
			continue
		}
		_, err := ask(s.lab.PodNS(from), netip.AddrPortFrom(plan.Addrs(to)[0], deniedPort), silenceTime)
		switch {
		case err == nil:
			return "nobody", nil
		case errors.Is(err, echo.ErrSilent):
			return "Sluice", nil
		}
		return "", err
	}
	return "", errors.New("there is no pod to ask for what is denied")
}

// whoBalances looks at the tables of nodes.
func (s *migration) whoBalances(context.Context) (string, error) {
	return s.perNode(func(n *plan.Node) (string, error) {
		ns, err := netns.Open(s.lab.NodeNS(n.Name))
		if err != nil {
			return "", err
		}
		defer ns.Close()
		var tables []*nftables.Table
		err = ns.Do(func() error {
			c, err := nftables.New()
			if err == nil {
				tables, err = c.ListTables()
			}
			return err
		})
		has := func(family nftables.TableFamily, name string) bool {
			return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Family == family && t.Name == name })
		}
		own, other := has(nftables.TableFamilyINet, "sluice"), has(nftables.TableFamilyIPv4, "kube-proxy")
		switch {
		case err != nil:
			return "", err
		case own && other:
			return "Sluice beside kube-proxy", nil
		case own:
			return "Sluice", nil
		case other:
			return "kube-proxy", nil
		}
		return "nobody", nil
	})
}

// whoAttaches looks at the nodes' configurations of pod networks, of which the first by name
// counts.
func (s *migration) whoAttaches(context.Context) (string, error) {
	return s.perNode(func(n *plan.Node) (string, error) {
		files, _ := filepath.Glob(s.lab.NodeFile(n.Name, "/etc/cni/net.d/*.conflist")) // the pattern is well-formed
		if len(files) == 0 {
			return "nobody", nil
		}
		text, err := os.ReadFile(files[0])
		if err != nil {
			return "", err
		}
		var conf struct{ Plugins []struct{ Type string } }
		if err := json.Unmarshal(text, &conf); err != nil || len(conf.Plugins) == 0 {
			return "", fmt.Errorf("read %s: %w", files[0], err)
		}
		return conf.Plugins[0].Type, nil
	})
}

// perNode sums up what is seen of each node.
func (s *migration) perNode(look func(*plan.Node) (string, error)) (string, error) {
	seen := map[string][]string{}
	for i := range s.lab.Cluster.Nodes {
		n := &s.lab.Cluster.Nodes[i]
		what, err := look(n)
		if err != nil {
			return "", err
		}
		seen[what] = append(seen[what], n.Name)
	}
	var all []string
	for _, what := range slices.Sorted(maps.Keys(seen)) {
		if len(seen) > 1 {
			what += " (" + strings.Join(seen[what], ", ") + ")"
		}
		all = append(all, what)
	}
	return strings.Join(all, ", "), nil
}

// whoGives has a Service that is new get an address, and looks at who has written it.
func (s *migration) whoGives(ctx context.Context) (who string, err error) {
	if _, err := s.kubectl(ctx, "create", "service", "loadbalancer", "new", "--tcp=80"); err != nil {
		return "", err
	}
	err = s.until(ctx, "a new Service has an address", func() (bool, error) {
		var svc corev1.Service
		err := s.lab.Plane(func(p *control.Plane) error {
			return p.Get(ctx, "/api/v1/namespaces/default/services/new", &svc)
		})
		for _, f := range svc.ManagedFields {
			if f.Subresource == "status" && f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), "f:ingress") {
				who = f.Manager
			}
		}
		return who != "", err
	})
	if err != nil {
		return "", err
	}
	if known := managers[who]; known != "" {
		who = known
	}
	_, err = s.kubectl(ctx, "delete", "service", "new")
	return who, err
}

// managers are those that write addresses, by what they are called in Services.
var managers = map[string]string{"controller": "MetalLB", "sluice-addresses": "Sluice"}

// nodeOf is the node of a MAC.
func (s *migration) nodeOf(mac string) string {
	for _, n := range s.lab.Cluster.Nodes {
		if ns, err := netns.Open(s.lab.NodeNS(n.Name)); err == nil {
			own, err := ns.Hardware("eth0")
			ns.Close()
			if err == nil && own.String() == mac {
				return n.Name
			}
		}
	}
	return "nobody"
}
