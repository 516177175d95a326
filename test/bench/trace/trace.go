// Package trace counts the rules of tables of nftables that a packet meets, with the kernel's
// packet trace. The tables may be those of iptables-nft.
//
// The trace has the rules that matched and the ends of chains. The rules that did not match lie
// between those, so they are counted in the tables: in each chain, all up to the rule at which the
// packet left.
package trace

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/netns"
)

// Chain names a chain of one of the tables.
type Chain struct{ Table, Name string }

// String returns "table chain".
func (c Chain) String() string { return c.Table + " " + c.Name }

// Met says which rules one packet met, by base chain.
type Met struct {
	Rules map[Chain]int
	NAT   map[Chain]bool // the base chains that are of type nat
}

// Sum is the number of rules in all chains.
func (m Met) Sum() (n int) {
	for _, rules := range m.Rules {
		n += rules
	}
	return n
}

// Config says which packets to trace and where.
type Config struct {
	NS     *netns.NS
	Device string // packets that arrive there
	Match  string // what they match, in nft's syntax: "tcp dport 80"
	// Tables are those whose rules count, of a family: unix.NFPROTO_INET, or NFPROTO_IPV4 for those
	// of iptables-nft.
	Tables []string
	Family byte
}

// Packets traces matching packets while send runs. It returns what each packet met, in their order.
func Packets(ctx context.Context, c Config, send func() error) (met []Met, err error) {
	if err := c.mark(); err != nil {
		return nil, err
	}
	defer func() {
		_, uerr := c.NS.Run("nft", "delete table netdev trace")
		err = errors.Join(err, uerr)
	}()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: c.NS.Fd(), Groups: 1 << (unix.NFNLGRP_NFTRACE - 1)})
	if err != nil {
		return nil, fmt.Errorf("listen to traces in %s: %w", c.NS.Name, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if err := conn.SetReadBuffer(4 << 20); err != nil {
		return nil, fmt.Errorf("enlarge netlink buffer: %w", err)
	}
	rules, err := c.rules()
	if err != nil {
		return nil, err
	}
	nats, err := c.nats()
	if err != nil {
		return nil, err
	}
	if err := send(); err != nil {
		return nil, err
	}
	events, err := c.receive(ctx, conn)
	if err != nil {
		return nil, err
	}
	met, err = replay(rules, events)
	for i := range met {
		met[i].NAT = nats
	}
	return met, err
}

// mark makes the kernel trace packets before any other hook.
func (c Config) mark() error {
	_, err := c.NS.Run("nft", fmt.Sprintf("add table netdev trace; delete table netdev trace; add table netdev trace; "+
		"add chain netdev trace ingress { type filter hook ingress device %s priority -1000; }; "+
		"add rule netdev trace ingress %s meta nftrace set 1", c.Device, c.Match))
	if err != nil {
		return fmt.Errorf("trace packets: %w", err)
	}
	return nil
}

const subsystem = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES << 8)

// rules are the handles of the tables' rules, by chain and in their order.
func (c Config) rules() (map[Chain][]uint64, error) {
	rules := map[Chain][]uint64{}
	err := c.dump(unix.NFT_MSG_GETRULE, func(m netlink.Message) error {
		var chain Chain
		var handle uint64
		err := decode(m, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_RULE_TABLE:
				chain.Table = ad.String()
			case unix.NFTA_RULE_CHAIN:
				chain.Name = ad.String()
			case unix.NFTA_RULE_HANDLE:
				handle = ad.Uint64()
			}
		})
		rules[chain] = append(rules[chain], handle)
		return err
	})
	return rules, err
}

// nats are the tables' base chains of type nat.
func (c Config) nats() (map[Chain]bool, error) {
	nats := map[Chain]bool{}
	err := c.dump(unix.NFT_MSG_GETCHAIN, func(m netlink.Message) error {
		var chain Chain
		var kind string
		err := decode(m, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_CHAIN_TABLE:
				chain.Table = ad.String()
			case unix.NFTA_CHAIN_NAME:
				chain.Name = ad.String()
			case unix.NFTA_CHAIN_TYPE:
				kind = ad.String()
			}
		})
		if kind == "nat" {
			nats[chain] = true
		}
		return err
	})
	return nats, err
}

// dump requests all objects of a kind in the family.
func (c Config) dump(kind netlink.HeaderType, f func(netlink.Message) error) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: c.NS.Fd()})
	if err != nil {
		return fmt.Errorf("read tables in %s: %w", c.NS.Name, err)
	}
	defer func() { _ = conn.Close() }() // everything has been read, or an error is returned
	msgs, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: subsystem | kind, Flags: netlink.Request | netlink.Dump},
		Data:   []byte{c.Family, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return fmt.Errorf("read tables in %s: %w", c.NS.Name, err)
	}
	for _, m := range msgs {
		if err := f(m); err != nil {
			return err
		}
	}
	return nil
}

// decode walks the attributes of an nftables message.
func decode(m netlink.Message, f func(*netlink.AttributeDecoder)) error {
	const header = 4 // struct nfgenmsg
	if len(m.Data) < header {
		return errors.New("read nftables message: too short")
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return fmt.Errorf("read nftables message: %w", err)
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}

// quiet is how long without events a trace counts as complete.
const quiet = 200 * time.Millisecond

// receive reads the tables' events until none has come for a while; the first may take a second.
func (c Config) receive(ctx context.Context, conn *netlink.Conn) ([]event, error) {
	var events []event
	for wait := time.Second; ; wait = quiet {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return nil, fmt.Errorf("wait for traces: %w", err)
		}
		msgs, err := conn.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return events, nil
		}
		if err != nil {
			return nil, fmt.Errorf("receive traces: %w", err)
		}
		for _, m := range msgs {
			if m.Header.Type != subsystem|unix.NFT_MSG_TRACE {
				continue
			}
			e, err := readEvent(m)
			if err != nil {
				return nil, err
			}
			if slices.Contains(c.Tables, e.chain.Table) {
				events = append(events, e)
			}
		}
	}
}
