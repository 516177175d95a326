// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//go:build ignore

// Services at the socket: a socket that connects or sends to a service gets an endpoint's address
// right away, so that its packets are translated nowhere. What has no entry here keeps its address,
// and nftables translates its packets.

#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// The kernel gives some functions to programs under the GPL alone.
char _license[] SEC("license") = "GPL v2";

#define PF_KTHREAD 0x00200000

// An address and port, in network byte order; IPv4 as IPv6's ::ffff:0:0/96.
struct endpoint {
	__be32 ip[4];
	__be16 port;
	__u16 protocol;
};

struct frontend {
	__u32 id;    // no two have the same
	__u32 slots; // numbered from 0; never 0
};

// Slots come in pages: to write an element takes as long whatever is in it. Places that are no
// slots are zero.
#define PER_PAGE 4

struct page {
	__u32 frontend;
	__u32 number;
};

struct endpoints {
	struct endpoint at[PER_PAGE];
};

struct serving {
	__u32 frontend;
	struct endpoint at;
};

// What a socket asked for, and what it got.
struct translation {
	__u32 frontend;
	struct endpoint service, backend;
};

// How many services one socket can send to without being connected; to others it goes untranslated.
#define ASKED 4

struct asked {
	struct translation of[ASKED];
};

#define KEEP(kind, name, k, v, n)                                                                  \
	struct {                                                                                   \
		__uint(type, kind);                                                                \
		__uint(map_flags, BPF_F_NO_PREALLOC);                                              \
		__uint(max_entries, n);                                                            \
		__type(key, k);                                                                    \
		__type(value, v);                                                                  \
		__uint(pinning, LIBBPF_PIN_BY_NAME);                                               \
	} name SEC(".maps")

// Whose sockets are served: by the cookie of the network namespace.
KEEP(BPF_MAP_TYPE_HASH, namespaces, __u64, __u8, 4096);
KEEP(BPF_MAP_TYPE_HASH, frontends, struct endpoint, struct frontend, 1 << 18);
KEEP(BPF_MAP_TYPE_HASH, slots, struct page, struct endpoints, 1 << 19);
// Endpoints of UDP to which datagrams may go on that went there before.
KEEP(BPF_MAP_TYPE_HASH, servings, struct serving, __u8, 1 << 18);
// By the socket's cookie, until it is closed. (Storage of the socket itself takes three times as long
// to make and to free: a fortieth of what a connection costs.)
KEEP(BPF_MAP_TYPE_HASH, connected, __u64, struct translation, 1 << 18);
KEEP(BPF_MAP_TYPE_SK_STORAGE, unconnected, int, struct asked, 0);

struct upid {
	int nr;
} __attribute__((preserve_access_index));

struct pid {
	unsigned int level;
	struct upid numbers[1];
} __attribute__((preserve_access_index));

struct task_struct {
	unsigned int flags;
	struct task_struct *group_leader;
	struct pid *thread_pid;
} __attribute__((preserve_access_index));

struct sock {
	__u8 sk_kern_sock : 1;
} __attribute__((preserve_access_index));

// Connections for which there was no room here.
__u64 refused;

static __always_inline bool same(const struct endpoint *a, const struct endpoint *b)
{
	return a->ip[3] == b->ip[3] && a->port == b->port && a->ip[2] == b->ip[2] && a->ip[1] == b->ip[1] &&
	       a->ip[0] == b->ip[0] && a->protocol == b->protocol;
}

static __always_inline void at4(struct bpf_sock_addr *ctx, struct endpoint *e)
{
	*e = (struct endpoint){ .ip = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 }, .port = ctx->user_port, .protocol = ctx->protocol };
}

static __always_inline void at6(struct bpf_sock_addr *ctx, struct endpoint *e)
{
	*e = (struct endpoint){ .ip = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] },
				.port = ctx->user_port,
				.protocol = ctx->protocol };
}

static __always_inline void set4(struct bpf_sock_addr *ctx, const struct endpoint *e)
{
	ctx->user_ip4 = e->ip[3];
	ctx->user_port = e->port;
}

static __always_inline void set6(struct bpf_sock_addr *ctx, const struct endpoint *e)
{
	ctx->user_ip6[0] = e->ip[0];
	ctx->user_ip6[1] = e->ip[1];
	ctx->user_ip6[2] = e->ip[2];
	ctx->user_ip6[3] = e->ip[3];
	ctx->user_port = e->port;
}

// ofKernel reports whether the socket is the kernel's own, as that of a network file system or of a
// path of MPTCP: its address would change for good, and nobody tells when it is closed.
static __always_inline bool ofKernel(struct bpf_sock_addr *ctx)
{
	if (bpf_get_current_task_btf()->flags & PF_KTHREAD)
		return true;
	if (ctx->protocol != IPPROTO_TCP)
		return false;
	struct sock *sk = (struct sock *)bpf_skc_to_tcp_sock(ctx->sk);
	return sk && BPF_CORE_READ_BITFIELD(sk, sk_kern_sock);
}

// still tells whether what was copied of an element is what the map has under the key. The kernel
// uses elements again at once, so what was found may have become another key's before it was copied.
#define still(map, key, element)                                                                   \
	({                                                                                         \
		barrier();                                                                         \
		bpf_map_lookup_elem(map, key) == (element);                                        \
	})

// asks finds what the socket asks for; false: nothing that is served here.
static __always_inline bool asks(struct bpf_sock_addr *ctx, const struct endpoint *e, struct frontend *f)
{
	__u64 namespace = bpf_get_netns_cookie(ctx);

	if (!bpf_map_lookup_elem(&namespaces, &namespace))
		return false;
	struct frontend *found = bpf_map_lookup_elem(&frontends, e);
	if (!found)
		return false;
	*f = *found;
	return still(&frontends, e, found) && !ofKernel(ctx);
}

// choose finds one of a frontend's endpoints; false in the midst of a change.
static __always_inline bool choose(const struct frontend *f, struct endpoint *to)
{
	if (!f->slots)
		return false;
	__u32 slot = bpf_get_prandom_u32() % f->slots;
	struct page p = { f->id, slot / PER_PAGE };
	struct endpoints *found = bpf_map_lookup_elem(&slots, &p);
	if (!found)
		return false;
	*to = found->at[slot % PER_PAGE];
	return to->port && still(&slots, &p, found);
}

// connect has e be the endpoint that the socket gets; false: it keeps what it asked for.
static __always_inline bool connect(struct bpf_sock_addr *ctx, struct endpoint *e)
{
	struct frontend f;
	struct translation t = { .service = *e };
	__u64 cookie = bpf_get_socket_cookie(ctx);

	if (!asks(ctx, e, &f) || !choose(&f, &t.backend)) {
		bpf_map_delete_elem(&connected, &cookie); // what it was connected to before
		return false;
	}
	t.frontend = f.id;
	if (bpf_map_update_elem(&connected, &cookie, &t, BPF_ANY)) {
		__sync_fetch_and_add(&refused, 1);
		return false;
	}
	*e = t.backend;
	return true;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	struct endpoint e;

	at4(ctx, &e);
	if (connect(ctx, &e))
		set4(ctx, &e);
	return 1;
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct endpoint e;

	at6(ctx, &e);
	if (connect(ctx, &e))
		set6(ctx, &e);
	return 1;
}

static __always_inline bool serves(const struct translation *t)
{
	struct serving s = { t->frontend, t->backend };

	return bpf_map_lookup_elem(&servings, &s);
}

// forget has answers of an endpoint come from itself that the socket asks by its own address now.
static __always_inline void forget(struct bpf_sock_addr *ctx, const struct endpoint *e)
{
	struct asked *a = bpf_sk_storage_get(&unconnected, ctx->sk, NULL, 0);

	if (!a)
		return;
#pragma unroll
	for (int i = 0; i < ASKED; i++)
		if (same(&a->of[i].backend, e))
			__builtin_memset(&a->of[i], 0, sizeof(a->of[i]));
}

// send is connect for a datagram of a socket that is not connected: all that it sends to a service
// goes to one endpoint while that serves.
static __always_inline bool send(struct bpf_sock_addr *ctx, struct endpoint *e)
{
	struct frontend f;
	struct translation *t = NULL;

	if (!asks(ctx, e, &f)) {
		forget(ctx, e);
		return false;
	}
	__u64 cookie = bpf_get_socket_cookie(ctx);
	t = bpf_map_lookup_elem(&connected, &cookie);
	if (t && same(&t->service, e)) { // answers from elsewhere would not reach it
		*e = t->backend;
		return true;
	}
	t = NULL;
	struct asked *a = bpf_sk_storage_get(&unconnected, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!a)
		return false;
#pragma unroll
	for (int i = 0; i < ASKED; i++) {
		if (same(&a->of[i].service, e)) {
			t = &a->of[i];
			break;
		}
		if (!t && !a->of[i].service.protocol)
			t = &a->of[i];
	}
	if (!t)
		return false;
	if (t->frontend != f.id || !serves(t)) {
		struct endpoint to;
		if (!choose(&f, &to))
			return false;
		t->frontend = f.id;
		t->service = *e;
		t->backend = to;
	}
	*e = t->backend;
	return true;
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	struct endpoint e;

	at4(ctx, &e);
	if (send(ctx, &e))
		set4(ctx, &e);
	return 1;
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	struct endpoint e;

	at6(ctx, &e);
	if (send(ctx, &e))
		set6(ctx, &e);
	return 1;
}

// named has e, where the socket's peer is, be what the socket asked for.
static __always_inline bool named(struct bpf_sock_addr *ctx, struct endpoint *e)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct translation *t = bpf_map_lookup_elem(&connected, &cookie);

	if (!t || !same(&t->backend, e))
		return false;
	*e = t->service;
	return true;
}

// received is named for a datagram that the socket receives.
static __always_inline bool received(struct bpf_sock_addr *ctx, struct endpoint *e)
{
	struct asked *a = bpf_sk_storage_get(&unconnected, ctx->sk, NULL, 0);

	if (!a)
		return named(ctx, e);
#pragma unroll
	for (int i = 0; i < ASKED; i++) {
		if (same(&a->of[i].backend, e)) {
			*e = a->of[i].service;
			return true;
		}
	}
	return named(ctx, e);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	struct endpoint e;

	at4(ctx, &e);
	if (received(ctx, &e))
		set4(ctx, &e);
	return 1;
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	struct endpoint e;

	at6(ctx, &e);
	if (received(ctx, &e))
		set6(ctx, &e);
	return 1;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	struct endpoint e;

	at4(ctx, &e);
	if (named(ctx, &e))
		set4(ctx, &e);
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	struct endpoint e;

	at6(ctx, &e);
	if (named(ctx, &e))
		set6(ctx, &e);
	return 1;
}

SEC("cgroup/sock_release")
int release(struct bpf_sock *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);

	bpf_map_delete_elem(&connected, &cookie);
	return 1;
}

// What the program below reads of the kernel; its BTF says where it is.
struct file;

struct socket {
	struct sock *sk;
} __attribute__((preserve_access_index));

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
} __attribute__((preserve_access_index));

// A socket that was translated, as user space reads it.
struct found {
	__u64 cookie;
	struct translation as;
	__u32 pid; // in the reader's process namespace
	__u32 fd;
	__u32 unused;
};

// numbered returns a process's number in the namespace of this one.
static __always_inline __u32 numbered(struct task_struct *task)
{
	__u32 level = bpf_get_current_task_btf()->thread_pid->level, nr = 0;
	struct pid *pid = task->group_leader->thread_pid;

	if (!pid || pid->level < level)
		return 0;
	void *at = (void *)pid + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid);
	bpf_probe_read_kernel(&nr, sizeof(nr), at + bpf_core_field_offset(struct upid, nr));
	return nr;
}

const struct found *unused __attribute__((unused)); // so that its type is in the object

// list yields the open files of all processes that are translated sockets.
SEC("iter/task_file")
int list(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;

	if (!task || !file)
		return 0;
	struct socket *socket = bpf_sock_from_file(file);
	if (!socket || !socket->sk)
		return 0;
	__u64 cookie = bpf_get_socket_cookie(socket->sk);
	struct translation *t = bpf_map_lookup_elem(&connected, &cookie);
	if (!t)
		return 0;
	struct found f = { .cookie = cookie, .as = *t, .pid = numbered(task), .fd = ctx->fd };
	bpf_seq_write(ctx->meta->seq, &f, sizeof(f));
	return 0;
}
