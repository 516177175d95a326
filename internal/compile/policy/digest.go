package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"reflect"

	"sluice.dev/sluice/internal/state"
)

// digestOf identifies what v points to by all that it holds; rules of policies, which many programs
// share, by their own digest.
func digestOf(v any) string {
	h := sha256.New()
	digest(h, reflect.ValueOf(v).Elem())
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// digest writes all that v holds to h so that different values write different bytes.
func digest(h hash.Hash, v reflect.Value) {
	number := func(n uint64) { h.Write(binary.LittleEndian.AppendUint64(nil, n)) }
	switch v.Kind() {
	case reflect.String:
		number(uint64(v.Len()))
		h.Write([]byte(v.String()))
	case reflect.Slice:
		number(uint64(v.Len()))
		for i := range v.Len() {
			digest(h, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			digest(h, v.Field(i))
		}
	case reflect.Pointer:
		if v.IsNil() {
			number(0)
			return
		}
		number(1)
		if r, ok := v.Interface().(*state.PolicyRules); ok && r.ID != "" {
			h.Write([]byte(r.ID))
			return
		}
		digest(h, v.Elem())
	case reflect.Int16:
		number(uint64(v.Int()))
	default: // unsigned numbers; anything else panics, in the test of all fields
		number(v.Uint())
	}
}
