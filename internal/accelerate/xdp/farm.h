// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Where clients find farms.

#pragma once

#include "packet.h"

struct place4 {
	__be32 addr;
	__be16 port;
	__u8 protocol;
	__u8 zero;
};

struct place6 {
	__be32 addr[4];
	__be16 port;
	__u8 protocol;
	__u8 zero;
};

// A farm at a place. It is never written while packets may be looking at it: one that changes gets
// another number. So does a table of slots.
struct farm {
	__be32 addr[4]; // where it is found
	__be16 port;
	__u8 protocol;
	__u8 hash_by;  // parts of a packet, as model.FlowKey
	__u32 first;   // slot of its table
	__u32 slots;   // how many the table has; 0: it is not forwarded here
	__u32 counts;  // where what its first backend gets is counted; the others follow
	__u32 checks;  // the first of its lists'
	__u32 checked; // how many there are
	__u8 zero[24]; // so that each is in a line of the cache of its own
};

// The agent makes maps as large as they have to be.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct place4);
	__type(value, __u32);
} places4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct place6);
	__type(value, __u32);
} places6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct farm);
} farms SEC(".maps");

// find returns the farm that a flow is for; NULL: none. What a map has found may be another
// farm's a moment later, as the kernel uses elements again at once: so the farm says where it is.
static __always_inline struct farm *find(struct packet *p)
{
	struct place4 at4 = {.port = *p->flow.dport, .protocol = p->flow.protocol};
	struct place6 at6 = {.port = *p->flow.dport, .protocol = p->flow.protocol};
	__u32 *number;

	if (p->is4) {
		at4.addr = p->flow.dst[0];
		number = bpf_map_lookup_elem(&places4, &at4);
	} else {
		__builtin_memcpy(at6.addr, p->flow.dst, sizeof(at6.addr));
		number = bpf_map_lookup_elem(&places6, &at6);
	}
	if (!number)
		return NULL;
	__u32 n = *(volatile __u32 *)number;
	struct farm *f = bpf_map_lookup_elem(&farms, &n);

	if (!f || f->port != at4.port || f->protocol != at4.protocol)
		return NULL;
	if (p->is4)
		return f->addr[0] == at4.addr ? f : NULL;
	return same(f->addr, at6.addr) ? f : NULL;
}
