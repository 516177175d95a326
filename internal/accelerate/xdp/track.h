// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The kernel's table of connections.

#pragma once

#include <linux/errno.h>

#include "packet.h"

struct nf_conn {
	unsigned long status;
} __attribute__((preserve_access_index));

// As kernels before 6.10 have it, which later ones take, too.
struct bpf_ct_opts___first {
	__s32 netns_id; // -1: that of the device
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

struct nf_conn *bpf_xdp_ct_lookup(struct xdp_md *ctx, struct bpf_sock_tuple *tuple, __u32 tuple_size,
				  struct bpf_ct_opts___first *opts, __u32 opts_size) __ksym __weak;
void bpf_ct_release(struct nf_conn *ct) __ksym __weak;

// ports_of returns the ports of a plain packet; NULL: it ends before. The verifier wants to see them
// where they are read.
static __always_inline __be16 *ports_of(struct packet *p)
{
	__be16 *ports = p->is4 ? (void *)(p->ip4 + 1) : (void *)(p->ip6 + 1);

	return (void *)(ports + 2) > p->end ? NULL : ports;
}

const volatile bool with_tracking; // the kernel has these functions

// tracked tells whether a plain packet may be of a connection that the kernel knows.
static __always_inline bool tracked(struct xdp_md *ctx, struct packet *p)
{
	struct bpf_ct_opts___first opts = {.netns_id = -1, .l4proto = p->protocol};
	struct bpf_sock_tuple tuple = {};
	__be16 *ports = ports_of(p);
	struct nf_conn *ct;

	if (!ports || !with_tracking)
		return true;
	if (p->is4) {
		tuple.ipv4.saddr = p->ip4->saddr;
		tuple.ipv4.daddr = p->ip4->daddr;
		tuple.ipv4.sport = ports[0];
		tuple.ipv4.dport = ports[1];
		ct = bpf_xdp_ct_lookup(ctx, &tuple, sizeof(tuple.ipv4), &opts, sizeof(opts));
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, &p->ip6->saddr, sizeof(tuple.ipv6.saddr));
		__builtin_memcpy(tuple.ipv6.daddr, &p->ip6->daddr, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = ports[0];
		tuple.ipv6.dport = ports[1];
		ct = bpf_xdp_ct_lookup(ctx, &tuple, sizeof(tuple.ipv6), &opts, sizeof(opts));
	}
	if (!ct)
		return opts.error != -ENOENT;
	bpf_ct_release(ct);
	return true;
}
