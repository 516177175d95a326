// Package control runs a Kubernetes control plane in a network namespace: the real etcd, API
// server, scheduler and controller manager, as processes that outlive their starter, with their own
// certificates.
package control

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/test/lab/process"
	"sluice.dev/sluice/test/netns"
)

// These are the components, as Kill and Restart name them.
const (
	Etcd       = "etcd"
	APIServer  = "kube-apiserver"
	Controller = "kube-controller-manager"
	Scheduler  = "kube-scheduler"
)

// Components are all of them, in starting order.
var Components = []string{Etcd, APIServer, Controller, Scheduler}

// Port is the API server's port.
const Port = 6443

// Config says what control plane to start.
type Config struct {
	Bin   string     // the folder of the programs, as from Build
	Dir   string     // for certificates, kubeconfigs, logs and etcd's data; existing files are reused
	NetNS *netns.NS  // to run in; the caller keeps it
	Addr  netip.Addr // the API server's address in it, reachable from the nodes; not a loopback address

	ClusterCIDRs, ServiceCIDRs []netip.Prefix

	Controllers bool // run the scheduler and the controller manager too
	RBAC        bool // authorize by RBAC, kubelets by their nodes; otherwise everything is allowed

	APIServerArgs []string // more arguments for the API server
}

// Plane is a running control plane. Its methods are not safe for concurrent use, except Dial.
type Plane struct {
	Config
}

// ready is a component's time-out to become ready: the programs start in seconds, but machines may
// be busy.
const ready = 2 * time.Minute

// Start starts a control plane and returns once it is ready. The folder may be that of an earlier
// plane. If Start fails, nothing keeps running.
func Start(ctx context.Context, cfg Config) (*Plane, error) {
	p := &Plane{cfg}
	if err := p.writeFiles(); err != nil {
		return nil, fmt.Errorf("start control plane: %w", err)
	}
	for _, c := range p.components() {
		if err := p.Restart(ctx, c); err != nil {
			return nil, errors.Join(fmt.Errorf("start control plane: %w", err), p.Stop())
		}
	}
	return p, nil
}

// Open returns a plane that an earlier Start has started, in any process.
func Open(cfg Config) *Plane { return &Plane{cfg} }

func (p *Plane) components() []string {
	if p.Controllers {
		return Components
	}
	return Components[:2]
}

// Stop kills all components and returns once they are gone. Their folder stays.
func (p *Plane) Stop() error {
	var errs []error
	for _, c := range slices.Backward(p.components()) {
		errs = append(errs, p.Kill(c))
	}
	return errors.Join(errs...)
}

// Kill kills a component, if it runs, and returns once it is gone.
func (p *Plane) Kill(component string) error {
	if err := process.Find(p.Dir, component).Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", component, err)
	}
	return nil
}

// Restart kills a component, if it runs, starts it, and returns once it is ready.
func (p *Plane) Restart(ctx context.Context, component string) error {
	if err := p.Kill(component); err != nil {
		return err
	}
	args := append([]string{filepath.Join(p.Bin, component)}, p.arguments(component)...)
	if err := process.Start(p.NetNS, p.Dir, component, args); err != nil {
		return err
	}
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, ready)
	defer cancel()
	for {
		err := p.healthy(ctx, component)
		if err == nil {
			return nil
		}
		if !process.Find(p.Dir, component).Alive() {
			return fmt.Errorf("%s died; the end of its log:\n%s", component, process.Tail(p.Dir, component))
		}
		select {
		case <-ctx.Done():
			if asked.Err() != nil { // the caller has given up: there is nothing wrong with the component
				return fmt.Errorf("wait for %s: %w", component, asked.Err())
			}
			return fmt.Errorf("%s was not healthy within %v: %w; the end of its log:\n%s", component, ready, err, process.Tail(p.Dir, component))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// URL is the API server's URL, for clients in the namespace or with a route to it.
func (p *Plane) URL() string {
	return "https://" + netip.AddrPortFrom(p.Addr, Port).String()
}

// Dial connects to an address from within the plane's namespace, wherever the caller is: for
// rest.Config and http.Transport. It is safe for concurrent use.
func (p *Plane) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = p.NetNS.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// These are the first files of a plane, by their names in its folder.
const (
	caCert, caKey       = "ca.crt", "ca.key"
	serverCert, srvKey  = "apiserver.crt", "apiserver.key"
	clientCert, cltKey  = "apiserver-kubelet.crt", "apiserver-kubelet.key" // the API server's, for kubelets
	accountKey          = "accounts.key"                                   // signs the tokens of service accounts
	accountCert         = "accounts.crt"
	etcdURL, etcdPeer   = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	controllerHealth    = "https://127.0.0.1:10257/healthz"
	schedulerHealth     = "https://127.0.0.1:10259/healthz"
	systemMasters       = "system:masters"
	adminUser           = "admin"
	controllerUser      = "system:kube-controller-manager"
	schedulerUser       = "system:kube-scheduler"
	serviceAccountsName = "https://kubernetes.default.svc"
)

func (p *Plane) path(name string) string { return filepath.Join(p.Dir, name) }

// writeFiles makes certificates and the components' kubeconfigs.
func (p *Plane) writeFiles() error {
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return err
	}
	ca, err := loadAuthority(p.path(caCert), p.path(caKey))
	if err != nil {
		return err
	}
	names := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"}
	addrs := []net.IP{p.Addr.AsSlice(), net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	for _, cidr := range p.ServiceCIDRs { // the service "kubernetes" has the first address
		addrs = append(addrs, cidr.Masked().Addr().Next().AsSlice())
	}
	if err := ca.issue(pkix.Name{CommonName: "kube-apiserver"}, names, addrs, p.path(serverCert), p.path(srvKey)); err != nil {
		return err
	}
	if err := ca.issue(pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: []string{systemMasters}}, nil, nil, p.path(clientCert), p.path(cltKey)); err != nil {
		return err
	}
	if _, err := loadAuthority(p.path(accountCert), p.path(accountKey)); err != nil {
		return err
	}
	if _, err := p.Kubeconfig(adminUser, systemMasters); err != nil {
		return err
	}
	for _, user := range []string{controllerUser, schedulerUser} {
		if _, err := p.Kubeconfig(user); err != nil {
			return err
		}
	}
	return nil
}

// Kubeconfig writes a kubeconfig file with a client certificate for a user in the given groups, and
// returns its path. It replaces a file of the same user. The user "admin" in "system:masters" has
// one from the start: Admin.
func (p *Plane) Kubeconfig(user string, groups ...string) (string, error) {
	name := strings.ReplaceAll(user, ":", "-")
	path := p.path(name + ".kubeconfig")
	ca, err := loadAuthority(p.path(caCert), p.path(caKey))
	if err == nil {
		err = ca.issue(pkix.Name{CommonName: user, Organization: groups}, nil, nil, p.path(name+".crt"), p.path(name+".key"))
	}
	if err == nil {
		var data [3]string // a kubeconfig stands for itself: nodes do not see the folder
		for i, file := range []string{caCert, name + ".crt", name + ".key"} {
			var pem []byte
			if pem, err = os.ReadFile(p.path(file)); err != nil {
				break
			}
			data[i] = base64.StdEncoding.EncodeToString(pem)
		}
		if err == nil {
			err = os.WriteFile(path, fmt.Appendf(nil, kubeconfig, data[0], p.URL(), data[1], data[2]), 0o600)
		}
	}
	if err != nil {
		return "", fmt.Errorf("write kubeconfig of %s: %w", user, err)
	}
	return path, nil
}

// Authority is the certificate of who signs all others of the plane, PEM.
func (p *Plane) Authority() ([]byte, error) { return os.ReadFile(p.path(caCert)) }

const kubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster: {certificate-authority-data: %s, server: %q}
users:
- name: user
  user: {client-certificate-data: %s, client-key-data: %s}
contexts:
- name: lab
  context: {cluster: lab, user: user}
current-context: lab
`

// ServerCertificate writes a certificate, signed by the plane's Authority, for a server at an
// address, and returns its file and that of its key.
func (p *Plane) ServerCertificate(name string, addr netip.Addr) (cert, key string, err error) {
	cert, key = p.path(name+".crt"), p.path(name+".key")
	ca, err := loadAuthority(p.path(caCert), p.path(caKey))
	if err == nil {
		err = ca.issue(pkix.Name{CommonName: name}, []string{name}, []net.IP{addr.AsSlice()}, cert, key)
	}
	if err != nil {
		return "", "", fmt.Errorf("write certificate of %s: %w", name, err)
	}
	return cert, key, nil
}

// Admin is the path of the administrator's kubeconfig.
func (p *Plane) Admin() string { return p.path(adminUser + ".kubeconfig") }

// Kubectl runs kubectl as the administrator, in the plane's namespace, and returns what it prints.
func (p *Plane) Kubectl(args ...string) ([]byte, error) {
	return p.NetNS.Run(filepath.Join(p.Bin, "kubectl"), append([]string{"--kubeconfig", p.Admin()}, args...)...)
}

// Get reads an object or a list from the API, as JSON, with the administrator's rights. If it does
// not exist, the error wraps fs.ErrNotExist.
func (p *Plane) Get(ctx context.Context, path string, into any) error {
	client, err := p.client(true)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	body, err := get(ctx, client, p.URL()+path)
	for errors.Is(err, errBusy) { // as it is for a second after a kind was defined
		select {
		case <-ctx.Done():
			return fmt.Errorf("read the API: %w", err)
		case <-time.After(200 * time.Millisecond):
		}
		body, err = get(ctx, client, p.URL()+path)
	}
	if err != nil {
		return fmt.Errorf("read the API: %w", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("read the API: %s: %w", path, err)
	}
	return nil
}

// healthy asks a component for its health; nil means that it is ready.
func (p *Plane) healthy(ctx context.Context, component string) error {
	url := map[string]string{
		Etcd: etcdURL + "/health", APIServer: p.URL() + "/readyz", Controller: controllerHealth, Scheduler: schedulerHealth,
	}[component]
	client, err := p.client(component == APIServer)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	_, err = get(ctx, client, url)
	return err
}

// errBusy is the error of a server that asks to be asked again.
var errBusy = errors.New("the API server is busy")

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("%s: %w", url, fs.ErrNotExist)
	case resp.StatusCode == http.StatusTooManyRequests:
		return nil, fmt.Errorf("%s: %w: %s", url, errBusy, strings.TrimSpace(string(body)))
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s: %s", url, resp.Status, strings.TrimSpace(string(body)))
	}
	return body, err
}

// client acts as the administrator. The other components have self-signed certificates.
func (p *Plane) client(verify bool) (*http.Client, error) {
	pem, err := os.ReadFile(p.path(caCert))
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(p.path(adminUser+".crt"), p.path(adminUser+".key"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DialContext:     p.Dial,
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}, InsecureSkipVerify: !verify},
	}}, nil
}
