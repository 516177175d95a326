package store

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/internal/model"
)

// Equality looks at every field, also at those that are added one day.
func TestEqualityCoversEveryField(t *testing.T) {
	everyField(t, func(a, b *model.Service) bool { return equal(a, b) })
	everyField(t, equalSlices, "Triggered") // which is of metrics alone
	everyField(t, equalPods)
	everyField(t, func(a, b *model.Node) bool { return equal(a, b) })
	everyField(t, func(a, b *model.Namespace) bool { return equal(a, b) })
	everyField(t, func(a, b *model.ServiceAccount) bool { return equal(a, b) })
	everyField(t, func(a, b *model.Policy) bool { return equal(a, b) })
	everyField(t, func(a, b *model.Tier) bool { return equal(a, b) })
	everyField(t, func(a, b *model.NetworkSet) bool { return equal(a, b) })
	everyField(t, func(a, b *model.HostEndpoint) bool { return equal(a, b) })
	everyField(t, func(a, b *model.Endpoint) bool { return equalEndpoints(*a, *b) })
	everyField(t, func(a, b *model.PolicyRule) bool { return equal(a, b) })
	everyField(t, func(a, b *model.RuleEnd) bool { return equal(a, b) })
	everyField(t, func(a, b *model.Peer) bool { return equal(a, b) })
}

func everyField[T any](t *testing.T, equal func(a, b *T) bool, not ...string) {
	t.Helper()
	var zero T
	if !equal(&zero, &zero) {
		t.Errorf("%T: the zero value differs from itself", zero)
	}
	for i := range reflect.TypeFor[T]().NumField() {
		var changed T
		field := reflect.ValueOf(&changed).Elem().Field(i)
		field.Set(other(t, field.Type()))
		if equal(&zero, &changed) != slices.Contains(not, reflect.TypeFor[T]().Field(i).Name) {
			t.Errorf("%T: %s makes no difference", zero, reflect.TypeFor[T]().Field(i).Name)
		}
	}
}

// other is a value of the type that is not its zero value.
func other(t *testing.T, typ reflect.Type) reflect.Value {
	switch typ {
	case reflect.TypeFor[netip.Addr]():
		return reflect.ValueOf(netip.IPv6Loopback())
	case reflect.TypeFor[time.Time]():
		return reflect.ValueOf(time.Unix(1, 0))
	case reflect.TypeFor[model.Selector]():
		return reflect.ValueOf(model.Everything())
	}
	v := reflect.New(typ).Elem()
	switch typ.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Pointer:
		v.Set(reflect.New(typ.Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(typ, 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(typ))
		v.SetMapIndex(other(t, typ.Key()), other(t, typ.Elem()))
	case reflect.Struct:
		v.Field(0).Set(other(t, typ.Field(0).Type))
	default:
		t.Fatalf("no other value of %s", typ)
	}
	return v
}
