package conntrack

import (
	"context"
	"fmt"
	"slices"

	"github.com/mdlayher/netlink"

	"sluice.dev/sluice/internal/kernel/attr"
	"sluice.dev/sluice/internal/model"
)

// liberal is IP_CT_TCP_FLAG_BE_LIBERAL: segments of the direction are taken whatever their numbers.
const liberal = 0x08

// Tolerate has segments of all connections of TCP that there are be taken whatever their numbers,
// as long as the connections last. After an error it may have reached only some.
func (c *Conn) Tolerate(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var updates []netlink.Message
	err := c.dump(ctx, []netlink.Message{dumpAll(0)}, func(f *Flow) {
		if f.Protocol == model.TCP {
			updates = append(updates, tolerateFlow(f))
		}
	})
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(updates, deleteBatch) {
		if _, _, err := c.send(batch); err != nil {
			return fmt.Errorf("have connections be tolerated: %w", err)
		}
	}
	return nil
}

func tolerateFlow(f *Flow) netlink.Message {
	return message(msgNew, 0, f.Family, func(a *attr.Attrs) {
		putTuple(a, ctaTupleReply, f.Reply, f.Protocol, wholeTuple)
		info := a.Begin(ctaProtoInfo)
		tcp := a.Begin(ctaProtoInfoTCP)
		for d := range uint16(2) {
			a.Bytes(ctaTCPFlags+d, []byte{liberal, liberal}) // flags, and which count
		}
		a.End(tcp)
		a.End(info)
	})
}
