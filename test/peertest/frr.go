package peertest

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"sluice.dev/sluice/test/netns"
)

// frrDir is where Debian has FRR's daemons.
const frrDir = "/usr/lib/frr"

// FRR is FRR's bgpd with its zebra, which puts what bgpd learns into the namespace's routes.
type FRR struct {
	ns          *netns.NS
	dir         string
	zebra, bgpd *daemon
}

// StartFRR starts FRR in a namespace with a bgpd.conf. dir is an empty folder, whose path is short,
// as there are sockets in it. What was started is ended by Stop.
func StartFRR(ctx context.Context, ns *netns.NS, dir, conf string) (*FRR, error) {
	// Its daemons run as a user of their own.
	if err := errors.Join(os.Chmod(dir, 0o777), write(filepath.Join(dir, "zebra.conf"), "")); err != nil {
		return nil, err
	}
	f := &FRR{ns: ns, dir: dir}
	var err error
	if f.zebra, err = f.start(ctx, "zebra"); err != nil {
		return nil, err
	}
	if err := f.StartBGP(ctx, conf); err != nil {
		return nil, errors.Join(err, f.zebra.kill())
	}
	return f, nil
}

func (f *FRR) start(ctx context.Context, name string) (*daemon, error) {
	socket := filepath.Join(f.dir, name+".vty")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return start(ctx, f.ns, filepath.Join(f.dir, name+".log"), socket, filepath.Join(frrDir, name),
		"-P", "0", "-f", filepath.Join(f.dir, name+".conf"), "-i", filepath.Join(f.dir, name+".pid"),
		"-z", filepath.Join(f.dir, "zserv"), "--vty_socket", f.dir, "--log", "stdout", "--log-level", "debugging")
}

// StartBGP starts bgpd again, after KillBGP.
func (f *FRR) StartBGP(ctx context.Context, conf string) error {
	err := write(filepath.Join(f.dir, "bgpd.conf"), conf)
	if err == nil {
		f.bgpd, err = f.start(ctx, "bgpd")
	}
	return err
}

// KillBGP ends bgpd as a crash does.
func (f *FRR) KillBGP() error { return f.bgpd.kill() }

// Stop ends all.
func (f *FRR) Stop() error { return errors.Join(f.bgpd.kill(), f.zebra.stop()) }

// Run runs commands of vtysh: "show bgp ipv4 unicast json", or "configure terminal" and what
// follows.
func (f *FRR) Run(commands ...string) (string, error) {
	args := []string{"--vty_socket", f.dir, "-d", "bgpd"}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	return run("vtysh", args...)
}

// Log is what bgpd has logged.
func (f *FRR) Log() string {
	said, _ := os.ReadFile(f.bgpd.log)
	return string(said)
}
