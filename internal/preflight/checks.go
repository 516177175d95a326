package preflight

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// The oldest kernel that the packet table is tested on.
const floorMajor, floorMinor = 6, 1

// installIt is what to do where another program is missing.
const installIt = "install it where the agent runs"

func kernel(f *Facts) []Result {
	const name = "kernel"
	if f.KernelErr != nil {
		return cannotTell(name, f.KernelErr)
	}
	var major, minor int
	if _, err := fmt.Sscanf(f.Kernel, "%d.%d", &major, &minor); err != nil {
		return one(name, Warn, fmt.Sprintf("Linux %s: cannot read the version in it", f.Kernel), "")
	}
	switch old := major < floorMajor || major == floorMajor && minor < floorMinor; {
	case old && f.Mode == "userspace": // which asks so little of a kernel that others may do
		return one(name, Warn, fmt.Sprintf("Linux %s: the proxy is tested on %d.%d and later", f.Kernel, floorMajor, floorMinor), "nothing, if no other check fails")
	case old:
		return one(name, Fail, "Linux "+f.Kernel, fmt.Sprintf("boot a kernel of version %d.%d or later", floorMajor, floorMinor))
	}
	return one(name, OK, fmt.Sprintf("Linux %s (%d.%d or later is needed)", f.Kernel, floorMajor, floorMinor), "")
}

func mode(f *Facts) []Result {
	if f.ModeReason == "" {
		return nil
	}
	return one("mode", OK, f.Mode+": "+f.ModeReason, "")
}

func privileges(f *Facts) []Result {
	const name = "privileges"
	switch {
	case f.NetAdminErr != nil:
		return cannotTell(name, f.NetAdminErr)
	case !f.NetAdmin && f.Mode == "userspace":
		return one(name, Warn, "CAP_NET_ADMIN is missing: the proxy listens only at addresses of services that this machine has", "to serve all, run as root, or give the agent CAP_NET_ADMIN")
	case !f.NetAdmin:
		return one(name, Fail, "CAP_NET_ADMIN is missing", "run as root, or give the agent CAP_NET_ADMIN (in a pod: securityContext.capabilities.add: [NET_ADMIN])")
	}
	return one(name, OK, "CAP_NET_ADMIN", "")
}

func features(f *Facts) []Result {
	if f.FeaturesErr != nil {
		return cannotTell(f.Mode, f.FeaturesErr)
	}
	if len(f.Features) == 0 {
		return one(f.Mode, OK, "needs nothing of the kernel", "")
	}
	return supported(f.Mode, f.Features, "load the modules that are named, or use a kernel that has them (Debian's stock kernel does)")
}

// supported fails with each requirement that the kernel does not meet, once for those of the same
// reason; do says what to do then.
func supported(name string, features []Feature, do string) []Result {
	var names []string
	var results []Result
	for _, f := range features {
		if f.Err == nil {
			names = append(names, f.Name)
			continue
		}
		r := Result{name, Fail, f.Err.Error(), do}
		if errors.Is(f.Err, exec.ErrNotFound) {
			r.Do = installIt
		}
		if !slices.Contains(results, r) {
			results = append(results, r)
		}
	}
	if len(results) > 0 {
		return results
	}
	return one(name, OK, "can do: "+strings.Join(names, ", "), "")
}

func lacking(f Feature) bool { return f.Err != nil }

// ruleset goes beyond the requirements: the kernel checks the very rules that the agent would load.
func ruleset(f *Facts) []Result {
	const name = "program"
	switch {
	case !f.DriverAsked || !f.NetAdmin:
		return nil // privileges says what is missing
	case f.DriverErr != nil && slices.ContainsFunc(slices.Concat(f.Features, f.PolicyFeatures), lacking):
		return nil // as do the features
	case errors.Is(f.DriverErr, exec.ErrNotFound):
		return one(name, Fail, f.DriverErr.Error(), installIt)
	case f.DriverErr != nil:
		return one(name, Fail, f.DriverErr.Error(), "use a kernel that has what is named here (Debian's stock kernel does)")
	}
	results := one(name, OK, "the kernel takes our "+f.Mode+" ruleset", "")
	if f.DriverLacks != "" {
		results = append(results, Result{"driver", Warn, f.Driver + " cannot do " + f.DriverLacks,
			"'sluice plan' names the services and policies that need it"})
	}
	return results
}

// optional says what is different where the kernel lacks what it need not have.
func optional(f *Facts) []Result {
	var results []Result
	for _, o := range f.Optional {
		seen := "the kernel has it (Linux " + o.Since + ")"
		if o.Err != nil {
			seen = fmt.Sprintf("not before Linux %s: %s", o.Since, o.Without)
		}
		results = append(results, Result{Check: o.Name, Status: OK, Seen: seen})
	}
	return results
}

func routes(f *Facts) []Result {
	var results []Result
	for _, family := range f.Families {
		name := "route " + family.Name
		if family.RouteErr != nil {
			r := Result{name, Fail,
				fmt.Sprintf("no route to %s: %v; the node itself cannot reach a ClusterIP then", family.Target, family.RouteErr),
				"add a default route, or a route for the service CIDR through any interface"}
			if family.Assumed && len(f.Families) > 1 { // the cluster may do with the other family
				r.Status = Warn
				r.Do = fmt.Sprintf("if the cluster has %s services: %s", family.Name, r.Do)
			}
			results = append(results, r)
			continue
		}
		results = append(results, Result{Check: name, Status: OK, Seen: fmt.Sprintf("%s %s", family.Target, family.Route)})
	}
	return results
}

func forwarding(f *Facts) []Result {
	var results []Result
	for _, family := range f.Families {
		name := "forwarding " + family.Name
		switch {
		case family.Forwards:
			results = append(results, Result{Check: name, Status: OK, Seen: "on"})
		case family.AdviceErr != nil:
			results = append(results, Result{name, Fail, "off: packets from outside do not reach pods", family.AdviceErr.Error()})
		case f.Alive:
			results = append(results, Result{name, Warn, "off, though an agent runs: what is forwarded is lost",
				"`sluice status` says if another program turns it off, or the agent may not turn it on; one with --set-sysctls=false leaves it to you: sysctl -w " + family.Forward + "=1, also in /etc/sysctl.d"})
		default:
			results = append(results, Result{name, Warn, "off", "nothing, if the agent may: `sluice run` turns it on (unless --set-sysctls=false), and `sluice cleanup` off again"})
		}
	}
	if len(f.Forwarding) > 0 {
		results = append(results, Result{"forwarding IPv4", Warn, "off on " + list(f.Forwarding),
			fmt.Sprintf("if service traffic comes in there: sysctl -w net/ipv4/conf/%s/forwarding=1", f.Forwarding[0])})
	}
	return results
}

func reversePath(f *Facts) []Result {
	const name = "rp_filter"
	switch {
	case f.SysctlErr != nil:
		return cannotTell(name, f.SysctlErr)
	case len(f.StrictPath) == 0:
		return one(name, OK, "not strict", "")
	}
	return one(name, Warn, "strict on "+list(f.StrictPath)+": packets are dropped whose answer would leave by another interface",
		fmt.Sprintf("where the node has several networks: sysctl -w net/ipv4/conf/%s/rp_filter=2", f.StrictPath[0]))
}

func conntrack(f *Facts) []Result {
	const name = "conntrack"
	// kube-proxy makes no table smaller than this, whatever the machine.
	const low = 131072
	c := f.Conntrack
	if c.CountErr != nil {
		return cannotTell(name, c.CountErr)
	}
	if !c.Loaded {
		return one(name, OK, "not in use yet", "")
	}
	seen := fmt.Sprintf("%d of %d entries used", c.Count, c.Max)
	raise := fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d (on the host, each entry takes some 300 bytes)", max(2*c.Max, low))
	switch {
	case c.Max == 0: // no limit
		return one(name, OK, fmt.Sprintf("%d entries, no limit", c.Count), "")
	case c.Count >= c.Max/100*95:
		return one(name, Fail, seen+": new connections are dropped when it is full", raise)
	case c.Count >= c.Max/4*3:
		return one(name, Warn, seen+": it is filling up", raise)
	case c.Max < low:
		return one(name, Warn, seen+": few for a node that carries services", raise)
	}
	return one(name, OK, seen, "")
}

func liberal(f *Facts) []Result {
	const name = "tcp_be_liberal"
	switch {
	case f.Conntrack.ParamErr != nil:
		return cannotTell(name, f.Conntrack.ParamErr)
	case !f.Conntrack.Loaded:
		return nil
	case f.Conntrack.Liberal:
		return one(name, OK, "on: TCP segments outside the window are translated too", "")
	}
	return one(name, OK, "off, as it should be: forwarded TCP segments outside the window are dropped (on, net.netfilter.nf_conntrack_tcp_be_liberal=1, "+
		"is for networks where packets come late or by two ways and connections stall)", "")
}

func agent(f *Facts) []Result {
	const name = "agent"
	switch {
	case f.Alive:
		return one(name, Warn, "one answers on "+f.Socket+", so another would refuse to start there",
			"`sluice status` asks it how it does; a second agent needs a network namespace and a --socket of its own")
	case f.OwnTable:
		return one(name, OK, "none answers on "+f.Socket+", but table inet sluice is there: of one with another --socket, or of one that ended; then the next adopts it", "")
	}
	return one(name, OK, "none answers on "+f.Socket, "")
}

func ownSysctls(f *Facts) []Result {
	const name = "sysctls"
	if f.RecordErr != nil {
		return one(name, Warn, f.RecordErr.Error(), "")
	}
	ours := "set by us, and restored by `sluice cleanup`: " + model.Join(f.Changed, ", ")
	if len(f.Changed) == 0 {
		ours = "none set by us"
	}
	if len(f.Undone) > 0 {
		return one(name, Warn, "set by us, and changed by another program since: "+model.Join(f.Undone, ", ")+"; else "+ours,
			"find who sets them, as /etc/sysctl.d or what configures the network")
	}
	return one(name, OK, ours, "")
}

func list(names []string) string { return model.FirstFew(names, 5) }
