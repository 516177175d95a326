package compile

import (
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"testing"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// The id of rules tells of everything in them, also of fields that are added one day.
func TestDigestCoversEveryField(t *testing.T) {
	everyField[state.Rules](t)
	everyField[state.Tier](t)
	everyField[state.PolicyRules](t)
	everyField[state.Rule](t)
	everyField[state.End](t)
	everyField[state.Term](t)
	everyField[state.ListRef](t)
	everyField[state.Ports](t)
	everyField[state.PortRange](t)
	everyField[model.PolicyKey](t)
	everyField[model.ICMP](t)
}

func everyField[T any](t *testing.T) {
	t.Helper()
	seen := map[string]string{sum(new(T)): "no field"}
	for i := range reflect.TypeFor[T]().NumField() {
		name := reflect.TypeFor[T]().Field(i).Name
		v := new(T)
		reflect.ValueOf(v).Elem().Field(i).Set(other(t, reflect.TypeFor[T]().Field(i).Type))
		if with := seen[sum(v)]; with != "" {
			t.Errorf("%T: %s makes no difference from %s", *v, name, with)
		}
		seen[sum(v)] = name
	}
}

func sum(v any) string {
	h := sha256.New()
	digest(h, reflect.ValueOf(v).Elem())
	return hex.EncodeToString(h.Sum(nil))
}

// other is a value of the type that is not its zero value.
func other(t *testing.T, typ reflect.Type) reflect.Value {
	v := reflect.New(typ).Elem()
	switch typ.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		v.SetUint(1)
	case reflect.Int16:
		v.SetInt(-1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(typ, 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(typ.Elem()))
	case reflect.Struct:
		v.Field(0).Set(other(t, typ.Field(0).Type))
	default:
		t.Fatalf("no other value of %s", typ)
	}
	return v
}
