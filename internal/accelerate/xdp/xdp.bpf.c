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

// The Ethernet addresses of the interfaces with this program, by index.
struct device {
	__u8 mac[ETH_ALEN];
	__u8 zero[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

// ours tells whether a frame is for this machine: others are only overheard.
static __always_inline bool ours(struct xdp_md *ctx, struct packet *p)
{
	__u32 index = ctx->ingress_ifindex;
	struct device *d = bpf_map_lookup_elem(&devices, &index);
	const __u16 *a = (const __u16 *)p->eth->h_dest, *b;

	if (!d)
		return false;
	b = (const __u16 *)d->mac;
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2];
}

SEC("xdp.frags")
int accelerate(struct xdp_md *ctx)
{
	struct packet p = {};
	struct farm *f;

	if (parse(ctx, &p) != PARSED_PORTS || !ours(ctx, &p) || !whole(&p))
		return XDP_PASS;
	f = find(&p);
	if (!f)
		return XDP_PASS;
	if (with_drop && f->checked) {
		switch (listed(&p, f)) {
		case LISTED_DROPPED:
			return XDP_DROP;
		case LISTED_LEFT:
			return XDP_PASS;
		}
	}
	if (with_dsr && f->slots && finished(&p))
		return direct(ctx, &p, f);
	return XDP_PASS;
}
