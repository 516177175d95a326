package health

import "context"

// resolve is an ARP check.
func (l *loop) resolve(ctx context.Context, p *probe) outcome {
	hop, err := l.o.Ask(ctx, p.at.Addr())
	whose := ""
	if hop != p.at.Addr() {
		whose = " by the router " + hop.String()
	}
	if err != nil {
		o := failed(err)
		o.why += whose
		return o
	}
	return up("answer to ARP" + whose)
}
