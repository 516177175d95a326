package foreign

import (
	"fmt"
	"strings"
)

// owner is a program that is known to write such chains.
type owner string

const (
	docker    owner = "Docker"
	ufw       owner = "ufw"
	firewalld owner = "firewalld"
	unknown   owner = ""
)

// ownerOf guesses whose a chain is from the names beside it in its table.
func ownerOf(c *Chain, all []Chain) owner {
	if c.Table == "firewalld" {
		return firewalld
	}
	found := unknown
	for i := range all {
		other := &all[i]
		if other.Family != c.Family || other.Table != c.Table {
			continue
		}
		switch {
		case strings.HasPrefix(other.Name, "ufw-"), strings.HasPrefix(other.Name, "ufw6-"):
			return ufw // sets the policies even where Docker has chains too
		case strings.HasPrefix(other.Name, "DOCKER"):
			found = docker
		}
	}
	return found
}

func (o owner) prefix() string {
	if o == unknown {
		return ""
	}
	return string(o) + ": "
}

// iptables is the program that has the rules of a chain's family.
func (c *Chain) iptables() string {
	if c.Family == "ip6" {
		return "ip6tables"
	}
	return "iptables"
}

// advice says how to let pods and services through; PODS stands for the cluster's pod network.
func (o owner) advice(c *Chain) string {
	switch o {
	case docker:
		if c.Hook == "forward" {
			return fmt.Sprintf("let the pod network through: %[1]s -I DOCKER-USER -d PODS -j ACCEPT; %[1]s -I DOCKER-USER -s PODS -j ACCEPT", c.iptables())
		}
	case ufw:
		if c.Hook == "forward" {
			return "let the pod network through: ufw route allow to PODS; ufw route allow from PODS"
		}
		return "where that is wanted: ufw allow PORT"
	case firewalld:
		return "trust the pod network: firewall-cmd --permanent --zone=trusted --add-source=PODS; firewall-cmd --reload"
	}
	if c.Hook == "forward" {
		return fmt.Sprintf("add rules before that accept packets to and from the pod network in chain %s %s %s", c.Family, c.Table, c.Name)
	}
	return fmt.Sprintf("see that the rules of chain %s %s %s accept service traffic", c.Family, c.Table, c.Name)
}
