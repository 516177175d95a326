// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

// What nftables would do with a packet, done as the packet arrives. Whatever is not known here, or
// not plain, goes on to nftables.

#include "drop.h"
#include "dsr.h"

char _license[] SEC("license") = "Dual BSD/GPL"; // a helper is for the GPL alone

// What is done; the verifier takes out what is not.
const volatile bool with_drop;
const volatile bool with_dsr;

SEC("xdp.frags")
int accelerate(struct xdp_md *ctx)
{
	struct packet p = {};
	struct device *d = find_device(ctx);
	enum parsed parsed = parse(ctx, &p);
	bool plain = parsed == PARSED_PORTS && d && ours(&p, d);
	struct farm *f;
	bool error;

	if (with_drop && parsed != PARSED_NOTHING) {
		int verdict = judge_arrival(ctx, &p, plain);

		if (verdict)
			return verdict;
	}
	if (!plain || !d->serves)
		return XDP_PASS;
	error = !whole(&p);
	if (error && !quotes(&p))
		return XDP_PASS;
	f = find(&p);
	if (!f || (error && !f->slots)) // no other farm's errors are led to backends here
		return XDP_PASS;
	if (with_drop && f->checked) {
		int verdict = judge(ctx, &p, true, f->checks, f->checked);

		if (verdict)
			return verdict;
	}
	if (with_dsr && f->slots && finished(&p))
		return direct(ctx, &p, f, d);
	return XDP_PASS;
}
