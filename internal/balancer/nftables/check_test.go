package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/internal/model"
)

func TestCheckFarm(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.1")
	place := func(spans ...model.PortSpan) []model.FarmAddress {
		return []model.FarmAddress{{Addr: addr, IPv4: true, Protocols: []model.Protocol{model.TCP}, Ports: spans}}
	}
	one, wide := model.PortSpan{First: 80, Last: 80}, model.PortSpan{First: 1, Last: 5000}
	for _, c := range []struct {
		farm model.Farm
		want string // of the error; "": none
	}{
		{model.Farm{Addresses: place(one), Persist: model.SrcIP | model.DstPort}, ""},
		{model.Farm{Addresses: place(one), Persist: model.SrcMAC | model.SrcIP | model.SrcPort}, ""},
		{model.Farm{Addresses: place(one), Persist: model.SrcMAC | model.DstIP}, "persistence"},
		{model.Farm{Addresses: place(one), Backends: []model.FarmBackend{{Addr: addr, SourceAddr: addr}}}, ""},
		{model.Farm{Addresses: place(wide), Backends: []model.FarmBackend{{Addr: addr, SourceAddr: addr}}}, "source-addr"},
		{model.Farm{Addresses: place(wide), Backends: []model.FarmBackend{{Addr: addr, EstLimit: 1}}}, "est-connlimit"},
		{model.Farm{Addresses: place(wide), Backends: []model.FarmBackend{{Addr: addr, Port: 80, EstLimit: 1}}}, ""},
		{model.Farm{Mode: model.DSR, Addresses: place(one), Limits: model.FarmLimits{Established: 1}}, "limits"},
		{model.Farm{Mode: model.DSR, Addresses: place(one), Limits: model.FarmLimits{Strict: true}}, "tcp-strict"},
		{model.Farm{Mode: model.DSR, Addresses: place(one), Limits: model.FarmLimits{RST: model.FarmRate{Packets: 1}}}, "limits"},
		{model.Farm{Mode: model.StatelessDNAT, Addresses: place(one), Backends: []model.FarmBackend{{Addr: addr, EstLimit: 1}}}, "limits"},
		{model.Farm{Mode: model.StatelessDNAT, Addresses: place(one), Mark: 1}, "mark"},
		{model.Farm{Addresses: place(one), Scheduler: model.LeastConnections}, "scheduler: least connections can't be compared"},
	} {
		err := checkFarm(&c.farm)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.farm, err, c.want)
		}
	}
}
