package nfttest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/test/netns"
)

// Hooks sees what is taken from the kernel's hooks in a namespace: each time, the kernel drops all
// packets that wait in queues there. Where it has queues, some packets of another program's wait in
// one.
type Hooks struct {
	monitor int
	dormant map[string]bool // tables
	based   map[string]bool // base chains
	queue   int             // of which the packets are not read; -1: there is none
	ns      *netns.NS
}

// waiting is how many packets wait.
const waiting = 3

// WatchHooks begins to look, before any table is there.
func WatchHooks(t *testing.T, ns *netns.NS) *Hooks {
	t.Helper()
	w := &Hooks{dormant: map[string]bool{}, based: map[string]bool{}, queue: -1, ns: ns}
	w.in(t, func() (err error) {
		if w.monitor, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		if err = unix.SetsockoptInt(w.monitor, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		return unix.Bind(w.monitor, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	})
	t.Cleanup(func() { _ = unix.Close(w.monitor) })
	// It asks for connections, as others do: connection tracking, too, leaves its hooks when nobody
	// does any more.
	const guard = "table inet guard { chain out { type filter hook output priority 200; ct state invalid drop; udp dport 7777 queue num 7; }; }"
	if out, err := ns.Run("nft", guard); err != nil {
		t.Logf("no packet waits: %s", bytes.SplitN(out, []byte("\n"), 2)[0])
		return w
	}
	w.in(t, w.bind)
	t.Cleanup(func() { _ = unix.Close(w.queue) })
	w.in(t, func() error {
		c, err := net.Dial("udp4", "127.0.0.1:7777")
		for i := 0; err == nil && i < waiting; i++ {
			_, err = c.Write([]byte("x"))
		}
		return err
	})
	w.counts(t, "at the start")
	return w
}

// bind takes the queue.
func (w *Hooks) bind() (err error) {
	if w.queue, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
		return err
	}
	if err := unix.Bind(w.queue, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	config := func(attr uint16, value []byte) error {
		const msgConfig = 3<<8 | 2 // NFNL_SUBSYS_QUEUE, NFQNL_MSG_CONFIG
		b := make([]byte, unix.SizeofNlMsghdr+4+4)
		binary.BigEndian.PutUint16(b[18:], 7) // the number of the queue
		binary.NativeEndian.PutUint16(b[20:], uint16(4+len(value)))
		binary.NativeEndian.PutUint16(b[22:], attr)
		b = append(b, value...)
		b = append(b, make([]byte, -len(b)&3)...)
		binary.NativeEndian.PutUint32(b, uint32(len(b)))
		binary.NativeEndian.PutUint16(b[4:], msgConfig)
		binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
		if err := unix.Sendto(w.queue, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		answer := make([]byte, 1024)
		n, _, err := unix.Recvfrom(w.queue, answer, 0)
		if err == nil && n >= 20 {
			if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
				return unix.Errno(-code)
			}
		}
		return err
	}
	if err := config(1, []byte{1, 0, 0, 0}); err != nil { // NFQA_CFG_CMD: bind
		return err
	}
	return config(2, []byte{0, 0, 0, 64, 2}) // NFQA_CFG_PARAMS: 64 bytes of each packet
}

// counts reports packets that no longer wait.
func (w *Hooks) counts(t *testing.T, when string) {
	t.Helper()
	if w.queue < 0 {
		return
	}
	var list []byte
	w.in(t, func() (err error) {
		list, err = os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
		return err
	})
	if f := strings.Fields(string(list)); len(f) < 3 || f[0] != "7" || f[2] != fmt.Sprint(waiting) {
		t.Fatalf("%s: not %d packets wait: %s", when, waiting, list)
	}
}

// Intact reports what was taken from hooks since it was last asked, of which nothing was to go.
func (w *Hooks) Intact(t *testing.T, when string) {
	t.Helper()
	if gone := w.Gone(t); len(gone) > 0 {
		t.Errorf("%s: %v left their hooks", when, gone)
	}
	w.counts(t, when)
}

// Gone are the base chains and flowtables that were deleted since it was last asked.
func (w *Hooks) Gone(t *testing.T) (names []string) {
	t.Helper()
	b := make([]byte, 1<<20)
	for {
		n, _, err := unix.Recvfrom(w.monitor, b, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		nft.EachMessage(b[:n], func(typ uint16, _ uint32, body []byte) {
			const ofTable = unix.NFTA_TABLE_NAME // and of all others
			table := attr.Text(attr.Find(body, ofTable))
			chain := table + " " + attr.Text(attr.Find(body, unix.NFTA_CHAIN_NAME))
			switch {
			case typ == unix.NFT_MSG_NEWTABLE:
				flags := attr.Find(body, unix.NFTA_TABLE_FLAGS)
				w.dormant[table] = flags[3]&nft.FlagDormant != 0
			case w.dormant[table]:
			case typ == unix.NFT_MSG_NEWCHAIN && attr.Find(body, unix.NFTA_CHAIN_HOOK) != nil:
				w.based[chain] = true
			case typ == unix.NFT_MSG_DELCHAIN && w.based[chain]:
				names = append(names, chain)
			case typ == unix.NFT_MSG_DELFLOWTABLE:
				names = append(names, table+" flowtable")
			}
		})
	}
}

func (w *Hooks) in(t *testing.T, f func() error) {
	t.Helper()
	if err := w.ns.Do(f); err != nil {
		t.Fatal(err)
	}
}
