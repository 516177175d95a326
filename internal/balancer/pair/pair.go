// Package pair writes the configuration of two balancers of which one serves and the other stands
// by: keepalived moves the virtual addresses between them, conntrackd the connections. It returns
// text and touches nothing.
package pair

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"text/template"
)

// Header begins every file, after the line that names an interpreter. What has no By was written by
// somebody else.
const (
	By     = "# Written by 'sluice balance keepalived'"
	Header = By + ", which overwrites it when it runs again, unless it was changed."
)

// sumLine follows the Header: a sum of the file, in which zeros stand for the sum.
const sumLine = "# sum "

var (
	sumOf = regexp.MustCompile(`(?m)^` + sumLine + `[0-9a-f]{64}$`)
	noSum = sumLine + strings.Repeat("0", sha256.Size*2)
)

// summed returns a text with its sum, which may be another one before.
func summed(text []byte) []byte {
	text = sumOf.ReplaceAll(text, []byte(noSum))
	return bytes.Replace(text, []byte(noSum), fmt.Appendf(nil, "%s%x", sumLine, sha256.Sum256(text)), 1)
}

// AsWritten reports whether a file is as Files returned it, for whatever machine.
func AsWritten(text []byte) bool {
	return bytes.Contains(text, []byte(Header+"\n"+sumLine)) && bytes.Equal(text, summed(text))
}

// Config describes one of the two machines. The other one's has Local and Peer, and SyncLocal and
// SyncPeer, the other way round.
type Config struct {
	Name      string // of this machine, in keepalived's log
	Interface string // where VRRP is spoken, and addresses without a device are
	Local     netip.Addr
	Peer      netip.Addr
	Addresses []Address
	RouterID  int // from 1 to 255, the same on both and of nobody else in that network
	Priority  int // from 1 to 254; the same on both: whoever serves goes on
	// Check is a command that fails if the balancer of this machine does not work.
	Check string
	// SyncInterface, SyncLocal and SyncPeer are the way of conntrackd.
	SyncInterface       string
	SyncLocal, SyncPeer netip.Addr
	Dir                 string // where the files are going to be: an absolute path
	RunDir              string // where conntrackd has its socket
	Systemd             bool   // conntrackd is started by systemd
}

// Address is a virtual address. Device "" is the Interface of the Config.
type Address struct {
	netip.Prefix
	Device string
}

// String returns what keepalived.conf has for it.
func (a Address) String() string {
	if a.Device == "" {
		return a.Prefix.String()
	}
	return a.Prefix.String() + " dev " + a.Device
}

// ParseAddress reads ADDRESS, ADDRESS/LENGTH, and either with @DEVICE. Without a length, it is an
// address alone.
func ParseAddress(s string) (Address, error) {
	text, device, has := strings.Cut(s, "@")
	if has && !deviceName.MatchString(device) {
		return Address{}, fmt.Errorf("%q is no device", device)
	}
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return Address{}, fmt.Errorf("%q is no address", text)
		}
		return Address{netip.PrefixFrom(a, a.BitLen()), device}, nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return Address{}, fmt.Errorf("%q is no address with the length of its network", text)
	}
	return Address{p, device}, nil
}

// VirtualAddresses returns the addresses of the farms in a balancer's configuration, in order and
// each once.
func VirtualAddresses(r io.Reader) ([]Address, error) {
	type address struct {
		IP string `json:"ip-addr"`
	}
	var doc struct {
		Farms []struct {
			Virtual   string    `json:"virtual-addr"`
			Addresses []address `json:"addresses"`
		} `json:"farms"`
		Addresses []address `json:"addresses"`
	}
	if err := json.NewDecoder(r).Decode(&doc); err != nil {
		return nil, fmt.Errorf("read the balancer's configuration: %w", err)
	}
	var texts []string
	for _, f := range doc.Farms {
		texts = append(texts, f.Virtual)
		for _, a := range f.Addresses {
			texts = append(texts, a.IP)
		}
	}
	for _, a := range doc.Addresses {
		texts = append(texts, a.IP)
	}
	var found []Address
	for _, text := range texts {
		if text == "" {
			continue // every address of the machine, or a name of an address
		}
		a, err := ParseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("read the balancer's configuration: %w", err)
		}
		if !slices.Contains(found, a) {
			found = append(found, a)
		}
	}
	return found, nil
}

// File is one of the files.
type File struct {
	Name string // in Config.Dir
	Mode fs.FileMode
	Text []byte
}

//go:embed files
var files embed.FS

// Files returns the files of one machine.
func Files(c Config) ([]File, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	templates, err := template.ParseFS(files, "files/*")
	if err != nil {
		return nil, err
	}
	var made []File
	for _, t := range []struct {
		name string
		mode fs.FileMode
	}{{"keepalived.conf", 0o644}, {"conntrackd.conf", 0o644}, {"sluice-pair", 0o755}, {"sluice-pair.nft", 0o644}} {
		var text bytes.Buffer
		if err := templates.ExecuteTemplate(&text, t.name, values(c)); err != nil {
			return nil, err
		}
		made = append(made, File{t.name, t.mode, summed(text.Bytes())})
	}
	return made, nil
}

var (
	deviceName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,15}$`)
	plainPath  = regexp.MustCompile(`^/[A-Za-z0-9_./-]*$`)
)

// check finds what the files cannot say.
func (c *Config) check() error {
	switch {
	case !deviceName.MatchString(c.Interface):
		return fmt.Errorf("the interface %q is no name of a device", c.Interface)
	case !deviceName.MatchString(c.SyncInterface):
		return fmt.Errorf("the interface for conntrackd %q is no name of a device", c.SyncInterface)
	case c.RouterID < 1 || c.RouterID > 255:
		return fmt.Errorf("the router ID is %d: choose one from 1 to 255", c.RouterID)
	case c.Priority < 1 || c.Priority > 254:
		return fmt.Errorf("the priority is %d: choose one from 1 to 254", c.Priority)
	case strings.ContainsAny(c.Check+c.Name, "\"\\\n\r#!{}") || c.Check == "":
		return fmt.Errorf(`the check %q has to be a command without quotes, \, !, #, { and }`, c.Check)
	case !plainPath.MatchString(c.Dir) || path.Clean(c.Dir) != c.Dir:
		return fmt.Errorf("the folder %q has to be an absolute path of plain letters", c.Dir)
	case !slices.ContainsFunc(c.Addresses, c.sameFamily):
		return errors.New("there is no virtual address of the family in which the machines speak VRRP")
	}
	return errors.Join(two("VRRP", c.Local, c.Peer), two("conntrackd", c.SyncLocal, c.SyncPeer))
}

func (c *Config) sameFamily(a Address) bool { return a.Addr().Is4() == c.Local.Is4() }

// two checks the addresses of the two ends of a connection.
func two(of string, local, peer netip.Addr) error {
	switch {
	case !local.IsValid() || !peer.IsValid():
		return fmt.Errorf("%s needs an address of this machine and one of the other", of)
	case local == peer:
		return fmt.Errorf("%s: both machines have the address %s", of, local)
	case local.Is4() != peer.Is4():
		return fmt.Errorf("%s: %s and %s are of two families", of, local, peer)
	}
	return nil
}

// values is what the templates put in.
func values(c Config) any {
	v := struct {
		Config
		Header string
		First  Address   // the one that VRRP tells of, of its own family
		Rest   []Address // the others, whose number VRRP does not limit
		Others []string  // interfaces besides Interface
		IP     string    // of conntrackd: 4 or 6
		Own    []netip.Addr
		Sets   []set
	}{Config: c, Header: Header + "\n" + noSum, IP: "6", Sets: sets(c.Addresses)}
	first := slices.IndexFunc(c.Addresses, c.sameFamily)
	v.First = c.Addresses[first]
	v.Rest = slices.Delete(slices.Clone(c.Addresses), first, first+1)
	for _, a := range c.Addresses {
		if a.Device != "" && a.Device != c.Interface && !slices.Contains(v.Others, a.Device) {
			v.Others = append(v.Others, a.Device)
		}
	}
	if c.SyncLocal.Is4() {
		v.IP = "4"
	}
	for _, a := range []netip.Addr{c.Local, c.Peer, c.SyncLocal, c.SyncPeer} {
		if !slices.Contains(v.Own, a) {
			v.Own = append(v.Own, a)
		}
	}
	return v
}

// set is a set of virtual addresses of one family in nftables.
type set struct{ Name, Type, Match, Elements string }

func sets(addrs []Address) []set {
	var made []set
	for _, s := range []set{{"ip-virtual", "ipv4_addr", "ip daddr", ""}, {"ip6-virtual", "ipv6_addr", "ip6 daddr", ""}} {
		var elements []string
		for _, a := range addrs {
			if text := a.Addr().String(); a.Addr().Is4() == (s.Type == "ipv4_addr") && !slices.Contains(elements, text) {
				elements = append(elements, text)
			}
		}
		if s.Elements = strings.Join(elements, ", "); s.Elements != "" {
			made = append(made, s)
		}
	}
	return made
}
