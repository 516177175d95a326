package nftables

import (
	"golang.org/x/sys/unix"
)

// set is a named set or map of the program.
type set struct {
	id      uint32
	name    string
	comment string
	key     []field
	data    []field // of a map to values
	verdict bool    // a map to verdicts

	interval bool   // keys are ranges
	typeof   bool   // the key has parts that nft can only describe by an expression
	dynamic  bool   // filled by packets, with time-outs; its content is not ours to compare
	size     uint32 // the most elements; 0: no bound
	policy   bool   // of policy, not of services
}

// Constants of linux/netfilter/nf_tables.h that golang.org/x/sys lacks.
const (
	setFlagConcat     = 0x80
	setDescConcat     = 2
	setFieldLen       = 1
	setElemKeyEnd     = 10
	tableFlagOwner    = 0x2
	tableFlagPersist  = 0x4
	tableAttrOwner    = 7
	tableAttrUserdata = 6
	chainAttrUserdata = 12
	dynsetDelete      = 2 // NFT_DYNSET_OP_DELETE, Linux 5.4
	chainPolicyAccept = 1 // NF_ACCEPT
)

// nft's userdata types.
const (
	udataSetKeyByteOrder = 0
	udataSetKeyTypeof    = 3
	udataSetDataTypeof   = 4
	udataSetComment      = 7
	udataComment         = 0 // of tables, chains, rules and elements

	byteOrderHost = 1
	byteOrderBig  = 2
)

// verdictType is the datatype of verdicts in NFTA_SET_DATA_TYPE.
const verdictType = 0xffffff00

func keyLen(fields []field) (n int) {
	for _, f := range fields {
		n += 4 * f.registers()
	}
	return n
}

// magic is nft's number of the (concatenated) type.
func magic(fields []field) (m uint32) {
	for _, f := range fields {
		m = m<<6 | f.magic
	}
	return m
}

func (s *set) flags() (flags uint32) {
	if s.interval {
		flags |= unix.NFT_SET_INTERVAL
		if len(s.key) > 1 {
			flags |= setFlagConcat
		}
	}
	if s.verdict || s.data != nil {
		flags |= unix.NFT_SET_MAP
	}
	if s.dynamic {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	return flags
}

// ranges reports whether each element of the set is one end of an interval. The kernel refuses some orders in which
// single ends are deleted, so such a set is never changed but written anew.
func (s *set) ranges() bool { return s.interval && len(s.key) == 1 }

// write appends the attributes that create the set.
func (s *set) write(a *attrs, table string) {
	a.str(unix.NFTA_SET_TABLE, table)
	a.str(unix.NFTA_SET_NAME, s.name)
	a.u32(unix.NFTA_SET_FLAGS, s.flags())
	a.u32(unix.NFTA_SET_KEY_TYPE, magic(s.key))
	a.u32(unix.NFTA_SET_KEY_LEN, uint32(keyLen(s.key)))
	switch {
	case s.verdict:
		a.u32(unix.NFTA_SET_DATA_TYPE, verdictType)
		a.u32(unix.NFTA_SET_DATA_LEN, 16)
	case s.data != nil:
		a.u32(unix.NFTA_SET_DATA_TYPE, magic(s.data))
		a.u32(unix.NFTA_SET_DATA_LEN, uint32(keyLen(s.data)))
	}
	a.u32(unix.NFTA_SET_ID, s.id)
	s.writeDesc(a)
	a.bytes(unix.NFTA_SET_USERDATA, s.userdata())
}

func (s *set) writeDesc(a *attrs) {
	desc := a.begin(unix.NFTA_SET_DESC)
	if s.size > 0 {
		a.u32(unix.NFTA_SET_DESC_SIZE, s.size)
	}
	if s.flags()&setFlagConcat != 0 {
		concat := a.begin(setDescConcat)
		for _, f := range s.key {
			elem := a.begin(unix.NFTA_LIST_ELEM)
			a.u32(setFieldLen, uint32(f.size))
			a.end(elem)
		}
		a.end(concat)
	}
	a.end(desc)
}

func (s *set) userdata() []byte {
	var u userdata
	switch {
	case len(s.key) > 1:
		u.u32(udataSetKeyByteOrder, 0)
	case s.key[0].host:
		u.u32(udataSetKeyByteOrder, byteOrderHost)
	default:
		u.u32(udataSetKeyByteOrder, byteOrderBig)
	}
	if s.typeof {
		u.put(udataSetKeyTypeof, udataConcat(s.key))
		if s.data != nil {
			u.put(udataSetDataTypeof, udataConcat(s.data))
		}
	}
	u.str(udataSetComment, s.comment)
	return u.b
}

// udataConcat is how nft writes down a concatenation of expressions.
func udataConcat(fields []field) []byte {
	var list userdata
	for i, f := range fields {
		list.put(uint8(i), new(userdata).with(f.udata))
	}
	var u userdata
	u.u32(0, udataExprConcat)
	u.put(1, list.b)
	return u.b
}
