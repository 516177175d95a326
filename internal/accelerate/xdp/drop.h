// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Early drop: sources of packets are looked up in lists of networks, in the order in which nftables
// does so. Each length of prefixes that a list has is a check of its own.

#pragma once

#include "count.h"
#include "device.h"
#include "farm.h"
#include "track.h"

// What becomes of a packet whose source is on a list.
#define LISTED_ALLOWED 0 // no later list is asked
#define LISTED_DROPPED 1
#define LISTED_LEFT 2      // nftables does more than to drop it
#define LISTED_DENIED 3    // dropped, but for some that nftables shows to people
#define LISTED_UNTRACKED 4 // the same, unless it may be one of a port that stays open
#define LISTED_NEW 5       // the same, unless it is of a connection that there is

struct check {
	__u32 list;   // with its length, a number
	__u32 counts; // where it is counted
	__u8 bits;
	__u8 then;
	__u8 zero[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct check);
} checks SEC(".maps");

struct member4 {
	__u32 list;
	__be32 addr;
};

struct member6 {
	__u32 list;
	__be32 addr[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct member4);
	__type(value, __u8);
} members4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct member6);
	__type(value, __u8);
} members6 SEC(".maps");

// mask has all bits of a word but the first so many.
static __always_inline __be32 masked(__be32 word, int bits)
{
	if (bits <= 0)
		return 0;
	return bits >= 32 ? word : word & bpf_htonl(~0U << (32 - bits));
}

static __always_inline bool on_list(struct packet *p, const struct check *c)
{
	struct member4 m4 = {.list = c->list};
	struct member6 m6 = {.list = c->list};

	if (p->is4) {
		m4.addr = masked(p->ip4->saddr, c->bits);
		return bpf_map_lookup_elem(&members4, &m4);
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		m6.addr[i] = masked(p->ip6->saddr.in6_u.u6_addr32[i], c->bits - 32 * i);
	return bpf_map_lookup_elem(&members6, &m6);
}

// A packet is looked up that many times at the most: once for each length of IPv4's prefixes.
#define MOST_CHECKS 33

// listed returns what becomes of a packet that so many checks from a first one on are for, and where
// it is counted if it is dropped.
static __always_inline int listed(struct packet *p, __u32 first, __u32 checked, __u32 *counts)
{
	for (__u32 i = 0; i < MOST_CHECKS; i++) {
		__u32 at = first + i;
		struct check *c = i < checked ? bpf_map_lookup_elem(&checks, &at) : NULL;

		if (!c)
			break;
		if (!on_list(p, c))
			continue;
		*counts = c->counts;
		return c->then;
	}
	return LISTED_ALLOWED;
}

struct span {
	__u32 first;
	__u32 checked;
};

// The checks for all packets that arrive by an interface: of IPv4 and of IPv6, by its index.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct span);
} arrivals SEC(".maps");

// Ports that no policy closes, a bit each: TCP's as destinations, as sources, and UDP's.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 4 * 65536 / 64);
	__type(key, __u32);
	__type(value, __u64);
} failsafes SEC(".maps");

static __always_inline bool open_port(__u32 kind, __be16 port)
{
	__u32 bit = kind << 16 | bpf_ntohs(port), at = bit / 64;
	__u64 *word = bpf_map_lookup_elem(&failsafes, &at);

	return !word || *(volatile __u64 *)word >> (bit % 64) & 1;
}

// spared tells whether a packet may be one of a port that no policy closes.
static __always_inline bool spared(struct packet *p)
{
	__be16 *ports = ports_of(p);
	__u32 kind = p->protocol == IPPROTO_TCP ? 0 : 2;

	switch (p->protocol) {
	case IPPROTO_ICMP:
		return !p->is4;
	case IPPROTO_ICMPV6:
		return p->is4;
	case IPPROTO_TCP:
	case IPPROTO_UDP:
		return !ports || open_port(kind, ports[1]) || open_port(kind + 1, ports[0]);
	}
	return true; // in IPv6, there may be more headers
}

// When a processor has last left a packet to nftables that it would have dropped.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} shown SEC(".maps");

// shows tells whether a packet is left to nftables, which shows it to people: one in each tick of
// the clock is.
static __always_inline bool shows(void)
{
	__u32 zero = 0;
	__u64 *last = bpf_map_lookup_elem(&shown, &zero), now = bpf_jiffies64();

	if (!last || *last >= now)
		return false;
	*last = now;
	return true;
}

// judge returns what becomes of a packet by so many checks from a first one on; 0: they leave it to
// others. Ours: it is plain, and for this machine.
static __always_inline int judge(struct xdp_md *ctx, struct packet *p, bool ours, __u32 first, __u32 checked)
{
	__u32 counts = 0;

	switch (listed(p, first, checked, &counts)) {
	case LISTED_DROPPED:
		count(p, counts);
		return XDP_DROP;
	case LISTED_LEFT:
		return XDP_PASS;
	case LISTED_DENIED:
		break;
	case LISTED_UNTRACKED:
		if (!ours || spared(p))
			return 0;
		break;
	case LISTED_NEW:
		if (tracked(ctx, p))
			return XDP_PASS;
		break;
	default:
		return 0;
	}
	if (shows())
		return XDP_PASS;
	count(p, counts);
	return XDP_DROP;
}

// judge_arrival is judge for the checks at the interface that a packet has come by.
static __always_inline int judge_arrival(struct xdp_md *ctx, struct packet *p, bool ours)
{
	__u32 at = 2 * ctx->ingress_ifindex + !p->is4;
	struct span *s = bpf_map_lookup_elem(&arrivals, &at);

	if (!s)
		return 0;
	__u64 both = *(volatile __u64 *)s; // at once, as the agent writes it
	return judge(ctx, p, ours, (__u32)both, both >> 32);
}
