package lab

import (
	"context"
	_ "embed" // for internet
	"net/netip"
	"path/filepath"

	"sluice.dev/sluice/test/lab/plan"
	"sluice.dev/sluice/test/netns"
)

// internet configures CoreDNS for the outside host: what Kubernetes' tests ask the Internet.
//
//go:embed internet.corefile
var internet []byte

// Addresses of the Internet that Kubernetes' tests connect to; internet has them, too.
var internetIPs = []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("8.8.4.4"), netip.MustParseAddr("2001:4860:4860::8888")}

// Internet has the outside host answer as the few servers of the Internet that Kubernetes' tests
// name, and as the nodes' name server: a lab has no way to the real ones. images is the folder of
// image.Programs.
func (l *Lab) Internet(ctx context.Context, images string) error {
	outside, err := netns.Open(l.NodeNS(plan.Outside))
	if err != nil {
		return err
	}
	defer outside.Close()
	for _, a := range internetIPs {
		if err := outside.Address("lo", netip.PrefixFrom(a, a.BitLen())); err != nil {
			return err
		}
	}
	dir := l.path(plan.Outside)
	if err := makeFolder(dir); err != nil {
		return err
	}
	config := filepath.Join(dir, "internet.corefile")
	if err := l.write(config, internet); err != nil {
		return err
	}
	if err := l.start(plan.Outside, internetName, []string{filepath.Join(images, "coredns"), "-conf", config}); err != nil {
		return err
	}
	ctx, cancel := within(ctx, serveTimeout)
	defer cancel()
	return l.awaitPage(ctx, plan.Outside, internetName, "http://8.8.4.4/health")
}

// internetName is what the process is recorded as.
const internetName = "internet"
