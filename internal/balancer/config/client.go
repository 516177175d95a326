package config

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// flowPart is how the value of a part of a key is read and written.
type flowPart struct {
	part model.FlowKey
	read func(v *model.FlowValues, text string) error
	text func(v *model.FlowValues) string
}

// flowParts are in the order of keyWords.
var flowParts = []flowPart{
	addrPart(model.SrcIP, func(v *model.FlowValues) *netip.Addr { return &v.SrcIP }),
	addrPart(model.DstIP, func(v *model.FlowValues) *netip.Addr { return &v.DstIP }),
	portPart(model.SrcPort, func(v *model.FlowValues) *uint16 { return &v.SrcPort }),
	portPart(model.DstPort, func(v *model.FlowValues) *uint16 { return &v.DstPort }),
	macPart(model.SrcMAC, func(v *model.FlowValues) *[6]byte { return &v.SrcMAC }),
	macPart(model.DstMAC, func(v *model.FlowValues) *[6]byte { return &v.DstMAC }),
}

func addrPart(part model.FlowKey, field func(*model.FlowValues) *netip.Addr) flowPart {
	read := func(v *model.FlowValues, text string) (err error) {
		*field(v), err = model.ParseAddr(text)
		return err
	}
	return flowPart{part, read, func(v *model.FlowValues) string { return addrText(*field(v)) }}
}

func portPart(part model.FlowKey, field func(*model.FlowValues) *uint16) flowPart {
	read := func(v *model.FlowValues, text string) error {
		n, err := readNumber(text, 0, 65535)
		*field(v) = uint16(n)
		return err
	}
	return flowPart{part, read, func(v *model.FlowValues) string { return itoa(int(*field(v))) }}
}

func macPart(part model.FlowKey, field func(*model.FlowValues) *[6]byte) flowPart {
	read := func(v *model.FlowValues, text string) error {
		mac, err := net.ParseMAC(text)
		if err != nil || len(mac) != 6 {
			return fmt.Errorf("%.60q is no MAC address", text)
		}
		*field(v) = [6]byte(mac)
		return nil
	}
	return flowPart{part, read, func(v *model.FlowValues) string { return net.HardwareAddr(field(v)[:]).String() }}
}

// partsOf are the parts of a key.
func partsOf(key model.FlowKey) (all []flowPart) {
	for _, p := range flowParts {
		if key&p.part != 0 {
			all = append(all, p)
		}
	}
	return all
}

// readClient reads values of the parts of a key as nft writes them: "192.0.2.1 . 90".
func readClient(key model.FlowKey, text string) (v model.FlowValues, err error) {
	parts, texts := partsOf(key), strings.Split(text, " . ")
	if len(parts) != len(texts) {
		err = fmt.Errorf("%.100q does not fit", text)
	}
	for i := 0; i < len(parts) && err == nil; i++ {
		err = parts[i].read(&v, strings.TrimSpace(texts[i]))
	}
	if err != nil {
		words := strings.Fields(setText(keyWords, key, len(keyWords)))
		return v, fmt.Errorf("%w; the farm's persistence is %s", err, strings.Join(words, " . "))
	}
	return v, nil
}

// clientText writes the values of the parts of a key, as readClient reads them.
func clientText(key model.FlowKey, v model.FlowValues) string {
	var texts []string
	for _, p := range partsOf(key) {
		texts = append(texts, p.text(&v))
	}
	return strings.Join(texts, " . ")
}
