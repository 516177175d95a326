package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/mdlayher/genetlink"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// Encrypt gives the driver the node's private key, and a socket to WireGuard in the calling
// thread's network namespace. It is called before anything is adopted; without it there is no
// WireGuard device.
func (d *Driver) Encrypt(private [32]byte) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.key = private
	if d.wg, err = wgctrl.New(); err != nil {
		return fmt.Errorf("open socket to WireGuard: %w", err)
	}
	return nil
}

// findWireGuard asks for the kernel's WireGuard, which loads its module. The error is that of a
// kernel without.
func findWireGuard(context.Context) error {
	c, err := genetlink.Dial(nil)
	if err != nil {
		return fmt.Errorf("open socket to WireGuard: %w", err)
	}
	_, err = c.GetFamily("wireguard")
	return errors.Join(err, c.Close())
}

// NewKey makes a private key.
func NewKey() (private [32]byte, err error) {
	key, err := wgtypes.GeneratePrivateKey()
	return key, err
}

// PublicKey is what others know of a private key.
func PublicKey(private [32]byte) model.PublicKey {
	return model.PublicKey(wgtypes.Key(private).PublicKey())
}

// readWireGuard reads a device, and its peers.
func (d *Driver) readWireGuard(k *kernel, dev *device) error {
	dev.tunnel.Encapsulation = state.WireGuard
	if d.wg == nil {
		return nil // it goes
	}
	found, err := d.wg.Device(state.DeviceWG)
	if err != nil {
		return fmt.Errorf("read device %s: %w", state.DeviceWG, err)
	}
	dev.fixed, dev.tunnel.Key, dev.tunnel.Port = true, model.PublicKey(found.PublicKey), uint16(found.ListenPort)
	for i := range found.Peers {
		k.peers[model.PublicKey(found.Peers[i].PublicKey)] = readPeer(&found.Peers[i])
	}
	return nil
}

func readPeer(found *wgtypes.Peer) *state.Peer {
	p := &state.Peer{}
	if e := found.Endpoint; e != nil {
		p.Endpoint = netip.AddrPortFrom(e.AddrPort().Addr().Unmap(), uint16(e.Port))
	}
	for _, allowed := range found.AllowedIPs {
		addr, _ := netip.AddrFromSlice(allowed.IP)
		ones, _ := allowed.Mask.Size()
		p.Allowed = append(p.Allowed, netip.PrefixFrom(addr.Unmap(), ones))
	}
	slices.SortFunc(p.Allowed, netip.Prefix.Compare)
	return p
}

// keyed gives a WireGuard device its key and port.
func (d *Driver) keyed(now *device, t *state.Tunnel) error {
	switch {
	case t.Encapsulation != state.WireGuard || now.tunnel.Key == t.Key && now.tunnel.Port == t.Port:
		return nil
	case d.wg == nil || PublicKey(d.key) != t.Key:
		return errors.New("nobody has given the private key")
	}
	port, private := int(t.Port), wgtypes.Key(d.key)
	if err := d.wg.ConfigureDevice(state.DeviceWG, wgtypes.Config{PrivateKey: &private, ListenPort: &port}); err != nil {
		return fmt.Errorf("set key and port: %w", err)
	}
	return nil
}

// peer plans a peer; want is nil where there is to be none.
func (p *plan) peer(key model.PublicKey, want *state.Peer, keep bool) {
	now := p.now.peers[key]
	switch {
	case want == nil && now == nil:
	case want == nil && keep:
		p.kept++
	case want == nil:
		p.gonePeers = append(p.gonePeers, key)
	case now == nil || now.Endpoint != want.Endpoint || !slices.Equal(now.Allowed, want.Allowed):
		p.peers[key] = want
	}
}

func (p *plan) printPeers(b *strings.Builder) {
	for key, want := range p.peers {
		fmt.Fprintf(b, "set peer %s at %s for %s dev %s\n", key, want.Endpoint, model.Join(want.Allowed, ","), state.DeviceWG)
	}
}

// setPeers sets those that are planned, all at once.
func (p *plan) setPeers() error {
	if p.d.now.tunnels[state.DeviceWG] == nil || len(p.peers) == 0 {
		return nil
	}
	var c wgtypes.Config
	for key, want := range p.peers {
		peer := wgtypes.PeerConfig{PublicKey: wgtypes.Key(key), Endpoint: net.UDPAddrFromAddrPort(want.Endpoint), ReplaceAllowedIPs: true}
		for _, allowed := range want.Allowed {
			peer.AllowedIPs = append(peer.AllowedIPs, net.IPNet{IP: allowed.Addr().AsSlice(), Mask: net.CIDRMask(allowed.Bits(), allowed.Addr().BitLen())})
		}
		c.Peers = append(c.Peers, peer)
	}
	if err := p.d.wg.ConfigureDevice(state.DeviceWG, c); err != nil {
		return fmt.Errorf("set peers of %s: %w", state.DeviceWG, err)
	}
	now := map[netip.Prefix]bool{}
	for _, want := range p.peers {
		for _, allowed := range want.Allowed {
			now[allowed] = true
		}
	}
	taken := func(a netip.Prefix) bool { return now[a] }
	for key, has := range p.d.now.peers { // what another one had is taken from it
		if p.peers[key] == nil && slices.ContainsFunc(has.Allowed, taken) {
			p.d.now.peers[key] = &state.Peer{Endpoint: has.Endpoint, Allowed: slices.DeleteFunc(slices.Clone(has.Allowed), taken)}
		}
	}
	maps.Copy(p.d.now.peers, p.peers)
	return nil
}

// clearPeers removes those that are planned to go.
func (p *plan) clearPeers() error {
	if len(p.gonePeers) == 0 || p.d.now.tunnels[state.DeviceWG] == nil {
		return nil
	}
	var c wgtypes.Config
	for _, key := range p.gonePeers {
		c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: wgtypes.Key(key), Remove: true, UpdateOnly: true})
		delete(p.d.now.peers, key)
	}
	if err := p.d.wg.ConfigureDevice(state.DeviceWG, c); err != nil {
		return fmt.Errorf("remove peers of %s: %w", state.DeviceWG, err)
	}
	return nil
}
