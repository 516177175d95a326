package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/pods/attach"
)

// delegate is an IPAM plugin that is another program, in CNI_PATH. (Package invoke of libcni calls
// such, too; it links an HTTP client, which is half as large as all of this program.)
type delegate struct {
	kind, version string
	stdin         []byte
	node          *netns.NS
}

func (d *delegate) add(*skel.CmdArgs) (l lease, err error) {
	got, err := d.call("ADD")
	var r *current.Result
	if err == nil {
		r, err = d.result(got)
	}
	if err == nil && len(r.IPs) == 0 {
		err = fault(types.ErrInternal, "the IPAM plugin "+d.kind+" gave no address", nil)
	}
	if err == nil {
		l = lease{r.IPs, r.Routes, r.DNS}
		err = d.unclaimed(l.addrs())
	}
	if err != nil {
		_, _ = d.call("DEL") // the first error says why
		return lease{}, err
	}
	return l, nil
}

// unclaimed fails if somebody else on the node has one of the addresses.
func (d *delegate) unclaimed(addrs []netip.Addr) error {
	for _, a := range addrs {
		if by := attach.Taken(d.node, a); by != "" {
			return fault(types.ErrTryAgainLater, fmt.Sprintf("the IPAM plugin %s gave %s, which %s has: exclude the address there, or have that give it up", d.kind, a, by), nil)
		}
	}
	return nil
}

func (d *delegate) del(*skel.CmdArgs) error {
	_, err := d.call("DEL")
	return err
}

func (d *delegate) check(*skel.CmdArgs, []netip.Addr) error {
	_, err := d.call("CHECK")
	return err
}

func (d *delegate) gc([]types.GCAttachment, func(types.GCAttachment) error) error {
	_, err := d.call("GC")
	return err
}

// status takes addresses for IPv4's: the plugin does not say.
func (d *delegate) status() (is4, is6 bool, err error) {
	_, err = d.call("STATUS")
	return true, false, err
}

// call runs the plugin with what this one was given, and returns what it prints.
func (d *delegate) call(verb string) ([]byte, error) {
	path, err := d.find()
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb) // the last one counts
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(d.stdin), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		said := &types.Error{}
		if json.Unmarshal(out.Bytes(), said) != nil || said.Msg == "" {
			said = fault(types.ErrInternal, strings.TrimSpace(out.String()), err)
		}
		said.Msg = "the IPAM plugin " + path + ": " + said.Msg
		return nil, said
	}
	return out.Bytes(), nil
}

// find finds the plugin's file.
func (d *delegate) find() (string, error) {
	if d.kind == "" {
		return "", fault(types.ErrInvalidNetworkConfig, `ipam.type is missing: it is "host-local", which is built in, or the name of an IPAM plugin`, nil)
	}
	for _, dir := range filepath.SplitList(os.Getenv("CNI_PATH")) {
		path := filepath.Join(dir, d.kind)
		fi, err := os.Stat(path)
		if err != nil || !fi.Mode().IsRegular() || filepath.Base(path) != d.kind {
			continue
		}
		if own, err := os.Stat("/proc/self/exe"); err == nil && os.SameFile(fi, own) { // it would call itself, and so on
			return "", fault(types.ErrInvalidNetworkConfig, fmt.Sprintf("ipam.type: %s is this plugin, which gives no addresses to others: name \"host-local\", which is built in, or an IPAM plugin", d.kind), nil)
		}
		return path, nil
	}
	return "", fault(types.ErrInvalidNetworkConfig, fmt.Sprintf("ipam.type: %s: no plugin of that name is in CNI_PATH=%s: install it there, or name another", d.kind, os.Getenv("CNI_PATH")), nil)
}

// result reads what the plugin prints. Where that does not say its version, it is that of the
// configuration.
func (d *delegate) result(text []byte) (*current.Result, error) {
	said := struct{ CNIVersion string }{d.version}
	err := json.Unmarshal(text, &said)
	var r types.Result
	if err == nil {
		r, err = create.Create(said.CNIVersion, text)
	}
	if err == nil && r == nil {
		err = errors.New("it is empty")
	}
	if err != nil {
		return nil, fault(types.ErrDecodingFailure, "read the result of the IPAM plugin "+d.kind, err)
	}
	return current.NewResultFromResult(r)
}
