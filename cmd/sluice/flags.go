package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/compile"
	"sluice.dev/sluice/internal/kernel/link"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/services/kubeproxy"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/source/list"
	"sluice.dev/sluice/internal/source/manifest"
)

// nodeFlags set what is programmed: the objects, and the node for which they are compiled.
type nodeFlags struct {
	manifests   string
	flowOffload bool
	compiler    compile.Config
	kubeFlags
	modeFlags
	policyFlags
}

func (f *nodeFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.manifests, "manifests", "", "folder of manifests (YAML or JSON) to read and watch")
	fl.StringVar(&f.compiler.Node, "node", "", "name of this node's Node object, in lower case (default: the host's name)")
	fl.Var((*prefixes)(&f.compiler.ClusterCIDRs), "cluster-cidr", "pod addresses of the whole cluster, one or two CIDRs; connections from elsewhere to cluster IPs are masqueraded")
	fl.Var((*prefixes)(&f.compiler.ServiceCIDRs), "service-cidr", "service addresses, one or two CIDRs; packets to addresses in them that no service has are dropped")
	fl.Var(nodePorts{&f.compiler}, "nodeport-addresses", "CIDRs of the node addresses that serve NodePorts; 'all' for all addresses, 'primary' for the node's first address of each family (default: primary)")
	fl.BoolVar(&f.compiler.MasqueradeAll, "masquerade-all", false, "masquerade every connection to a service")
	fl.BoolVar(&f.flowOffload, "flow-offload", false, "have packets of established connections that the node forwards pass by all rules, where the kernel can do that (flowtables)")
	f.kubeFlags.register(cmd)
	f.modeFlags.register(fl)
	f.policyFlags.register(fl, &f.compiler)
	addressFlags(fl, &f.compiler)
	_ = cmd.MarkFlagDirname("manifests")
}

// config returns the compiler's configuration that these flags set.
func (f *nodeFlags) config() (c compile.Config, err error) {
	c = f.compiler
	if c.Node = nodeName(c.Node); c.Node == "" {
		name, err := hostName("--node")
		if err != nil {
			return c, err
		}
		c.Node = nodeName(name)
	}
	if c.HostAddresses, err = link.Here.HostAddresses(); err != nil {
		return c, err
	}
	return c, f.policyFlags.complete(&c)
}

// hostName returns the host's name, for where the flag does not name the node.
func hostName(flag string) (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read host name: %w: name the node with %s", err, flag)
	}
	return name, nil
}

// nodeName returns the name of the Node object of a host with this name, as kubelet and kube-proxy
// derive it.
func nodeName(host string) string { return strings.ToLower(strings.TrimSpace(host)) }

// source returns a source that reads all objects that the flags name into sink.
func (f *nodeFlags) source(sink source.Sink, log *slog.Logger) source.Source {
	objects := func(s source.Sink) source.Source { return manifest.New(f.manifests, f.unsupported.ignores(), s, log) }
	if f.kubeFlags.named() {
		objects = func(s source.Sink) source.Source {
			return f.kubeFlags.open(&f.compiler, f.unsupported.ignores(), s, log)
		}
	}
	if len(f.lists) == 0 {
		return objects(sink)
	}
	return source.Join(sink, objects, func(s source.Sink) source.Source { return list.New(f.lists, s, log) })
}

// readable returns an error if the file or folder that the flags name cannot be read now. systemd
// or the kubelet then starts the program again until it can: an agent that waited itself would look
// as if it worked. A server that does not answer is no error, as servers come and go.
func (f *nodeFlags) readable() error {
	if f.kubeFlags.named() {
		err := f.kubeFlags.api(false).Check()
		if err != nil && f.kubeconfig != "" {
			err = fmt.Errorf("%w: make or mend it, or name another with --kubeconfig; nothing is changed in the kernel", err)
		}
		return err
	}
	_, err := os.ReadDir(f.manifests)
	if err != nil {
		return fmt.Errorf("read --manifests: %w: make the folder, or name another; nothing is changed in the kernel", err)
	}
	return nil
}

// prefixes is a flag of CIDRs, repeated or separated by commas.
type prefixes []netip.Prefix

// String implements pflag.Value.
func (p *prefixes) String() string {
	return model.Join(*p, ",")
}

// Set implements pflag.Value.
func (p *prefixes) Set(list string) error {
	for _, s := range splitList(list) {
		x, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("%q is not a CIDR such as 10.0.0.0/16", s)
		}
		*p = append(*p, x.Masked())
	}
	return nil
}

// Type implements pflag.Value.
func (p *prefixes) Type() string { return "CIDRs" }

// nodePorts is a flag that chooses the node addresses for NodePorts: CIDRs, or one of kube-proxy's
// words. The default is the node's first address of each family.
type nodePorts struct{ *compile.Config }

// String implements pflag.Value.
func (n nodePorts) String() string {
	text := model.Join(n.NodePortAddresses, ",")
	switch {
	case !n.NodePortPrimary:
		return text
	case text == "":
		return kubeproxy.Primary
	}
	return kubeproxy.Primary + "," + text
}

// Set implements pflag.Value.
func (n nodePorts) Set(list string) error {
	if list == "" {
		return nil // kube-proxy accepts it too
	}
	for _, s := range splitList(list) {
		if s == kubeproxy.Primary {
			n.NodePortPrimary = true
		} else if of := kubeproxy.NodePortWords[s]; of != nil {
			n.NodePortAddresses = append(n.NodePortAddresses, of...)
		} else if err := (*prefixes)(&n.NodePortAddresses).Set(s); err != nil {
			return fmt.Errorf("%w, nor one of the words %s, %s and %s", err, kubeproxy.Primary, kubeproxy.All, kubeproxy.Localhost)
		}
	}
	return nil
}

// Type implements pflag.Value.
func (n nodePorts) Type() string { return "CIDRs" }

// agentAt returns a client of the agent on a socket, and says if that works in another network
// namespace: the answers are not about this one.
func agentAt(socket string, notes io.Writer) *agent.Client {
	if process := agent.Elsewhere(socket); process != 0 {
		_ = printf(notes, "note: process %d answers, an agent of another network namespace than this one\n", process)
	}
	return agent.NewClient(socket)
}

// socketFlag adds --socket.
func socketFlag(cmd *cobra.Command, socket *string) {
	cmd.Flags().StringVar(socket, "socket", agent.DefaultSocket, "Unix socket of the agent")
}
