package nftables

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"sluice.dev/sluice/internal/driver/table"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Check says what of a farm the driver cannot carry out, or this kernel; nil: it can do all. The
// error names the attribute as nftlb does. Safe for concurrent use.
func (d *Driver) Check(f *model.Farm) error {
	if err := checkFarm(f); err != nil {
		return err
	}
	if f.Helper != "" {
		if err := d.tried("helper "+f.Helper, helper(f.Helper)); err != nil {
			return fmt.Errorf("helper: this kernel has no %s helper of connection tracking: %w", f.Helper, err)
		}
	}
	if f.Limits.SYNProxy {
		if err := d.tried("syn-proxy", d.ruleset.synProxyChains()...); err != nil {
			return fmt.Errorf("syn-proxy: this kernel cannot: %w", err)
		}
	}
	return nil
}

// tries is what the kernel said to chains that not every kernel takes.
type tries struct {
	mu  sync.Mutex
	err map[string]error
}

// tried has the kernel check chains, once for each name, in a table that no packet meets.
func (d *Driver) tried(name string, chains ...nft.Chain) error {
	d.tries.mu.Lock()
	defer d.tries.mu.Unlock()
	if err, known := d.tries.err[name]; known {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.farmTable.try(&state.Farms{}, chains...)
	d.tries.err[name] = err
	return err
}

// try has the kernel check some farms and their lists, and chains beside, in a table that no packet
// meets and that remembers nobody: in one transaction that leaves nothing.
func (t *farmTable) try(some *state.Farms, chains ...nft.Chain) error {
	rs := newIngress(t.ruleset.MayMiss)
	if t.ruleset.hasLists() {
		rs = newRuleset(1, t.ruleset.MayMiss)
	}
	n := t.beside(TableName+"-probe", rs)
	c := n.begin(n.Anew(), table.NewChainRefs(), elementClaims{}, listChange{listings{}, listings{}}, newNumbers())
	for _, chain := range chains {
		c.Refs.Put(chain)
	}
	c.all(some)
	c.create(nft.FlagDormant, some)
	c.Batch.DeleteTable()
	_, err := n.Commit(c.Batch)
	return err
}

// checkFarm says what the ruleset has no place for.
func checkFarm(f *model.Farm) error {
	compiled := &state.Farm{Farm: f}
	switch l := f.Limits; {
	case f.Scheduler == model.LeastConnections:
		return errors.New("scheduler: least connections can't be compared: nothing in nftables tells what two backends have at once; use rr, weight or maglev, or 'sluice balance --mode ipvs'")
	case f.Persist&(model.SrcMAC|model.DstMAC) != 0 && f.Persist&(model.DstIP|model.DstPort) != 0:
		return errors.New("persistence: srcmac and dstmac go with srcip and srcport, not with dstip and dstport")
	case f.Mode.Stateless() && (limited(f) || l.Strict || l.SYNProxy):
		return fmt.Errorf("limits, tcp-strict, syn-proxy: in mode %s no connections are tracked", f.Mode)
	case f.Mode.Stateless() && (f.Mark != 0 || f.Helper != "" || f.Log):
		return fmt.Errorf("mark, helper, log: in mode %s no connections are tracked", f.Mode)
	case f.Mode == model.StatelessDNAT && slices.ContainsFunc(f.Addresses, func(a model.FarmAddress) bool { return !a.Addr.IsValid() }):
		return errors.New("virtual-addr: mode stlsdnat needs one, as answers get it back")
	case kindOf(compiled) == exact:
		return nil
	case slices.ContainsFunc(f.Backends, func(b model.FarmBackend) bool { return b.SourceAddr.IsValid() }):
		return errors.New("backends: source-addr of a backend needs a farm with an address and single ports")
	case portsOf(compiled) > mostPorts && slices.ContainsFunc(f.Backends, func(b model.FarmBackend) bool { return b.EstLimit > 0 && b.Port == 0 }):
		return fmt.Errorf("backends: est-connlimit of a backend without port needs a farm of no more than %d ports", mostPorts)
	}
	return nil
}

// limited reports whether clients or backends of a farm may have so much only.
func limited(f *model.Farm) bool {
	l := f.Limits
	return l.New.Packets > 0 || l.RST.Packets > 0 || l.Established > 0 ||
		slices.ContainsFunc(f.Backends, func(b model.FarmBackend) bool { return b.EstLimit > 0 })
}

// portsOf is how many ports a farm has.
func portsOf(f *state.Farm) (n int) {
	for _, a := range f.Addresses {
		if len(a.Ports) == 0 {
			n += 1 << 16
		}
		for _, p := range a.Ports {
			n += int(p.Last) - int(p.First) + 1
		}
	}
	return n
}
