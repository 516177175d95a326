// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Direct server return: packets of farms go to backends, as they are except for the Ethernet
// addresses and a TTL that is lower by one; to backends on other networks in IPIP. Which backend is
// chosen as nftables does.

#pragma once

#include "count.h"
#include "device.h"
#include "farm.h"
#include "ipip.h"
#include "jhash.h"

#define AF_INET 2
#define AF_INET6 10

// Parts of a packet that a farm may choose by, as in model.FlowKey.
#define SRC_IP 1
#define DST_IP 2
#define SRC_PORT 4
#define DST_PORT 8
#define SRC_MAC 16
#define DST_MAC 32

#define SEED 0x51d1ce // of the hash, in nftables, too

struct slot {
	__u32 backend;
	__u32 number; // of the backend in the farm
};

struct backend {
	__be32 addr[4];
	__u32 device; // that leads to it; 0: a route does, and it gets packets in IPIP
	__u32 second; // or so, in which a packet has last gone by nftables, see stale
};

// What the kernel has said of a backend.
struct neighbour {
	__u64 time; // when
	__u32 backend;
	__u32 device;
	struct outer outer; // of what it gets
	__u16 mtu;          // for what it gets
	__u8 macs[2 * ETH_ALEN]; // of the backend or a router, and of the interface that leads to it
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

// The kernel is asked about a backend once in a tick of its clock, which is some milliseconds at the
// most: to ask takes as long as all else.
#define NEIGHBOURS 4096
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NEIGHBOURS);
	__type(key, __u32);
	__type(value, struct neighbour);
} neighbours SEC(".maps");

// The interfaces that take frames from here.
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} ways SEC(".maps");

static __always_inline void add_address(struct jhash *h, const __be32 *addr, bool is4)
{
	jhash_add(h, addr[0]);
	if (is4)
		return;
	jhash_add(h, addr[1]);
	jhash_add(h, addr[2]);
	jhash_add(h, addr[3]);
}

static __always_inline void add_mac(struct jhash *h, const __u8 *mac)
{
	const __u16 *parts = (const __u16 *)mac;

	jhash_add(h, parts[0] | (__u32)parts[1] << 16);
	jhash_add(h, parts[2]);
}

// choose returns a number below n that all packets of a flow have in common.
static __always_inline __u32 choose(struct packet *p, __u32 by, __u32 n)
{
	struct jhash h;
	__u32 words = 0;
	__u32 of_address = p->is4 ? 1 : 4;

	if (n == 1)
		return 0;
	words += by & SRC_IP ? of_address : 0;
	words += by & DST_IP ? of_address : 0;
	words += by & SRC_PORT ? 1 : 0;
	words += by & DST_PORT ? 1 : 0;
	words += by & SRC_MAC ? 2 : 0;
	words += by & DST_MAC ? 2 : 0;
	jhash_begin(&h, words, SEED);
	if (by & SRC_IP)
		add_address(&h, p->flow.src, p->is4);
	if (by & DST_IP)
		add_address(&h, p->flow.dst, p->is4);
	if (by & SRC_PORT)
		jhash_add(&h, *p->flow.sport);
	if (by & DST_PORT)
		jhash_add(&h, *p->flow.dport);
	if (by & SRC_MAC)
		add_mac(&h, p->eth->h_source);
	if (by & DST_MAC)
		add_mac(&h, p->eth->h_dest);
	return (__u64)jhash_end(&h) * n >> 32;
}

// stale tells, once in 256 ticks of the clock for each backend, which is about a second, that a
// packet is to go by nftables: the kernel asks a neighbour whether it is still there only when it
// sends to it itself. No clock is as cheap to read as that of ticks.
static __always_inline bool stale(struct backend *b, __u64 now)
{
	__u32 second = now >> 8;

	if (b->second == second)
		return false;
	b->second = second;
	return true;
}

#define LOOPBACK 1 // the interface that packets of the machine itself come by

// ask asks the kernel about a backend. False: nftables has to.
static __always_inline bool ask(struct xdp_md *ctx, struct packet *p, struct backend *b, struct neighbour *n)
{
	bool near = b->device; // what is not is the node's own, and so IPsec's
	__u16 more = near ? 0 : sizeof(struct iphdr);
	struct bpf_fib_lookup to = {
		.family = p->is4 ? AF_INET : AF_INET6,
		.tot_len = p->length + more,
		.ifindex = near ? b->device : LOOPBACK,
	};

	if (!near && encrypted(ctx))
		return false;
	__builtin_memcpy(to.ipv6_dst, b->addr, sizeof(b->addr)); // an IPv4 address is in the first word
	if (bpf_fib_lookup(ctx, &to, sizeof(to), near ? BPF_FIB_LOOKUP_OUTPUT : BPF_FIB_LOOKUP_SRC))
		return false;
	// Behind a router the kernel gives the router's address.
	if (near && (to.ifindex != b->device || !same(to.ipv6_dst, b->addr)))
		return false;
	n->device = to.ifindex;
	n->outer.src = to.ipv4_src;
	n->outer.dst = near ? 0 : b->addr[0];
	n->mtu = to.mtu_result - more;
	__builtin_memcpy(n->macs, to.dmac, ETH_ALEN);
	__builtin_memcpy(n->macs + ETH_ALEN, to.smac, ETH_ALEN);
	return true;
}

// find_neighbour returns what the kernel says of a backend; NULL: nftables has to find it.
static __always_inline struct neighbour *find_neighbour(struct xdp_md *ctx, struct packet *p, const struct device *in, __u32 number)
{
	struct backend *b = bpf_map_lookup_elem(&backends, &number);
	__u32 at = number % NEIGHBOURS;
	struct neighbour *n = bpf_map_lookup_elem(&neighbours, &at);
	__u64 now = bpf_jiffies64();

	if (!b || !n || stale(b, now))
		return NULL;
	if (n->time != now || n->backend != number) {
		n->time = 0;
		if (!ask(ctx, p, b, n))
			return NULL;
		n->backend = number;
		n->time = now;
	}
	if (p->length > n->mtu)
		return NULL;
	if (n->device == ctx->ingress_ifindex)
		return in->returns ? n : NULL;
	// Whether the interface takes frames is known at once.
	return bpf_redirect_map(&ways, n->device, XDP_PASS) == XDP_REDIRECT ? n : NULL;
}

// lasts tells whether a packet may be forwarded once more.
static __always_inline bool lasts(struct packet *p) { return (p->is4 ? p->ip4->ttl : p->ip6->hop_limit) > 1; }

// lower lowers the TTL by one.
static __always_inline void lower(struct packet *p)
{
	if (p->is4) {
		p->ip4->ttl--;
		lessen(p->ip4, bpf_htons(0x0100));
	} else {
		p->ip6->hop_limit--;
	}
}

static __always_inline int direct(struct xdp_md *ctx, struct packet *p, const struct farm *f, const struct device *in)
{
	__u32 at = f->first + choose(p, f->hash_by, f->slots);
	struct slot *s = bpf_map_lookup_elem(&slots, &at);

	if (!s)
		return XDP_PASS;
	struct neighbour *n = find_neighbour(ctx, p, in, s->backend);

	if (!n || !lasts(p))
		return XDP_PASS;
	if (n->outer.dst && !make_room(ctx, p))
		return XDP_PASS;
	lower(p);
	if (n->outer.dst)
		wrap(p, n->outer);
	__builtin_memcpy(p->eth, n->macs, sizeof(n->macs));
	count(p, f->counts + s->number);
	return n->device == ctx->ingress_ifindex ? XDP_TX : XDP_REDIRECT;
}
