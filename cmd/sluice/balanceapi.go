package main

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/spf13/pflag"

	nftlb "sluice.dev/sluice/internal/balancer/config"
	"sluice.dev/sluice/internal/cli"
)

// apiFlags are those of the balancer's API.
type apiFlags struct {
	address  string
	key      string
	random   bool // the key is
	readKeys []string
	tls      nftlb.TLS
}

func (a *apiFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&a.address, "api", "127.0.0.1:5555", "`address` to serve the API on; '' to serve none")
	fl.StringVar(&a.key, "key", "", "key of the API's clients (default: that of SLUICE_KEY, or a random one, which is printed)")
	fl.StringSliceVar(&a.readKeys, "read-key", nil, "keys of clients that may only read")
	fl.StringVar(&a.tls.Cert, "tls-cert", "", "`file` of the API's certificate, in PEM: serve by TLS")
	fl.StringVar(&a.tls.Key, "tls-key", "", "`file` of the certificate's key, in PEM")
	fl.StringVar(&a.tls.ClientCA, "tls-client-ca", "", "`file` of certificate authorities, in PEM: clients need a certificate of one of them, too")
}

// keyVariable holds the key of the API, where no flag does: a flag is seen by all users of the
// machine.
const keyVariable = "SLUICE_KEY"

// chooseKey has the API have a key.
func (a *apiFlags) chooseKey() error {
	if a.address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(a.address); err != nil {
		return cli.Usage(fmt.Errorf("--api %s: give ADDRESS:PORT, as in 127.0.0.1:5555, or '' for none", a.address))
	}
	if (a.tls.Cert == "") != (a.tls.Key == "") || a.tls.Cert == "" && a.tls.ClientCA != "" {
		return cli.Usage(errors.New("--tls-cert and --tls-key go together, and --tls-client-ca needs them"))
	}
	if a.key == "" {
		a.key = os.Getenv(keyVariable)
	}
	if a.key == "" {
		a.key, a.random = rand.Text(), true
	}
	return nil
}

// served are the addresses that listeners at these have, each of a family if it is all of the
// machine's. One that cannot be resolved is none, as to listen there fails.
func served(addresses ...string) (all []netip.AddrPort) {
	for _, address := range addresses {
		at, err := net.ResolveTCPAddr("tcp", address)
		if err != nil || at.Port == 0 {
			continue
		}
		ip, port := at.AddrPort().Addr().Unmap(), uint16(at.Port)
		if !ip.IsValid() || ip == netip.IPv6Unspecified() {
			all = append(all, netip.AddrPortFrom(netip.IPv4Unspecified(), port))
			ip = netip.IPv6Unspecified()
		}
		all = append(all, netip.AddrPortFrom(ip, port))
	}
	return all
}

// listen takes the address of the API, and reads what it needs for TLS, nil: nothing; no listener:
// there is no API.
func (a *apiFlags) listen() (net.Listener, *tls.Config, error) {
	if a.address == "" {
		return nil, nil, nil
	}
	config, err := a.tls.Config()
	if err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("tcp", a.address)
	if err != nil {
		return nil, nil, fmt.Errorf("serve the API on %s: %w: choose another address with --api, or turn it off with --api=''", a.address, err)
	}
	return l, config, nil
}
