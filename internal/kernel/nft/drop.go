package nft

import (
	"context"
	"fmt"
)

// Drop deletes a table, if there is one, while packets go by. Those that were on their way when it
// is called first pass whatever serves in the table's place by now; then packets no longer enter
// the table; and when none is in it any more, it goes: a packet in one of its chains would still
// see the rules, but the current elements of sets, which are none.
func (s *Socket) Drop(ctx context.Context, table string) error {
	if there, err := s.ReadFlags(ctx, table); err != nil || there == nil {
		return err
	}
	AwaitPackets()
	if err := s.Shut(ctx, table); err != nil {
		return err
	}
	AwaitPackets()
	b := s.batch(table)
	b.DeleteTable()
	_, err := b.Send(s)
	return err
}

// Shut deletes the base chains of a table, so that packets no longer enter it.
func (s *Socket) Shut(ctx context.Context, table string) error {
	entries, err := s.Entries(ctx, table)
	if err != nil {
		return err
	}
	b := s.batch(table)
	for _, name := range entries {
		b.DeleteRules(&b.Before, name)
		b.DeleteChain(&b.Before, name)
	}
	_, err = b.Send(s)
	return err
}

// Entries are the base chains of a table; none if there is no table.
func (s *Socket) Entries(ctx context.Context, table string) (names []string, err error) {
	err = Uninterrupted(func() error {
		names = nil
		return s.ReadChains(ctx, table, func(name string, hook *Hook) {
			if hook != nil {
				names = append(names, name)
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list chains of table %s: %w", table, err)
	}
	return names, nil
}

func (s *Socket) batch(table string) *Batch {
	b := NewBatch(table)
	b.Family = s.Family
	return b
}
