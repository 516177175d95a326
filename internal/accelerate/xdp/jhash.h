// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The hash that nftables chooses by (Bob Jenkins' lookup3), of words that come one by one: what is
// hashed depends on the farm.

#pragma once

#include <linux/types.h>

struct jhash {
	__u32 a, b, c;
	__u32 at;   // which of them the next word is added to
	__u32 left; // words
};

static __always_inline __u32 rol(__u32 word, int by) { return word << by | word >> (32 - by); }

static __always_inline void jhash_begin(struct jhash *h, __u32 words, __u32 seed)
{
	h->a = h->b = h->c = 0xdeadbeef + (words << 2) + seed;
	h->at = 0;
	h->left = words;
}

static __always_inline void jhash_add(struct jhash *h, __u32 word)
{
	switch (h->at) {
	case 0:
		h->a += word;
		break;
	case 1:
		h->b += word;
		break;
	default:
		h->c += word;
	}
	h->left--;
	if (h->at++ < 2)
		return;
	h->at = 0;
	if (!h->left)
		return; // the last words are mixed otherwise
	h->a -= h->c; h->a ^= rol(h->c, 4);  h->c += h->b;
	h->b -= h->a; h->b ^= rol(h->a, 6);  h->a += h->c;
	h->c -= h->b; h->c ^= rol(h->b, 8);  h->b += h->a;
	h->a -= h->c; h->a ^= rol(h->c, 16); h->c += h->b;
	h->b -= h->a; h->b ^= rol(h->a, 19); h->a += h->c;
	h->c -= h->b; h->c ^= rol(h->b, 4);  h->b += h->a;
}

static __always_inline __u32 jhash_end(struct jhash *h)
{
	h->c ^= h->b; h->c -= rol(h->b, 14);
	h->a ^= h->c; h->a -= rol(h->c, 11);
	h->b ^= h->a; h->b -= rol(h->a, 25);
	h->c ^= h->b; h->c -= rol(h->b, 16);
	h->a ^= h->c; h->a -= rol(h->c, 4);
	h->b ^= h->a; h->b -= rol(h->a, 14);
	h->c ^= h->b; h->c -= rol(h->b, 24);
	return h->c;
}
