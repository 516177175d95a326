package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
)

// issues collects what is wrong with objects.
type issues struct {
	list  []model.Issue
	speak map[model.Ref]bool // objects by which there is a peer
}

func (l *issues) add(of model.Ref, inForce, format string, args ...any) *model.Issue {
	l.list = append(l.list, of.Issue(fmt.Sprintf(format, args...)))
	issue := &l.list[len(l.list)-1]
	issue.InForce = inForce
	return issue
}

// Issues returns what is wrong with the objects as of the last Update, sorted. The caller only
// reads it.
func (c *Compiler) Issues() []model.Issue {
	if !c.listed {
		c.issues, c.listed = c.list(), true
	}
	return c.issues
}

func (c *Compiler) list() []model.Issue {
	l := &issues{speak: map[model.Ref]bool{}}
	for _, p := range c.chosen {
		l.speak[cmp.Or(p.of, c.config.Ref())] = true
	}
	c.ownIssues(l)
	c.configurationIssues(l)
	c.peerIssues(l)
	c.metalLBIssues(l)
	c.rivalIssues(l)
	slices.SortFunc(l.list, model.Issue.Compare)
	return slices.Compact(l.list)
}

func (c *Compiler) ownIssues(l *issues) {
	if c.own != nil && c.self() == nil {
		l.add(c.own.Ref(), "", "it has no address, so it speaks no BGP; give it an InternalIP")
	}
}

// configurationIssues are those of BGPConfigurations.
func (c *Compiler) configurationIssues(l *issues) {
	if c.self() == nil {
		return
	}
	if !c.config.NoMesh {
		c.noPassword(l, c.config.Ref(), "spec.nodeMeshPassword", c.config.MeshPassword, "nodes are not each other's peers", model.InForceRest)
	}
	for _, config := range []*model.BGPConfiguration{c.config, c.mine} {
		for i, ad := range config.Advertisements {
			for _, text := range ad.Communities {
				if c.community(text) == "" {
					l.add(config.Ref(), model.InForceRest, "spec.prefixAdvertisements[%d]: %q is none of spec.communities; it is left out", i, text)
				}
			}
		}
	}
}

// noPassword says what is the case without a password that was looked up in vain, and where it has
// to be.
func (c *Compiler) noPassword(l *issues, of model.Ref, field string, ref model.SecretRef, without, inForce string) {
	found, asked := c.secrets[ref]
	if !asked || found.ok {
		return
	}
	if l.speak[of] {
		without, inForce = "sessions that there are go on as they were, and others wait", model.InForceRest
	}
	l.add(of, inForce, "%s: the agent has no password of Secret %s, so %s; put it in the file %s/%s of the folder that --bgp-passwords names", field, ref, without, ref.Name, ref.Key)
}

// peerIssues are those of Calico's BGPPeers.
func (c *Compiler) peerIssues(l *issues) {
	for _, a := range c.associations {
		p := a.BGPPeer
		c.noPassword(l, p.Ref(), "spec.password", p.Password, "there is no such peer", model.InForceNothing)
		if have := c.addresses[p.Address]; len(have) > 0 && c.nodeAt(p) == nil && have[0].Name != c.cfg.Node {
			n := have[0]
			l.add(p.Ref(), "", "spec.peerIP: it is the address of Node %s, which has AS %d and port %d, other than the BGPPeer says; leave the port out, and give that AS, or a peerSelector", n.Name, n.as, n.port)
		}
		if restart := c.restart(); p.Restart != 0 && p.Restart != restart {
			l.add(p.Ref(), model.InForceRest, "spec.maxRestartTime: it is %v for all peers of a node; set nodeMeshMaxRestartTime of BGPConfiguration default", restart.Round(time.Second))
		}
	}
}

// metalLBIssues are those of MetalLB's objects.
func (c *Compiler) metalLBIssues(l *issues) {
	for _, p := range c.metalLB {
		if p.Dynamic == "external" {
			l.add(p.Ref(), model.InForceNothing, "spec.dynamicASN: external is not supported; give the peer's AS as peerASN")
		}
		c.noPassword(l, p.Ref(), "spec.passwordSecret", p.PasswordSecret, "there is no such peer", model.InForceNothing)
		if p.RouterID.IsValid() && c.settings != nil && p.RouterID != c.settings.RouterID {
			l.add(p.Ref(), model.InForceRest, "spec.routerID: it is %s for all peers of this node", c.settings.RouterID)
		}
	}
	for pool, first := range c.excess {
		ref := model.Ref{Kind: model.IPAddressPoolKind, Name: pool}
		l.add(ref, "", "more than %d BGPAdvertisements select it: %s, and those newer than it, announce none of its addresses", model.MaxAdverts, first)
	}
	for ref, name := range c.nameless {
		inForce := model.InForceNothing
		if c.inForce[ref.Name] != nil {
			inForce = model.InForceLast
		}
		l.add(ref, inForce, "spec.communities: no Community in its namespace that can be read has the name %s, for which it waits: make or mend one, or name one that exists", name).Everywhere = true
	}
	for ref, reasons := range c.faults {
		for _, reason := range reasons {
			l.add(ref, "", "%s", reason).Everywhere = true
		}
	}
}

// rivalIssues name the objects whose peers have the address of another one.
func (c *Compiler) rivalIssues(l *issues) {
	lost := map[model.Ref]map[netip.Addr]string{}
	for a, rivals := range c.rivals {
		for loser := range rivals {
			if winner := c.chosen[a]; loser != winner && loser.of != (model.Ref{}) && loser.of != winner.of {
				if lost[loser.of] == nil {
					lost[loser.of] = map[netip.Addr]string{}
				}
				lost[loser.of][a] = winner.name
			}
		}
	}
	for of, all := range lost {
		var texts []string
		for a, winner := range all {
			texts = append(texts, fmt.Sprintf("%s (%s)", a, winner))
		}
		slices.Sort(texts)
		inForce := model.InForceNothing
		if l.speak[of] {
			inForce = model.InForceRest
		}
		l.add(of, inForce, "another object that asks for the same peer comes first: %s; remove one", model.FirstFew(texts, 3))
	}
}

// fault notes what is wrong with an advertisement.
func (c *Compiler) fault(of model.Ref, format string, args ...any) {
	c.faults[of] = append(c.faults[of], fmt.Sprintf(format, args...))
}
