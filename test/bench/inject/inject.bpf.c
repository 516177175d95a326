// SPDX-License-Identifier: Apache-2.0
//go:build ignore

// XDP programs: `inject` turns live frames (BPF_F_TEST_XDP_LIVE_FRAMES)
// into segments or datagrams, of flows that never existed before or of a few in turns;
// `count` counts and drops what arrives at the backends. `sink` does so as packets leave.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Apache-2.0";

// A flow's number gives its source: 2^15 ports from 1024 on, then the next address.
#define PORTS_SHIFT 15
#define FIRST_PORT 1024

// What to send; addresses and ports in host byte order.
volatile __u8 dst_mac[ETH_ALEN];
volatile __u32 src_base;   // address of flow 0
volatile __u32 src_mask;   // bits of the address that are drawn for each packet; 0: address after address
volatile __u32 flow_mask;  // flow numbers start again where their bits end
volatile __u8 protocol;    // IPPROTO_TCP: segments; IPPROTO_UDP: datagrams of twelve bytes
volatile __u8 tcp_flags;   // of the segments
volatile __u32 seq;        // their numbers, counted from the flow's own
volatile __u32 ack;
volatile __u8 answer;      // they go from the target to the flow's source
volatile __u32 dst_base;   // address of target 0; target i is i addresses on
volatile __u32 dst_first;  // the first target to hit
volatile __u32 dst_count;  // how many targets from dst_first on
volatile __u32 dst_stride; // step from flow to flow, coprime with dst_count
volatile __u16 dst_port;

// Progress: flows are numbered from next; nothing is sent from until on.
volatile __u32 next;
volatile __u32 until;
volatile __u64 first_ns; // when the first flow of this run was made
volatile __u64 last_ns;  // when the last was

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return bpf_htons(~sum & 0xffff);
}

// scatter spreads numbers over all bits, and no two to one (the finalizer of MurmurHash3).
static __always_inline __u32 scatter(__u32 n)
{
	n ^= n >> 16;
	n *= 0x85ebca6b;
	n ^= n >> 13;
	n *= 0xc2b2ae35;
	return n ^ n >> 16;
}

// The XDP program that the device had before, if it had one: each packet meets it.
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} before SEC(".maps");

static __always_inline int receive(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &before, 0);
	return XDP_PASS; // there is none
}

SEC("xdp")
int inject(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);
	struct tcphdr *tcp = (void *)(ip + 1); // longer than the other's header
	struct udphdr *udp = (void *)tcp;
	__u32 flow = next;

	if ((void *)(tcp + 1) > end || flow >= until || !dst_count)
		return XDP_DROP;
	next = flow + 1;
	if (!first_ns)
		first_ns = bpf_ktime_get_ns();
	if (flow + 1 == until)
		last_ns = bpf_ktime_get_ns();

	flow &= flow_mask;
	__u32 src = src_base + (flow >> PORTS_SHIFT);
	if (src_mask)
		src = src_base | (scatter(flow) & src_mask);
	__u32 dst = dst_base + dst_first + (__u32)((__u64)flow * dst_stride % dst_count);
	__u16 sport = FIRST_PORT + (flow & ((1 << PORTS_SHIFT) - 1));
	__u16 dport = dst_port;
	__u32 addrs = (src >> 16) + (src & 0xffff) + (dst >> 16) + (dst & 0xffff);
	if (answer) {
		__u32 source = src;
		__u16 port = sport;
		src = dst;
		dst = source;
		sport = dport;
		dport = port;
	}

	// The kernel recycles a frame's page with whatever the stack left in it
	// (rewritten addresses, ports, TTL), so no field may be taken as still right.
	for (int i = 0; i < ETH_ALEN; i++) {
		eth->h_dest[i] = dst_mac[i];
		eth->h_source[i] = i == 0 ? 2 : i;
	}
	eth->h_proto = bpf_htons(ETH_P_IP);

	ip->version = 4;
	ip->ihl = 5;
	ip->tos = 0;
	ip->tot_len = bpf_htons(sizeof(*ip) + sizeof(*tcp)); // of datagrams too
	ip->id = 0;
	ip->frag_off = bpf_htons(0x4000);
	ip->ttl = 64;
	ip->protocol = protocol;
	ip->saddr = bpf_htonl(src);
	ip->daddr = bpf_htonl(dst);
	ip->check = fold(0x4500 + 40 + 0x4000 + (64 << 8) + protocol + addrs);

	__u32 *words = (void *)tcp;
	if (protocol == IPPROTO_UDP) {
		udp->source = bpf_htons(sport);
		udp->dest = bpf_htons(dport);
		udp->len = bpf_htons(sizeof(*tcp));
		udp->check = 0; // none
		words[2] = words[3] = words[4] = 0;
		return receive(ctx);
	}
	words[0] = bpf_htonl((__u32)sport << 16 | dport);
	__u32 sent = flow + seq, got = tcp_flags & 0x10 /* ACK */ ? flow + ack : 0;
	__u32 bits = 0x5000 | tcp_flags;     // five words
	words[1] = bpf_htonl(sent);
	words[2] = bpf_htonl(got);
	words[3] = bpf_htonl(bits << 16 | 0xffff); // window
	words[4] = 0;                        // checksum, urgent pointer
	tcp->check = fold(addrs + IPPROTO_TCP + 20 + sport + dport + (sent >> 16) + (sent & 0xffff) +
			  (got >> 16) + (got & 0xffff) + bits + 0xffff);
	return receive(ctx);
}

// What counts as a backend's address; host byte order.
volatile __u32 backend_net;
volatile __u32 backend_mask;

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2); // 0: to a backend, 1: to anything else
	__type(key, __u32);
	__type(value, __u64);
} arrived SEC(".maps");

SEC("xdp")
int count(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return XDP_PASS; // neighbour discovery goes on
	__u32 slot = (bpf_ntohl(ip->daddr) & backend_mask) != backend_net;
	__u64 *n = bpf_map_lookup_elem(&arrived, &slot);
	if (n)
		(*n)++;
	return XDP_DROP;
}

// On a device by which packets leave: none does.
SEC("tc")
int sink(struct __sk_buff *skb)
{
	__u32 slot = skb->protocol != bpf_htons(ETH_P_IP);
	__u64 *n = bpf_map_lookup_elem(&arrived, &slot);

	if (slot)
		return -1; // TCX_NEXT: neighbour discovery goes on
	if (n)
		(*n)++;
	return 2; // TCX_DROP
}

// An XDP program on the receiving device gives it the receive queue that live
// frames are accounted to.
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}
