package ipvs

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/kernel/sysctl"
)

// What the kernel has to be told for services, and for farms. Connections end with their
// destination. A node answers ARP only for addresses of the interface that is asked at, and asks as
// one of these: the addresses of load balancers are local on all nodes.
var (
	serviceParameters = map[string]string{
		// Connection tracking sees the backends that IPVS chooses, so that nftables can masquerade
		// after it.
		"net.ipv4.vs.conntrack": "1", "net.ipv4.vs.expire_nodest_conn": "1",
		arpPrefix + "arp_ignore": "1", arpPrefix + "arp_announce": "2",
	}
	farmParameters = map[string]string{
		// A client does not stay on a destination that drains.
		"net.ipv4.vs.expire_quiescent_template": "1", "net.ipv4.vs.expire_nodest_conn": "1",
		arpPrefix + "arp_ignore": "1", arpPrefix + "arp_announce": "2",
	}
)

const arpPrefix = "net.ipv4.conf.all."

// tuning is a network namespace whose parameters are changed.
type tuning struct {
	ns         *netns.NS
	record     string // where former values are noted; "": nowhere, and they are not restored
	parameters map[string]string
}

// missing are the parameters that have other values. Another strict one of ARP will do.
func (t tuning) missing() (left map[string]string, err error) {
	left = maps.Clone(t.parameters)
	err = t.ns.Do(func() error {
		for key, value := range t.parameters {
			now, err := sysctl.Read(key)
			if err != nil {
				return fmt.Errorf("%w: IPVS needs its parameters; 'modprobe ip_vs' loads it where the kernel has it as a module", err)
			}
			if now == value || strings.HasPrefix(key, arpPrefix) && now != "0" {
				delete(left, key)
			}
		}
		return nil
	})
	return left, err
}

func (t tuning) set(want map[string]string) error {
	if len(want) == 0 {
		return nil
	}
	return t.ns.Do(func() error {
		changed, err := sysctl.Set(t.record, want)
		if t.record == "" && len(changed) == len(want) { // what is wrong is that nothing was noted
			return nil
		}
		return err
	})
}

func (t tuning) restore() error {
	if t.record == "" {
		return nil
	}
	return t.ns.Do(func() error {
		_, err := sysctl.Restore(t.record)
		if errors.Is(err, os.ErrNotExist) { // the module has gone, and its parameters with it
			return nil
		}
		return err
	})
}

func parameterText(all map[string]string) (text string) {
	for _, key := range slices.Sorted(maps.Keys(all)) {
		text += fmt.Sprintf("set %s = %s\n", key, all[key])
	}
	return text
}
