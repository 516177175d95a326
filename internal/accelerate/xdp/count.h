// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Packets are counted for each processor.

#pragma once

#include "packet.h"

struct count {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

const volatile __u32 counted; // how many counts there are for a processor

static __always_inline void count(struct packet *p, __u32 number)
{
	__u32 at = bpf_get_smp_processor_id() * counted + number;
	struct count *c = bpf_map_lookup_elem(&counts, &at);

	if (!c)
		return;
	c->packets++;
	c->bytes += p->end - p->ip;
}
