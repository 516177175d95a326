package config

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// partsOf are the parts of a key, in the order of keyWords.
func partsOf(key model.FlowKey) (all []model.FlowKey) {
	for _, w := range keyWords {
		if key&w.value != 0 {
			all = append(all, w.value)
		}
	}
	return all
}

// readPart reads the value of a part of a key.
func readPart(into any, text string) (err error) {
	switch into := into.(type) {
	case *netip.Addr:
		*into, err = model.ParseAddr(text)
	case *uint16:
		var n uint64
		n, err = readNumber(text, 0, 65535)
		*into = uint16(n)
	case *[6]byte:
		mac, err := net.ParseMAC(text)
		if err != nil || len(mac) != 6 {
			return fmt.Errorf("%.60q is no MAC address", text)
		}
		*into = [6]byte(mac)
	}
	return err
}

func partText(value any) string {
	switch v := value.(type) {
	case *netip.Addr:
		return addrText(*v)
	case *[6]byte:
		return net.HardwareAddr(v[:]).String()
	}
	return itoa(int(*value.(*uint16)))
}

// readClient reads values of the parts of a key as nft writes them: "192.0.2.1 . 90".
func readClient(key model.FlowKey, text string) (v model.FlowValues, err error) {
	parts, texts := partsOf(key), strings.Split(text, " . ")
	if len(parts) != len(texts) {
		err = fmt.Errorf("%.100q does not fit", text)
	}
	for i := 0; i < len(parts) && err == nil; i++ {
		err = readPart(v.Field(parts[i]), strings.TrimSpace(texts[i]))
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
		texts = append(texts, partText(v.Field(p)))
	}
	return strings.Join(texts, " . ")
}
