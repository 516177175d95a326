package calico

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/intstr"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source/fault"
)

// IANA's numbers of the protocols that Calico knows by name.
const (
	protoICMP    = 1
	protoTCP     = 6
	protoUDP     = 17
	protoICMPv6  = 58
	protoSCTP    = 132
	protoUDPLite = 136
)

var protocols = map[string]uint8{
	"icmp": protoICMP, "tcp": protoTCP, "udp": protoUDP, "icmpv6": protoICMPv6, "sctp": protoSCTP, "udplite": protoUDPLite,
}

// protocol resolves a protocol, by name or number; 0 if none is given.
func protocol(field string, in *intstr.IntOrString, f *fault.List) uint8 {
	if in == nil {
		return 0
	}
	text := strings.ToLower(in.String())
	if number, known := protocols[text]; known {
		return number
	}
	n, err := strconv.ParseUint(text, 10, 8)
	if err != nil || n == 0 {
		f.Reject(field, "%q is none of TCP, UDP, SCTP, ICMP, ICMPv6, UDPLite and 1-255", in.String())
	}
	return uint8(n)
}

// icmpFamily is the family that an ICMP belongs to, 0 for other protocols.
func icmpFamily(protocol uint8) uint8 {
	switch protocol {
	case protoICMP:
		return 4
	case protoICMPv6:
		return 6
	}
	return 0
}

func icmpOf(field string, in *icmp, protocol uint8, f *fault.List) *model.ICMP {
	if in == nil {
		return nil
	}
	if icmpFamily(protocol) == 0 {
		f.Reject(field, "needs the protocol ICMP or ICMPv6")
	}
	if in.Type == nil {
		if in.Code != nil {
			f.Reject(field+".code", "needs a type")
		}
		return nil
	}
	if *in.Type < 0 || *in.Type > 254 {
		f.Reject(field+".type", "%d is not in 0-254", *in.Type)
	}
	out := &model.ICMP{Type: uint8(*in.Type), Code: -1}
	if in.Code != nil {
		if *in.Code < 0 || *in.Code > 255 {
			f.Reject(field+".code", "%d is not in 0-255", *in.Code)
		}
		out.Code = int16(*in.Code)
	}
	return out
}

// ports translates a list of ports, which are those of the rule's protocol.
func ports(field string, in []intstr.IntOrString, protocol uint8, f *fault.List) []model.PolicyPort {
	if len(in) == 0 {
		return nil
	}
	switch protocol {
	case protoTCP, protoUDP, protoSCTP:
	default:
		f.Reject(field, "needs the protocol TCP, UDP or SCTP")
	}
	out := make([]model.PolicyPort, len(in))
	for i := range in {
		out[i] = fault.Read(f, fmt.Sprintf("%s[%d]", field, i), in[i].String(), parsePort)
	}
	return out
}

// portName is what Calico allows as the name of a port.
var portName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,128}$`)

// parsePort reads a number, a range "first:last" or a name.
func parsePort(text string) (model.PolicyPort, error) {
	first, last, isRange := strings.Cut(text, ":")
	if !isRange {
		last = first
	}
	a, errA := strconv.Atoi(first)
	b, errB := strconv.Atoi(last)
	switch {
	case errA != nil && !isRange && portName.MatchString(text):
		return model.PolicyPort{Name: text}, nil
	case errA != nil || errB != nil:
		return model.PolicyPort{}, fmt.Errorf("%q is no port: a number, a range such as 8000:8080, or a name", text)
	case a < 1 || b > 65535:
		return model.PolicyPort{}, fmt.Errorf("%s is not in 1-65535", text)
	case a > b:
		return model.PolicyPort{}, fmt.Errorf("%s: the first port is above the last", text)
	}
	return model.PolicyPort{First: uint16(a), Last: uint16(b)}, nil
}
