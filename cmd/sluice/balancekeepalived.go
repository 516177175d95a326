package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sluice.dev/sluice/internal/balancer/pair"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/lib/replace"
)

// keepalivedFlags are the flags of 'sluice balance keepalived'.
type keepalivedFlags struct {
	pair.Config
	addresses []string
	config    string
	check     string
}

func newBalanceKeepalivedCommand() *cobra.Command {
	f := keepalivedFlags{Config: pair.Config{RunDir: "/run", Systemd: true}}
	cmd := &cobra.Command{
		Use:   "keepalived",
		Short: "Write the configuration of two balancers of which one stands by, for keepalived and conntrackd",
		Long: `Write the configuration of two balancers of which one stands by. keepalived moves the
virtual addresses to the other machine when one fails, and conntrackd its connections.
Run it on both machines, with --local and --peer the other way round.

It overwrites its own files, unless they were changed since or are links, and no others.`,
		Example: "  sluice balance keepalived --interface eth0 --local 10.0.0.2 --peer 10.0.0.3 --address 10.0.0.100/24 --address 10.1.0.1/24@eth1",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.register(cmd.Flags())
	for _, name := range []string{"interface", "local", "peer"} {
		_ = cmd.MarkFlagRequired(name)
	}
	return cmd
}

func (f *keepalivedFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.Interface, "interface", "", "the `device` on which both machines speak VRRP, and that gets the virtual addresses")
	fl.TextVar(&f.Local, "local", netip.Addr{}, "this machine's own `address` there")
	fl.TextVar(&f.Peer, "peer", netip.Addr{}, "the other machine's `address` there")
	fl.StringArrayVar(&f.addresses, "address", nil, "a virtual `address`, with the length of its network and @DEVICE if it is of another device, such as the gateway of the backends; may be repeated")
	fl.StringVar(&f.config, "config", "", "take virtual addresses also from the farms in this `file` of the balancer")
	fl.IntVar(&f.RouterID, "router-id", 51, "`number` from 1 to 255 that no others use in this network; the same on both machines")
	fl.IntVar(&f.Priority, "priority", 100, "`number` from 1 to 254; the machine with the higher one takes the addresses back when it returns, and of two equal ones none does")
	fl.StringVar(&f.check, "check", "", "`command` that fails if this machine's balancer does not work (default: this program's status)")
	fl.StringVar(&f.SyncInterface, "sync-interface", "", "the `device` on which connections are handed over, a cable of its own if possible (default: --interface)")
	fl.TextVar(&f.SyncLocal, "sync-address", netip.Addr{}, "this machine's own `address` there (default: --local)")
	fl.TextVar(&f.SyncPeer, "sync-peer", netip.Addr{}, "the other machine's `address` there (default: --peer)")
	fl.StringVar(&f.Dir, "out", "/etc/sluice/pair", "the `folder` for the files")
}

// run writes the files.
func (f *keepalivedFlags) run(cmd *cobra.Command) error {
	if err := f.complete(); err != nil {
		return err
	}
	files, err := pair.Files(f.Config)
	if err != nil {
		return cli.Usage(err)
	}
	for _, file := range files {
		if err := spare(filepath.Join(f.Dir, file.Name)); err != nil {
			return err
		}
	}
	for _, file := range files {
		name := filepath.Join(f.Dir, file.Name)
		if err := replace.File(name, file.Text, file.Mode); err != nil {
			return err
		}
		if err := printf(cmd.OutOrStdout(), "wrote %s\n", name); err != nil {
			return err
		}
	}
	return printf(cmd.OutOrStdout(), startPair, f.Dir, f.Dir)
}

// startPair is what remains to be done, for a folder given twice.
const startPair = `
Do the same on the other machine, with --local and --peer (--sync-address and --sync-peer) the other way round.
Then, on both:
  apt-get install keepalived conntrackd
  ln -s --backup=numbered %s/conntrackd.conf /etc/conntrackd/conntrackd.conf
  ln -s --backup=numbered %s/keepalived.conf /etc/keepalived/keepalived.conf
  systemctl enable conntrackd keepalived
  systemctl restart conntrackd keepalived
Files that were there before are beside the links then, as keepalived.conf.~1~ and so on.
The balancer runs on both, with the same configuration.
`

// complete fills in what was not said.
func (f *keepalivedFlags) complete() error {
	f.Addresses = nil
	for _, text := range f.addresses {
		a, err := pair.ParseAddress(text)
		if err != nil {
			return cli.Usage(fmt.Errorf("--address: %w", err))
		}
		f.Addresses = append(f.Addresses, a)
	}
	if f.config != "" {
		if err := f.fromConfig(); err != nil {
			return err
		}
	}
	if f.SyncInterface == "" {
		f.SyncInterface = f.Interface
	}
	if !f.SyncLocal.IsValid() && !f.SyncPeer.IsValid() {
		f.SyncLocal, f.SyncPeer = f.Local, f.Peer
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	f.Name = name
	if f.Check = f.check; f.Check == "" {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		f.Check = self + " status"
	}
	f.Dir, err = filepath.Abs(f.Dir)
	return err
}

// fromConfig adds the addresses of farms that were not given as flags.
func (f *keepalivedFlags) fromConfig() error {
	file, err := os.Open(f.config)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	found, err := pair.VirtualAddresses(file)
	if err != nil {
		return fmt.Errorf("--config %s: %w", f.config, err)
	}
	for _, a := range found {
		given := func(b pair.Address) bool { return a.Addr() == b.Addr() }
		if !slices.ContainsFunc(f.Addresses, given) {
			f.Addresses = append(f.Addresses, a)
		}
	}
	return nil
}

// spare fails if there is a file that is not as 'sluice balance keepalived' wrote it, or that has
// another name, by which keepalived may read it.
func spare(name string) error {
	is := func(what string) error {
		return fmt.Errorf("%s %s, and stays as it is: move it away, or choose another folder with --out", name, what)
	}
	info, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return is("is a link to another file")
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	stat, known := info.Sys().(*syscall.Stat_t)
	switch {
	case known && stat.Nlink > 1:
		return is("has another name (a hard link)")
	case pair.AsWritten(text):
		return nil
	case bytes.Contains(text, []byte(pair.By)):
		return is("was changed since 'sluice balance keepalived' wrote it, or is of an earlier version")
	}
	return is("was not written by 'sluice balance keepalived'")
}
