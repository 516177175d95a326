package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// readClient reads values of the parts of a key as nft writes them: "192.0.2.1 . 90".
func readClient(key model.FlowKey, text string) (v model.FlowValues, err error) {
	parts := strings.Split(text, " . ")
	var want []word[model.FlowKey]
	for _, w := range keyWords {
		if key&w.value != 0 {
			want = append(want, w)
		}
	}
	if len(parts) != len(want) {
		err = fmt.Errorf("%.100q does not fit", text)
	}
	for i := 0; i < len(want) && err == nil; i++ {
		err = setPart(&v, want[i].value, strings.TrimSpace(parts[i]))
	}
	if err != nil {
		return v, fmt.Errorf("%w; the farm's persistence is %s", err, strings.ReplaceAll(known(want), ", ", " . "))
	}
	return v, nil
}

func setPart(v *model.FlowValues, part model.FlowKey, text string) error {
	switch part {
	case model.SrcIP:
		return setAddr(&v.SrcIP, text)
	case model.DstIP:
		return setAddr(&v.DstIP, text)
	case model.SrcPort:
		return setPort(&v.SrcPort, text)
	case model.DstPort:
		return setPort(&v.DstPort, text)
	case model.SrcMAC:
		return setMAC(&v.SrcMAC, text)
	}
	return setMAC(&v.DstMAC, text)
}

func setAddr(into *netip.Addr, text string) (err error) {
	*into, err = model.ParseAddr(text)
	return err
}

func setPort(into *uint16, text string) error {
	n, err := readNumber(text, 0, 65535)
	*into = uint16(n)
	return err
}

func setMAC(into *[6]byte, text string) error {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != len(into) {
		return fmt.Errorf("%.60q is no MAC address", text)
	}
	copy(into[:], mac)
	return nil
}

// clientText writes the parts of a key, as readClient reads them.
func clientText(key model.FlowKey, v model.FlowValues) string {
	var parts []string
	for _, w := range keyWords {
		if key&w.value == 0 {
			continue
		}
		parts = append(parts, partText(v, w.value))
	}
	return strings.Join(parts, " . ")
}

func partText(v model.FlowValues, part model.FlowKey) string {
	switch part {
	case model.SrcIP:
		return addrText(v.SrcIP)
	case model.DstIP:
		return addrText(v.DstIP)
	case model.SrcPort:
		return strconv.Itoa(int(v.SrcPort))
	case model.DstPort:
		return strconv.Itoa(int(v.DstPort))
	case model.SrcMAC:
		return net.HardwareAddr(v.SrcMAC[:]).String()
	}
	return net.HardwareAddr(v.DstMAC[:]).String()
}
