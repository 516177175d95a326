// Package install puts the CNI plugin where container runtimes look for it: its binary, and a
// configuration that has the plugin attach all pods.
package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/lib/replace"
	"sluice.dev/sluice/internal/model"
)

// Where runtimes look, unless they are configured otherwise.
const (
	BinDir  = "/opt/cni/bin"
	ConfDir = "/etc/cni/net.d"
)

const (
	program = "sluice-cni"
	// file comes before what other networks install: runtimes take the first by name.
	file = "05-sluice.conflist"
)

// Options are what is installed, and where.
type Options struct {
	Binary          string // of sluice-cni
	BinDir, ConfDir string
	PodCIDRs        []netip.Prefix // that the node's pods get addresses of
	MTU             int            // of pods; 0: that of the underlay
	Socket          string         // of the agent; "": none is asked
}

type object = map[string]any

// chained are the reference plugins that come after this one where the folder of plugins has them,
// with the capability for which runtimes call them.
var chained = []object{
	{"type": "portmap", "capabilities": object{"portMappings": true}, "snat": true},
	{"type": "bandwidth", "capabilities": object{"bandwidth": true}},
}

// Config returns the network's configuration. Newer runtimes take the highest version that all of
// its plugins have.
func (o *Options) Config() ([]byte, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	own := object{"type": program, "capabilities": object{"ips": true, "mac": true}, "ipam": object{"type": "host-local", "podCIDRs": o.PodCIDRs}}
	if o.MTU != 0 {
		own["mtu"] = o.MTU
	}
	if o.Socket != "" {
		own["agent"] = object{"socket": o.Socket}
	}
	plugins, versions := []object{own}, []string{"0.4.0", "1.0.0", newest}
	for _, plugin := range chained {
		path := filepath.Join(o.BinDir, plugin["type"].(string))
		if _, err := os.Stat(path); err != nil {
			continue
		}
		plugins = append(plugins, plugin)
		if !slices.Contains(versionsOf(path), newest) {
			versions = slices.DeleteFunc(versions, func(v string) bool { return v == newest })
		}
	}
	// Runtimes that do not know cniVersions take cniVersion, and not all of them know 1.1.0.
	text, err := json.MarshalIndent(object{"cniVersion": "1.0.0", "cniVersions": versions, "name": "sluice", "plugins": plugins}, "", "  ")
	return append(text, '\n'), err
}

// check refuses what the plugin would, each time that a pod starts.
func (o *Options) check() error {
	if len(o.PodCIDRs) == 0 {
		return errors.New("no pod CIDRs are given")
	}
	least := 576 // of a host with IPv4, which takes datagrams of that size
	for i, p := range o.PodCIDRs {
		if p.Bits() > p.Addr().BitLen()-2 {
			return fmt.Errorf("pod CIDR %s is too small: a gateway and a pod take /%d", p, p.Addr().BitLen()-2)
		}
		if err := model.CheckPodCIDR(p); err != nil {
			return fmt.Errorf("pod CIDR %w", err)
		}
		for _, other := range o.PodCIDRs[:i] {
			if p.Overlaps(other) {
				return fmt.Errorf("pod CIDRs %s and %s overlap: leave out one", other, p)
			}
		}
		if p.Addr().Is6() {
			least = 1280
		}
	}
	if o.MTU != 0 && (o.MTU < least || o.MTU > 65535) {
		return fmt.Errorf("MTU %d: it is %d to 65535 with these pod CIDRs; leave it out for that of the way to other nodes", o.MTU, least)
	}
	return nil
}

// newest is the version of the specification that not all plugins have that are in use.
const newest = "1.1.0"

// versionsOf asks a plugin which versions of the specification it has; nil: it does not say.
func versionsOf(path string) []string {
	cmd := exec.Command(path)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.0.0"}`)
	text, err := cmd.Output()
	var said struct{ SupportedVersions []string }
	if err != nil || json.Unmarshal(text, &said) != nil {
		return nil
	}
	return said.SupportedVersions
}

// Run installs the binary, then the configuration: a runtime that finds the one finds the other. It
// returns the files that it wrote, none where they are there already. Each is whole at any time.
func Run(o Options) (written []string, err error) {
	binary, err := os.ReadFile(o.Binary)
	if err != nil {
		return nil, fmt.Errorf("read the plugin: name it with --plugin: %w", err)
	}
	conf, err := o.Config()
	if err != nil {
		return nil, fmt.Errorf("configure the network: %w", err)
	}
	for _, f := range []struct {
		path string
		data []byte
		mode os.FileMode
	}{{filepath.Join(o.BinDir, program), binary, 0o755}, {filepath.Join(o.ConfDir, file), conf, 0o644}} {
		if has, err := os.ReadFile(f.path); err == nil && bytes.Equal(has, f.data) {
			continue
		}
		if err := replace.File(f.path, f.data, f.mode); err != nil {
			return written, fmt.Errorf("install %s: %w", f.path, err)
		}
		written = append(written, f.path)
	}
	return written, nil
}

// Asks returns the socket of the agent that the installed configuration has the plugin ask; ""
// where there is none of either.
func Asks(confDir string) string {
	var conf struct {
		Plugins []struct{ Agent struct{ Socket string } }
	}
	text, err := os.ReadFile(filepath.Join(confDir, file))
	if err != nil || json.Unmarshal(text, &conf) != nil || len(conf.Plugins) == 0 {
		return ""
	}
	return conf.Plugins[0].Agent.Socket
}

// Before lists the configurations in a folder that runtimes take instead of this one.
func Before(folder string) (paths []string) {
	entries, _ := os.ReadDir(folder) // sorted; a folder that cannot be read has been named already
	for _, e := range entries {
		if kind := filepath.Ext(e.Name()); e.Name() < file && slices.Contains([]string{".conf", ".conflist", ".json"}, kind) {
			paths = append(paths, filepath.Join(folder, e.Name()))
		}
	}
	return paths
}

// Remove removes what Run installed, the configuration first, and what is left of a Run that was
// killed. What is not there is no error. Pods keep their network; the runtime can neither add nor
// remove any by this plugin afterwards.
func Remove(o Options) error {
	paths := []string{filepath.Join(o.ConfDir, file), filepath.Join(o.BinDir, program)}
	for _, dir := range []string{o.ConfDir, o.BinDir} {
		left, err := filepath.Glob(filepath.Join(dir, replace.Unfinished))
		if err != nil {
			return fmt.Errorf("remove the plugin: %w", err)
		}
		paths = append(paths, left...)
	}
	for _, path := range paths {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the plugin: %w", err)
		}
	}
	return nil
}
