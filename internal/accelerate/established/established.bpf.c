// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

// Packets of established connections that the node passes on go from where they arrive to where
// they leave, past all else that the kernel does with packets. What that takes is the kernel's: its
// entry of the connection, and its routes. Whatever is not plain goes on to the kernel, and so does
// all that may begin, change or end a connection.

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "kernel.h"

// The kernel gives some functions to programs under the GPL alone.
char _license[] SEC("license") = "GPL v2";

#define BPF_FIB_LOOKUP_SKIP_NEIGH (1U << 2)
#define TCX_NEXT -1 // to other programs, and to the kernel
#define AF_INET 2
#define AF_INET6 10
#define FLOWINFO bpf_htonl(0x0fffffff)

// No packet is taken before that time, in nanoseconds since the machine started; 0: all may be.
volatile __u64 paused_until;

// Time-outs of connection tracking, in milliseconds.
volatile __u32 tcp_timeout, tcp_unacknowledged, udp_timeout;

struct device {
	__u8 direct; // packets may appear at its other end, in the network namespace of a pod
	__u8 strict; // it takes packets only from where answers to them go by it
};

// The interfaces that packets are taken from and sent by.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 14);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

// How many packets went the short way; of those that arrived together, each counts.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} taken SEC(".maps");

struct ends {
	__be32 src[4], dst[4]; // of IPv4 the first of each alone
	__be16 sport, dport;
};

struct packet {
	bool is4;
	bool answer; // to the one who began
	bool payload;
	__u8 protocol;
	__u32 header; // the length of all headers but Ethernet's
	struct ends was, is;
};

// change adds what a word's change is to a checksum's sum.
static __always_inline __u64 change(__u64 sum, __u32 was, __u32 is) { return sum + (__u32)~was + is; }

static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

// An extension of an entry, by the name of its kind; a kernel has not all kinds.
#define EXTENSION(ext, kind)                                                                       \
	({                                                                                         \
		__u8 at = 0;                                                                       \
		if (bpf_core_enum_value_exists(enum nf_ct_ext_id, kind))                           \
			at = *((__u8 *)(ext) + bpf_core_field_offset(struct nf_ct_ext, offset) +   \
			       bpf_core_enum_value(enum nf_ct_ext_id, kind));                      \
		at;                                                                                \
	})
#define WORDS(p) ((struct timespec64 *)bpf_rdonly_cast(p, bpf_core_type_id_kernel(struct timespec64)))

// plain tells whether packets of a connection that are nothing special may go the short way: it is
// established, nothing about it is to be looked at, and no policy has come to forbid it.
static __always_inline bool plain(struct nf_conn *ct, __u8 protocol, int *leaves_by)
{
	const unsigned long wanted = IPS_SEEN_REPLY | IPS_ASSURED | IPS_CONFIRMED;
	const unsigned long unwanted = IPS_SEQ_ADJUST | IPS_DYING | IPS_FIXED_TIMEOUT | IPS_HELPER | IPS_OFFLOAD | IPS_HW_OFFLOAD;
	unsigned long status = ct->status;

	if ((status & (wanted | unwanted)) != wanted)
		return false;
	if (bpf_core_field_exists(ct->mark) && ct->mark)
		return false; // another program's, which alone knows what it means
	// Tracking sees no acknowledgement that goes the short way: it must not wait for one.
	if (protocol == IPPROTO_TCP &&
	    (ct->proto.tcp.state != TCP_CONNTRACK_ESTABLISHED || ct->proto.tcp.retrans ||
	     (ct->proto.tcp.seen[0].flags | ct->proto.tcp.seen[1].flags) & IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED))
		return false;

	struct nf_ct_ext *ext = ct->ext;
	if (!ext)
		return true;
	if (EXTENSION(ext, NF_CT_EXT_HELPER) || EXTENSION(ext, NF_CT_EXT_TIMEOUT))
		return false;
	__u8 at = EXTENSION(ext, NF_CT_EXT_SYNPROXY);
	if (at && WORDS((void *)ext + at)->tv_sec) // numbers that are to be translated, too
		return false;
	at = EXTENSION(ext, NF_CT_EXT_LABELS);
	if (at && (__u64)WORDS((void *)ext + at)->tv_nsec >> 62)
		return false; // forbidden (127), or IPVS' (126)
	at = EXTENSION(ext, NF_CT_EXT_NAT);
	if (at && status & IPS_SRC_NAT && bpf_core_field_exists(struct nf_conn_nat, masq_index))
		*leaves_by = WORDS((void *)ext + at + bpf_core_field_offset(struct nf_conn_nat, masq_index))->tv_sec;
	return true;
}

// encrypted tells whether packets may be to be encrypted (IPsec), or to be refused as they are not.
static __always_inline bool encrypted(struct __sk_buff *ctx)
{
	if (!bpf_core_field_exists(struct net, xfrm))
		return false;
	struct net *net = ((struct sk_buff *)bpf_cast_to_kern_ctx(ctx))->dev->nd_net.net;
	return net->xfrm.policy_count[1] || net->xfrm.policy_count[2];
}

// MIRROR has the packet become what answers to the other direction come from and go to.
#define MIRROR(p, tuple)                                                                           \
	do {                                                                                       \
		for (int i = 0; i < 4; i++) {                                                      \
			if (i && (p)->is4)                                                         \
				break;                                                             \
			(p)->is.src[i] = (tuple).dst.u3.all[i];                                    \
			(p)->is.dst[i] = (tuple).src.u3.all[i];                                    \
		}                                                                                  \
		(p)->is.sport = (tuple).dst.u.all;                                                 \
		(p)->is.dport = (tuple).src.u.all;                                                 \
	} while (0)

static __always_inline void set_addresses(struct bpf_fib_lookup *f, const struct packet *p, const __be32 *src, const __be32 *dst)
{
	if (p->is4) {
		f->family = AF_INET;
		f->ipv4_src = src[0];
		f->ipv4_dst = dst[0];
	} else {
		f->family = AF_INET6;
		for (int i = 0; i < 4; i++) {
			f->ipv6_src[i] = src[i];
			f->ipv6_dst[i] = dst[i];
		}
	}
}

// from_there tells whether answers to the packet would leave by the interface that it came by.
static __always_inline bool from_there(struct __sk_buff *ctx, const struct packet *p)
{
	struct bpf_fib_lookup f = { .ifindex = ctx->ifindex, .l4_protocol = p->protocol, .tot_len = 1 };

	set_addresses(&f, p, p->is.dst, p->was.src);
	return bpf_fib_lookup(ctx, &f, sizeof(f), BPF_FIB_LOOKUP_SKIP_NEIGH) == BPF_FIB_LKUP_RET_SUCCESS && f.ifindex == ctx->ifindex;
}

// rewrite writes what the packet becomes.
static __always_inline bool rewrite(struct __sk_buff *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	__u8 summed = BPF_CORE_READ_BITFIELD(skb, ip_summed);
	struct ethhdr *eth = data;
	struct iphdr *ip4 = (void *)(eth + 1);
	struct ipv6hdr *ip6 = (void *)(eth + 1);
	__u64 addresses = 0, ports, all = 0;
	void *l4 = p->is4 ? (void *)(ip4 + 1) : (void *)(ip6 + 1);
	__u16 *check = l4 + (p->protocol == IPPROTO_TCP ? __builtin_offsetof(struct tcphdr, check) : __builtin_offsetof(struct udphdr, check));
	__be16 *port = l4;

	if (l4 + (p->protocol == IPPROTO_TCP ? sizeof(struct tcphdr) : sizeof(struct udphdr)) > end)
		return false;
	if (p->is4) {
		__u32 *word = (void *)&ip4->ttl; // with the protocol, and the checksum
		__u16 was = *(__u16 *)word;
		ip4->ttl--;
		addresses = change(change(0, p->was.src[0], p->is.src[0]), p->was.dst[0], p->is.dst[0]);
		ip4->check = ~fold((__u16)~ip4->check + (__u16)~was + *(__u16 *)word + addresses);
		ip4->saddr = p->is.src[0];
		ip4->daddr = p->is.dst[0];
	} else {
		__u32 was = *(__u16 *)&ip6->nexthdr;
		ip6->hop_limit--;
		all = (__u16)~was + *(__u16 *)&ip6->nexthdr;
		for (int i = 0; i < 4; i++) {
			addresses = change(change(addresses, p->was.src[i], p->is.src[i]), p->was.dst[i], p->is.dst[i]);
			ip6->saddr.in6_u.u6_addr32[i] = p->is.src[i];
			ip6->daddr.in6_u.u6_addr32[i] = p->is.dst[i];
		}
		all += addresses;
	}
	ports = change(0, *(__u32 *)port, p->is.sport | (__u32)p->is.dport << 16);
	port[0] = p->is.sport;
	port[1] = p->is.dport;
	__u16 before = *check;
	if (summed == CHECKSUM_PARTIAL) {
		*check = fold(*check + addresses);
	} else if (*check || p->protocol == IPPROTO_TCP) {
		__u16 sum = ~fold((__u16)~*check + addresses + ports);
		if (!sum && p->protocol == IPPROTO_UDP)
			sum = 0xffff;
		*check = sum;
	}
	if (summed == CHECKSUM_COMPLETE) // of all that follows Ethernet's header; that of IPv4 has no sum
		bpf_csum_update(ctx, fold(all + ports + (__u16)~before + *check));
	return true;
}

static __always_inline int forward(struct __sk_buff *ctx, struct packet *p, struct nf_conn *ct, struct bpf_fib_lookup *f, const struct device *in)
{
	int leaves_by = 0;
	__u32 zero = 0;

	if (encrypted(ctx) || !plain(ct, p->protocol, &leaves_by))
		return TCX_NEXT;
	set_addresses(f, p, p->was.src, p->is.dst);
	f->sport = p->was.sport;
	f->dport = p->is.dport;
	f->ifindex = ctx->ifindex;
	f->l4_protocol = p->protocol;
	if (bpf_fib_lookup(ctx, f, sizeof(*f), 0) != BPF_FIB_LKUP_RET_SUCCESS || f->ifindex == ctx->ifindex)
		return TCX_NEXT;
	if (leaves_by && leaves_by != f->ifindex && !p->answer)
		return TCX_NEXT; // it was masqueraded for another interface
	struct device *out = bpf_map_lookup_elem(&devices, &f->ifindex);
	if (!out || (in->strict && !from_there(ctx, p)) || !rewrite(ctx, p))
		return TCX_NEXT;

	__u32 timeout = udp_timeout;
	if (p->protocol == IPPROTO_TCP)
		timeout = p->payload ? tcp_unacknowledged : tcp_timeout;
	bpf_ct_change_timeout(ct, timeout);
	__u64 *n = bpf_map_lookup_elem(&taken, &zero);
	if (n)
		*n += ctx->gso_segs ? ctx->gso_segs : 1;
	if (out->direct) {
		void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
		struct ethhdr *eth = data;
		if ((void *)(eth + 1) <= end) {
			__builtin_memcpy(eth->h_dest, f->dmac, ETH_ALEN);
			__builtin_memcpy(eth->h_source, f->smac, ETH_ALEN);
		}
		return bpf_redirect_peer(f->ifindex, 0);
	}
	struct bpf_redir_neigh next = { .nh_family = f->family };
	if (f->family == AF_INET)
		next.ipv4_nh = f->ipv4_dst;
	else
		__builtin_memcpy(next.ipv6_nh, f->ipv6_dst, sizeof(next.ipv6_nh));
	return bpf_redirect_neigh(f->ifindex, &next, sizeof(next), 0);
}

SEC("tcx/ingress")
int established(struct __sk_buff *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct packet p = {};
	struct bpf_sock_tuple tuple = {};
	struct bpf_fib_lookup f = {};
	struct bpf_ct_opts___first opts = { .netns_id = BPF_F_CURRENT_NETNS };
	__u32 key = ctx->ifindex, tuple_size, length;
	void *l4;

	if (ctx->pkt_type != PACKET_HOST || ctx->vlan_present || ctx->mark)
		return TCX_NEXT;
	if (ctx->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) + sizeof(struct udphdr) > end || ip->version != 4 || ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff) || ip->ttl <= 1)
			return TCX_NEXT;
		p.is4 = true;
		p.protocol = ip->protocol;
		p.was.src[0] = tuple.ipv4.saddr = ip->saddr;
		p.was.dst[0] = tuple.ipv4.daddr = ip->daddr;
		f.tos = ip->tos;
		length = bpf_ntohs(ip->tot_len);
		if (!length && ctx->gso_size)
			length = ctx->len - sizeof(*eth); // more than the header can say
		p.header = sizeof(*ip);
		tuple_size = sizeof(tuple.ipv4);
		l4 = ip + 1;
	} else if (ctx->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);
		if ((void *)(ip + 1) + sizeof(struct udphdr) > end || ip->version != 6 || ip->hop_limit <= 1)
			return TCX_NEXT;
		p.protocol = ip->nexthdr;
		for (int i = 0; i < 4; i++) {
			p.was.src[i] = tuple.ipv6.saddr[i] = ip->saddr.in6_u.u6_addr32[i];
			p.was.dst[i] = tuple.ipv6.daddr[i] = ip->daddr.in6_u.u6_addr32[i];
		}
		f.flowinfo = *(__be32 *)ip & FLOWINFO;
		length = bpf_ntohs(ip->payload_len);
		if (!length)
			return TCX_NEXT; // a jumbogram
		length += sizeof(*ip);
		p.header = sizeof(*ip);
		tuple_size = sizeof(tuple.ipv6);
		l4 = ip + 1;
	} else {
		return TCX_NEXT;
	}
	if (length > ctx->len - sizeof(*eth))
		return TCX_NEXT;
	if (p.protocol == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;
		if ((void *)(tcp + 1) > end || tcp->doff < 5 || tcp->syn || tcp->fin || tcp->rst || !tcp->ack)
			return TCX_NEXT;
		p.header += tcp->doff * 4;
		p.payload = length > p.header;
		p.was.sport = tcp->source;
		p.was.dport = tcp->dest;
	} else if (p.protocol == IPPROTO_UDP) {
		struct udphdr *udp = l4;
		p.header += sizeof(*udp);
		p.was.sport = udp->source;
		p.was.dport = udp->dest;
	} else {
		return TCX_NEXT;
	}
	if (length < p.header)
		return TCX_NEXT;
	f.tot_len = ctx->gso_size ? p.header + ctx->gso_size : length;
	if (tuple_size == sizeof(tuple.ipv4)) {
		tuple.ipv4.sport = p.was.sport;
		tuple.ipv4.dport = p.was.dport;
	} else {
		tuple.ipv6.sport = p.was.sport;
		tuple.ipv6.dport = p.was.dport;
	}
	if (paused_until && bpf_ktime_get_ns() < paused_until)
		return TCX_NEXT;
	struct device *in = bpf_map_lookup_elem(&devices, &key);
	if (!in)
		return TCX_NEXT;
	opts.l4proto = p.protocol;
	struct nf_conn *ct = bpf_skb_ct_lookup(ctx, &tuple, tuple_size, &opts, sizeof(opts));
	if (!ct)
		return TCX_NEXT;
	p.answer = opts.dir;
	if (p.answer)
		MIRROR(&p, ct->tuplehash[0].tuple);
	else
		MIRROR(&p, ct->tuplehash[1].tuple);
	int verdict = forward(ctx, &p, ct, &f, in);
	bpf_ct_release(ct);
	return verdict;
}
