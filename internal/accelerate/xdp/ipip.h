// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Packets of IPv4 in packets of IPv4 (RFC 2003), as the kernel's tunnels make them for nftables.

#pragma once

#include <bpf/bpf_core_read.h>

#include "packet.h"

#define DONT_FRAGMENT 0x4000 // in frag_off

// What is read of the kernel's own structures, where they are on the kernel that runs (CO-RE).
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct netns_xfrm {
	unsigned int policy_count[3]; // in, out, forwarded
};

struct net {
	struct netns_xfrm xfrm;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	possible_net_t nd_net;
};

struct xdp_rxq_info {
	struct net_device *dev;
};

struct xdp_buff {
	struct xdp_rxq_info *rxq;
};

#pragma clang attribute pop

void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak; // from Linux 6.2 on

// encrypted tells whether what the machine sends may be to be encrypted (IPsec), or to be refused as
// it is not.
static __always_inline bool encrypted(struct xdp_md *ctx)
{
	if (!bpf_core_field_exists(struct net, xfrm))
		return false;
	if (!bpf_cast_to_kern_ctx)
		return true;
	return ((struct xdp_buff *)bpf_cast_to_kern_ctx(ctx))->rxq->dev->nd_net.net->xfrm.policy_count[1];
}

// The addresses of an outer packet.
struct outer {
	__be32 src;
	__be32 dst; // 0: there is no outer packet
};

// lessen has the checksum of a header follow a number in it that has become less by so much, as
// RFC 1141 has it.
static __always_inline void lessen(struct iphdr *ip, __be16 by)
{
	__u32 check = (__u32)ip->check + by;

	ip->check = check + (check >= 0xffff);
}

// make_room moves the frame of a packet to the front, with an outer header's room before the packet,
// which is then where p says. False: nothing has changed.
static __always_inline bool make_room(struct xdp_md *ctx, struct packet *p)
{
	if (!p->is4 || bpf_xdp_adjust_head(ctx, -(int)sizeof(struct iphdr)))
		return false;
	p->eth = (void *)(long)ctx->data;
	p->end = (void *)(long)ctx->data_end;
	p->ip = (void *)(p->eth + 1) + sizeof(struct iphdr);
	return (void *)(p->ip4 + 1) <= p->end; // as before; the verifier has forgotten it
}

// wrap writes the outer header, and the type of the frame. Neither packet forbids to be fragmented.
static __always_inline void wrap(struct packet *p, struct outer to)
{
	struct iphdr *outer = (void *)(p->eth + 1), *inner = p->ip4;
	__u8 congestion = inner->tos & 3;
	__u32 sum;

	if (inner->frag_off & bpf_htons(DONT_FRAGMENT)) {
		inner->frag_off &= ~bpf_htons(DONT_FRAGMENT);
		lessen(inner, bpf_htons(DONT_FRAGMENT));
	}
	p->eth->h_proto = bpf_htons(ETH_P_IP);
	outer->version = 4;
	outer->ihl = 5;
	outer->tos = congestion == 3 ? 2 : congestion; // RFC 3168, section 9.1.1
	outer->tot_len = bpf_htons(p->length + sizeof(*outer));
	outer->id = bpf_get_prandom_u32();
	outer->frag_off = 0;
	outer->ttl = 64; // the default of tunnels of kind sit
	outer->protocol = IPPROTO_IPIP;
	outer->check = 0;
	outer->saddr = to.src;
	outer->daddr = to.dst;
	sum = add(0, (word *)outer, 5);
	sum = (sum & 0xffff) + (sum >> 16);
	outer->check = ~((sum & 0xffff) + (sum >> 16));
}
