// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is read of the kernel's own structures, where they are on the kernel that runs (CO-RE).

#pragma once

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

union nf_inet_addr {
	__u32 all[4];
};

union nf_conntrack_man_proto {
	__be16 all;
};

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
};

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__be16 all;
		} u;
	} dst;
};

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
};

struct nf_ct_ext {
	__u8 offset[1]; // by kind; as many as there are kinds
};

struct ip_ct_tcp_state {
	__u8 flags;
};

struct ip_ct_tcp {
	struct ip_ct_tcp_state seen[2];
	__u8 state;
	__u8 retrans;
};

union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
};

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	__u32 mark;
	struct nf_ct_ext *ext;
	union nf_conntrack_proto proto;
};

// Two words, of a type that every kernel describes itself; modules describe the others.
struct timespec64 {
	long long tv_sec;
	long tv_nsec;
};

struct nf_conn_nat {
	int masq_index;
};

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

struct sk_buff {
	struct net_device *dev;
	__u8 ip_summed : 2;
};

enum nf_ct_ext_id {
	NF_CT_EXT_HELPER,
	NF_CT_EXT_NAT,
	NF_CT_EXT_TIMEOUT,
	NF_CT_EXT_LABELS,
	NF_CT_EXT_SYNPROXY,
};

#pragma clang attribute pop

// Of linux/netfilter.
#define IPS_SEEN_REPLY (1 << 1)
#define IPS_ASSURED (1 << 2)
#define IPS_CONFIRMED (1 << 3)
#define IPS_SRC_NAT (1 << 4)
#define IPS_SEQ_ADJUST (1 << 6)
#define IPS_DYING (1 << 9)
#define IPS_FIXED_TIMEOUT (1 << 10)
#define IPS_HELPER (1 << 13)
#define IPS_OFFLOAD (1 << 14)
#define IPS_HW_OFFLOAD (1 << 15)
#define TCP_CONNTRACK_ESTABLISHED 3
#define IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED 0x10
#define CHECKSUM_COMPLETE 2
#define CHECKSUM_PARTIAL 3

// As kernels before 6.10 have it, which later ones take, too.
struct bpf_ct_opts___first {
	__s32 netns_id; // -1: that of the device
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 tuple_size,
				  struct bpf_ct_opts___first *opts, __u32 opts_size) __ksym;
void bpf_ct_release(struct nf_conn *ct) __ksym;
int bpf_ct_change_timeout(struct nf_conn *ct, __u32 ms) __ksym;
void *bpf_cast_to_kern_ctx(void *ctx) __ksym;
void *bpf_rdonly_cast(const void *p, __u32 type) __ksym;
