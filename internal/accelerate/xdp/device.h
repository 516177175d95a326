// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The interfaces that frames come by.

#pragma once

#include "packet.h"

// The Ethernet addresses of the interfaces with this program, by index.
struct device {
	__u8 mac[ETH_ALEN];
	__u8 returns; // frames that came by it can be sent by it
	__u8 serves;  // farms, to those who send to it
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

// find_device returns the interface that a frame has come by; NULL: it is not known.
static __always_inline struct device *find_device(struct xdp_md *ctx)
{
	__u32 index = ctx->ingress_ifindex;

	return bpf_map_lookup_elem(&devices, &index);
}

// ours tells whether a frame is for this machine: others are only overheard.
static __always_inline bool ours(struct packet *p, const struct device *d)
{
	const __u16 *a = (const __u16 *)p->eth->h_dest;
	const __u16 *b = (const __u16 *)d->mac;

	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2];
}
