// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Early drop: sources of packets are looked up in lists of networks, in the order in which nftables
// does so. Each length of prefixes that a list has is a check of its own.

#pragma once

#include "count.h"
#include "farm.h"

// What becomes of a packet whose source is on a list.
#define LISTED_ALLOWED 0 // no later list is asked
#define LISTED_DROPPED 1
#define LISTED_LEFT 2 // nftables does more than to drop it

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

// The checks for all packets, of IPv4 and IPv6.
struct span {
	__u32 first;
	__u32 checked;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct span);
} everywhere SEC(".maps");

// When a processor has last left a packet that is denied to nftables, which shows some to people.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} shown SEC(".maps");

// denied returns what becomes of a packet that is dropped wherever it goes; 0: it is not. One in each
// tick of the clock is left to nftables.
static __always_inline int denied(struct packet *p)
{
	__u32 zero = 0, family = !p->is4, counts = 0;
	struct span *e = bpf_map_lookup_elem(&everywhere, &family);
	__u64 *last = bpf_map_lookup_elem(&shown, &zero);

	if (!e || !last)
		return 0;
	__u64 both = *(volatile __u64 *)e; // at once, as the agent writes it
	if (listed(p, (__u32)both, both >> 32, &counts) != LISTED_DROPPED)
		return 0;
	__u64 now = bpf_jiffies64();

	if (*last != now) {
		*last = now;
		return XDP_PASS;
	}
	count(p, counts);
	return XDP_DROP;
}
