// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What is read of a packet. All else about it is left to the kernel.

#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct packet {
	struct ethhdr *eth;
	void *end;
	union {
		struct iphdr *ip4;
		struct ipv6hdr *ip6;
		void *ip;
	};
	bool is4;
	__u8 protocol;
	__u16 length;  // as the IP header says, with that
	__be16 *ports; // source and destination
	// The flow that it is of, as clients send it.
	struct {
		const __be32 *src, *dst;
		const __be16 *sport, *dport;
		__u8 protocol;
	} flow;
};

// How far a packet could be read: as it is of use to a stage, or not.
enum parsed { PARSED_NOTHING, PARSED_ADDRESSES, PARSED_PORTS };

static __always_inline enum parsed parse_ip4(struct packet *p)
{
	struct iphdr *ip = p->ip4;

	if ((void *)(ip + 1) > p->end || ip->version != 4)
		return PARSED_NOTHING;
	p->is4 = true;
	p->protocol = ip->protocol;
	p->length = bpf_ntohs(ip->tot_len);
	// With options, or a fragment, there may be other things where ports are.
	if (ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
		return PARSED_ADDRESSES;
	p->ports = (void *)(ip + 1);
	return PARSED_PORTS;
}

static __always_inline enum parsed parse_ip6(struct packet *p)
{
	struct ipv6hdr *ip = p->ip6;

	if ((void *)(ip + 1) > p->end || ip->version != 6)
		return PARSED_NOTHING;
	p->is4 = false;
	p->protocol = ip->nexthdr;
	p->length = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	p->ports = (void *)(ip + 1);
	return PARSED_PORTS;
}

static __always_inline bool same(const __be32 *a, const __be32 *b)
{
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

typedef __be32 __attribute__((may_alias)) word; // of whatever

static __always_inline __u32 add(__u32 sum, const word *words, int n)
{
#pragma unroll
	for (int i = 0; i < n; i++)
		sum += (words[i] >> 16) + (words[i] & 0xffff);
	return sum;
}

// pseudo is the checksum of the pseudo header alone. It stands in a packet whose checksum is left
// for a device to be completed, as in those that a machine has made itself.
static __always_inline __u16 pseudo(struct packet *p, __u16 length)
{
	__u32 sum = (__u32)bpf_htons(p->protocol) + bpf_htons(length);

	if (p->is4)
		sum = add(sum, &p->ip4->saddr, 2);
	else
		sum = add(sum, p->ip6->saddr.in6_u.u6_addr32, 8);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

#define SCTP_LENGTH 12
#define SCTP_CHECKSUM 8

// holds tells whether all of the packet is here, and so much of it behind the IP header.
static __always_inline bool holds(struct packet *p, __u32 header)
{
	__u32 before = p->is4 ? sizeof(*p->ip4) : sizeof(*p->ip6);

	// The verifier wants to see what is read by a number of its own.
	return p->length >= before + header && p->ip + p->length <= p->end && (void *)p->ports + header <= p->end;
}

// whole tells whether all of the transport protocol's header is here, and of the packet. Its flow is
// then known.
static __always_inline bool whole(struct packet *p)
{
	__u32 header;

	switch (p->protocol) {
	case IPPROTO_TCP:
		header = sizeof(struct tcphdr);
		break;
	case IPPROTO_UDP:
		header = sizeof(struct udphdr);
		break;
	case IPPROTO_SCTP:
		header = SCTP_LENGTH;
		break;
	default:
		return false;
	}
	if (!holds(p, header))
		return false;
	p->flow.src = p->is4 ? &p->ip4->saddr : p->ip6->saddr.in6_u.u6_addr32;
	p->flow.dst = p->is4 ? &p->ip4->daddr : p->ip6->daddr.in6_u.u6_addr32;
	p->flow.sport = &p->ports[0];
	p->flow.dport = &p->ports[1];
	p->flow.protocol = p->protocol;
	return true;
}

struct error4 {
	__u8 type, rest[7];
	struct iphdr ip;
	__be16 ports[2];
};

struct error6 {
	__u8 type, rest[7];
	struct ipv6hdr ip;
	__be16 ports[2];
};

// quotes tells whether it is an ICMP error about a packet that has its ports where those of most
// are. Its flow is then the one which that packet answers.
static __always_inline bool quotes(struct packet *p)
{
	struct error4 *e4 = (void *)p->ports;
	struct error6 *e6 = (void *)p->ports;

	if (p->is4) {
		if (p->protocol != IPPROTO_ICMP || !holds(p, sizeof(*e4)))
			return false;
		// RFC 792: unreachable, source quench, time exceeded, and parameter problem.
		if (e4->type != 3 && e4->type != 4 && e4->type != 11 && e4->type != 12)
			return false;
		if (e4->ip.version != 4 || e4->ip.ihl != 5 || e4->ip.frag_off & bpf_htons(0x1fff))
			return false;
		p->flow.src = &e4->ip.daddr;
		p->flow.dst = &e4->ip.saddr;
		p->flow.sport = &e4->ports[1];
		p->flow.dport = &e4->ports[0];
		p->flow.protocol = e4->ip.protocol;
		return true;
	}
	if (p->protocol != IPPROTO_ICMPV6 || !holds(p, sizeof(*e6)))
		return false;
	if (e6->type < 1 || e6->type > 4 || e6->ip.version != 6) // RFC 4443
		return false;
	p->flow.src = e6->ip.daddr.in6_u.u6_addr32;
	p->flow.dst = e6->ip.saddr.in6_u.u6_addr32;
	p->flow.sport = &e6->ports[1];
	p->flow.dport = &e6->ports[0];
	p->flow.protocol = e6->ip.nexthdr;
	return true;
}

// finished tells whether the checksum of a whole packet is complete: sent from here, it would keep
// what is in it.
static __always_inline bool finished(struct packet *p)
{
	__u16 length = p->length - (p->is4 ? sizeof(*p->ip4) : sizeof(*p->ip6));
	struct tcphdr *tcp = (void *)p->ports;
	struct udphdr *udp = (void *)p->ports;
	void *sctp = p->ports;

	switch (p->protocol) {
	case IPPROTO_TCP:
		return (void *)(tcp + 1) <= p->end && tcp->check != pseudo(p, length);
	case IPPROTO_UDP:
		return (void *)(udp + 1) <= p->end && udp->check != pseudo(p, length);
	case IPPROTO_SCTP: // it has no pseudo header
		return sctp + SCTP_LENGTH <= p->end && *(__u32 *)(sctp + SCTP_CHECKSUM);
	}
	return true; // no device writes that of an ICMP error
}

// parse reads the packet of a frame.
static __always_inline enum parsed parse(struct xdp_md *ctx, struct packet *p)
{
	p->eth = (void *)(long)ctx->data;
	p->end = (void *)(long)ctx->data_end;
	p->ip = p->eth + 1;
	if (p->ip > p->end)
		return PARSED_NOTHING;
	switch (p->eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		return parse_ip4(p);
	case bpf_htons(ETH_P_IPV6):
		return parse_ip6(p);
	}
	return PARSED_NOTHING;
}
