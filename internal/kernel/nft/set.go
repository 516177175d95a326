package nft

import (
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/kernel/attr"
)

// Set is a named set or map.
type Set struct {
	ID      uint32
	Name    string
	Comment string
	Key     []Field
	Data    []Field // of a map to values
	Verdict bool    // a map to verdicts

	// Ranges: each field of an element's key is a range; they do not overlap. The key of an Element
	// is that of all first values, and then that of all last ones.
	Ranges  bool
	Typeof  bool   // the key has parts that nft can only describe by an expression
	Dynamic bool   // filled by packets, with time-outs; its content is not ours to compare
	Counts  bool   // of Dynamic: packets add connections that are counted, which go by themselves
	Counted bool   // each element counts the packets that look it up
	Size    uint32 // the most elements; 0: no bound
	Early   bool   // filled before, and emptied after, the rules that look it up
	Late    bool   // filled after all else, and emptied before: what it has is spared other rules
	// StandIn is looked up where this map has nothing: it has the elements whose values are about
	// to change, see LookAgain.
	StandIn *Set
}

// Constants of linux/netfilter/nf_tables.h that golang.org/x/sys lacks.
const (
	FlagDormant       = 0x1 // no packet meets the table
	FlagOwner         = 0x2
	FlagPersist       = 0x4
	tableAttrOwner    = 7
	tableAttrUserdata = 6
	chainAttrUserdata = 12
	dynsetDelete      = 2 // NFT_DYNSET_OP_DELETE, Linux 5.4
	chainPolicyAccept = 1 // NF_ACCEPT
	objectCounter     = 1 // NFT_OBJECT_COUNTER
	setConcat         = 0x80
	setExpr           = 17 // NFTA_SET_EXPR
	setDescConcat     = 2
	setFieldLen       = 1
	elementKeyEnd     = 10 // NFTA_SET_ELEM_KEY_END
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

// KeySize is the number of bytes that the fields take in a key.
func KeySize(fields []Field) (n int) {
	for _, f := range fields {
		n += 4 * f.registers()
	}
	return n
}

// magic is nft's number of the (concatenated) type.
func magic(fields []Field) (m uint32) {
	for _, f := range fields {
		m = m<<6 | f.Datatype
	}
	return m
}

func (s *Set) flags() (flags uint32) {
	if s.Ranges {
		flags |= unix.NFT_SET_INTERVAL | setConcat
	}
	if s.Verdict || s.Data != nil {
		flags |= unix.NFT_SET_MAP
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_EVAL
	}
	if s.Dynamic && !s.Counts {
		flags |= unix.NFT_SET_TIMEOUT
	}
	return flags
}

// SetType is the type of a set as far as it matters for keeping its elements.
type SetType struct{ keyType, keyLen, dataType, dataLen, flags uint32 }

// Type is the type that the set should have in the kernel.
func (s *Set) Type() SetType {
	d := SetType{keyType: magic(s.Key), keyLen: uint32(KeySize(s.Key)), flags: s.flags()}
	switch {
	case s.Verdict:
		d.dataType, d.dataLen = verdictType, 16
	case s.Data != nil:
		d.dataType, d.dataLen = magic(s.Data), uint32(KeySize(s.Data))
	}
	return d
}

// Write appends the attributes that create the set.
func (s *Set) Write(a *attr.Attrs, table string) {
	a.String(unix.NFTA_SET_TABLE, table)
	a.String(unix.NFTA_SET_NAME, s.Name)
	t := s.Type()
	a.Uint32(unix.NFTA_SET_FLAGS, t.flags)
	a.Uint32(unix.NFTA_SET_KEY_TYPE, t.keyType)
	a.Uint32(unix.NFTA_SET_KEY_LEN, t.keyLen)
	if t.dataLen > 0 {
		a.Uint32(unix.NFTA_SET_DATA_TYPE, t.dataType)
		a.Uint32(unix.NFTA_SET_DATA_LEN, t.dataLen)
	}
	a.Uint32(unix.NFTA_SET_ID, s.ID)
	desc := a.Begin(unix.NFTA_SET_DESC)
	if s.Size > 0 {
		a.Uint32(unix.NFTA_SET_DESC_SIZE, s.Size)
	}
	if s.Ranges {
		s.writeFields(a)
	}
	a.End(desc)
	if s.Counted {
		counter := a.Begin(setExpr)
		a.String(unix.NFTA_EXPR_NAME, "counter")
		a.End(a.Begin(unix.NFTA_EXPR_DATA))
		a.End(counter)
	}
	a.Bytes(unix.NFTA_SET_USERDATA, s.userdata())
}

// writeFields says how long the fields of the key are.
func (s *Set) writeFields(a *attr.Attrs) {
	all := a.Begin(setDescConcat)
	for _, f := range s.Key {
		field := a.Begin(unix.NFTA_LIST_ELEM)
		a.Uint32(setFieldLen, uint32(f.Size))
		a.End(field)
	}
	a.End(all)
}

func (s *Set) userdata() []byte {
	var u userdata
	switch {
	case len(s.Key) > 1:
		u.u32(udataSetKeyByteOrder, 0)
	case s.Key[0].host:
		u.u32(udataSetKeyByteOrder, byteOrderHost)
	default:
		u.u32(udataSetKeyByteOrder, byteOrderBig)
	}
	if s.Typeof {
		u.put(udataSetKeyTypeof, udataConcat(s.Key))
		if s.Data != nil {
			u.put(udataSetDataTypeof, udataConcat(s.Data))
		}
	}
	u.str(udataSetComment, s.Comment)
	return u.b
}

// udataConcat is how nft writes down a concatenation of expressions.
func udataConcat(fields []Field) []byte {
	var list userdata
	for i, f := range fields {
		list.put(uint8(i), new(userdata).with(f.udata))
	}
	var u userdata
	u.u32(0, udataExprConcat)
	u.put(1, list.b)
	return u.b
}
