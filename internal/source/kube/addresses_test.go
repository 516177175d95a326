package kube

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/model"
)

// The pauses of a status that somebody writes over are those of that Service: not of one that comes
// after it under its name. They are forgotten once they are over, also while others are waited for.
func TestAddressesOfServiceMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAddresses(Config{}, "n1", silentLog)
		a.lease.renewed = time.Now().Add(24 * time.Hour) // it has the Lease
		name := model.Name{Namespace: "shop", Name: "web"}
		first, ips := model.Birth{Created: time.Now(), Name: name}, []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		isDue := func() bool { due, _ := a.due(); return due[name] != nil }
		for range 6 {
			a.Want(first, ips)
			time.Sleep(time.Until(a.wanted[name].due))
			a.wrote(first, ips)
			a.Settled(name)
		}
		if a.Want(first, ips); isDue() {
			t.Error("what somebody writes over is written again at once")
		}
		a.Settled(name) // it is gone
		second := model.Birth{Created: first.Created.Add(time.Minute), Name: name}
		if a.Want(second, ips); !isDue() {
			t.Error("one that was made anew waits")
		}
		a.wrote(second, ips)
		a.Settled(name)
		a.Want(model.Birth{Name: model.Name{Namespace: "shop", Name: "other"}}, ips)
		time.Sleep(time.Hour)
		if a.due(); len(a.written) > 0 {
			t.Errorf("%d are remembered for ever", len(a.written))
		}
	})
}
