package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// read returns what the kernel holds of ours but for the elements, or nil if there is no table.
func (d *Driver) read(ctx context.Context) (*found, error) {
	have := &found{chains: map[string]bool{}, rules: map[string]int{}, counters: map[string]bool{}, sets: map[string]setDef{}, notes: map[uint32]string{}}
	if err := d.readTable(ctx, TableName, have); errors.Is(err, unix.ENOENT) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := d.countRules(ctx, have.rules); err != nil {
		return nil, fmt.Errorf("count rules: %w", err)
	}
	err := d.sock.get(ctx, unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_INET, nil, func(b []byte) {
		if cString(findAttr(b, unix.NFTA_CHAIN_TABLE)) == TableName {
			have.chains[cString(findAttr(b, unix.NFTA_CHAIN_NAME))] = true
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	err = d.sock.get(ctx, unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, unix.NFPROTO_INET, inTable(unix.NFTA_SET_TABLE), func(b []byte) {
		name := cString(findAttr(b, unix.NFTA_SET_NAME))
		have.sets[name] = setDef{
			keyType: beUint32(findAttr(b, unix.NFTA_SET_KEY_TYPE)), keyLen: beUint32(findAttr(b, unix.NFTA_SET_KEY_LEN)),
			dataType: beUint32(findAttr(b, unix.NFTA_SET_DATA_TYPE)), dataLen: beUint32(findAttr(b, unix.NFTA_SET_DATA_LEN)),
			flags: beUint32(findAttr(b, unix.NFTA_SET_FLAGS)),
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	err = d.sock.get(ctx, unix.NFT_MSG_GETOBJ, unix.NLM_F_DUMP, unix.NFPROTO_INET, inTable(unix.NFTA_OBJ_TABLE), func(b []byte) {
		have.counters[cString(findAttr(b, unix.NFTA_OBJ_NAME))] = true
	})
	if err != nil {
		return nil, fmt.Errorf("list counters: %w", err)
	}
	if _, ok := have.sets[d.prog.notes.name]; ok {
		err = readSet(ctx, d.sock, d.prog.notes, func(e element) {
			have.notes[nativeUint32(e.key[:4])] = e.comment
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read notes: %w", err)
	}
	return have, nil
}

func (d *Driver) readTable(ctx context.Context, table string, have *found) error {
	var name attrs
	name.str(unix.NFTA_TABLE_NAME, table)
	return d.sock.get(ctx, unix.NFT_MSG_GETTABLE, 0, unix.NFPROTO_INET, name.b, func(b []byte) {
		have.flags = beUint32(findAttr(b, unix.NFTA_TABLE_FLAGS))
		have.owner = beUint32(findAttr(b, tableAttrOwner))
	})
}

func inTable(typ uint16) []byte {
	var a attrs
	a.str(typ, TableName)
	return a.b
}

// countRules counts the rules of each chain.
func (d *Driver) countRules(ctx context.Context, counts map[string]int) error {
	clear(counts)
	return d.sock.get(ctx, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFPROTO_INET, inTable(unix.NFTA_RULE_TABLE), func(b []byte) {
		counts[cString(findAttr(b, unix.NFTA_RULE_CHAIN))]++
	})
}

// content is all that the kernel holds in the set.
func (d *Driver) content(ctx context.Context, s *set) (map[elementKey]element, error) {
	elements := map[elementKey]element{}
	err := readSet(ctx, d.sock, s, func(e element) { elements[e.elementKey] = e })
	return elements, err
}

// readSet yields each element that the kernel holds in the set.
func readSet(ctx context.Context, sock *socket, s *set, f func(element)) error {
	return readTableSet(ctx, sock, TableName, s, f)
}

func readTableSet(ctx context.Context, sock *socket, table string, s *set, f func(element)) error {
	var a attrs
	a.str(unix.NFTA_SET_ELEM_LIST_TABLE, table)
	a.str(unix.NFTA_SET_ELEM_LIST_SET, s.name)
	return sock.get(ctx, unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, unix.NFPROTO_INET, a.b, func(b []byte) {
		eachAttr(findAttr(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, v []byte) bool {
			f(readElement(s, v))
			return true
		})
	})
}

// generation is the number of the kernel's last nftables transaction in this namespace.
func (d *Driver) generation(ctx context.Context) (gen uint32, err error) {
	err = d.sock.get(ctx, unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(b []byte) {
		gen = beUint32(findAttr(b, unix.NFTA_GEN_ID))
	})
	if err != nil {
		return 0, fmt.Errorf("read nftables generation: %w", err)
	}
	return gen, nil
}

// doubtInterval is how long after the last adoption a doubt is reason for another.
const doubtInterval = time.Minute

// Tampered implements driver.Driver. A table with an owner cannot be touched by
// others. Otherwise the generation tells of a transaction of any program; then the
// rules are counted. What changed within the sets cannot be told so cheaply: it may be reason for an adoption once a minute.
func (d *Driver) Tampered(ctx context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owned || d.state == nil {
		return false, nil
	}
	gen, err := d.generation(ctx)
	if err != nil {
		return false, err
	}
	if gen != d.gen {
		counts := map[string]int{}
		err = d.countRules(ctx, counts)
		if errors.Is(err, errInterrupted) {
			return false, nil // asked again soon
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return false, fmt.Errorf("count rules: %w", err)
		}
		if sumOf(counts) != d.rules() {
			return true, nil
		}
		d.gen, d.doubt = gen, true
	}
	return d.doubt && time.Since(d.looked) >= doubtInterval, nil
}

func sumOf(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// rules is the number of rules that the table should have.
func (d *Driver) rules() int {
	n := d.roster.ruleCount()
	for _, c := range d.prog.chains {
		n += len(c.rules)
	}
	return n
}

// Purge implements driver.Driver.
func (d *Driver) Purge(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, table := range []string{TableName, nextTable} {
		have := &found{}
		if err := d.readTable(ctx, table, have); errors.Is(err, unix.ENOENT) {
			continue
		} else if err != nil {
			return fmt.Errorf("read table inet %s: %w", table, err)
		}
		if err := d.claimTable(ctx, table, have); err != nil {
			return fmt.Errorf("delete table inet %s: %w", table, err)
		}
		d.state, d.adopted = nil, parts{}
		if err := d.drop(ctx, table); err != nil {
			return err
		}
	}
	return nil
}

// entries are a table's chains that packets enter by themselves.
func (d *Driver) entries(ctx context.Context, table string) (names []string, err error) {
	err = d.sock.get(ctx, unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_INET, nil, func(b []byte) {
		if cString(findAttr(b, unix.NFTA_CHAIN_TABLE)) == table && findAttr(b, unix.NFTA_CHAIN_HOOK) != nil {
			names = append(names, cString(findAttr(b, unix.NFTA_CHAIN_NAME)))
		}
	})
	return names, err
}
