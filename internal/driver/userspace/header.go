package userspace

import (
	"encoding/binary"
	"net"
)

// proxySignature begins a header of the PROXY protocol, version 2.
const proxySignature = "\r\n\r\n\x00\r\nQUIT\n"

// introduce tells a backend by the PROXY protocol who connects to what, if that is asked for.
func (d *Driver) introduce(back, front *net.TCPConn) error {
	if d.options.ClientAddress != ProxyProtocol {
		return nil
	}
	const version2Proxy, tcp4, tcp6 = 0x21, 0x11, 0x21
	from, to := addrPort(front.RemoteAddr()), addrPort(front.LocalAddr())
	family := byte(tcp4)
	if from.Addr().Is6() {
		family = tcp6
	}
	addresses := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	h := append([]byte(proxySignature), version2Proxy, family)
	h = binary.BigEndian.AppendUint16(h, uint16(len(addresses)+4))
	h = append(h, addresses...)
	h = binary.BigEndian.AppendUint16(h, from.Port())
	h = binary.BigEndian.AppendUint16(h, to.Port())
	_, err := back.Write(h)
	return err
}
