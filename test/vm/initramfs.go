package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// modules are the kernel modules that the guest loads, with those that they depend on. Others are
// not available: the machine has modules of another kernel.
var modules = []string{
	"virtio_pci", "virtiofs", "overlay",
	"nf_tables", "nfnetlink", "nfnetlink_log", "nf_log_syslog", "nf_conntrack", "nf_conntrack_netlink", "nf_nat",
	"nft_chain_nat", "nft_ct", "nft_fib_inet", "nft_fib_ipv4", "nft_fib_ipv6", "nft_hash", "nft_limit", "nft_log",
	"nf_flow_table", "nf_flow_table_inet", "nft_flow_offload", "nft_fwd_netdev",
	"nft_masq", "nft_nat", "nft_numgen", "nft_objref", "nft_queue", "nfnetlink_queue", "nft_redir", "nft_reject_inet", "nft_reject_ipv4", "nft_reject_ipv6", "nft_socket", "nft_tproxy",
	"xfrm_user", // the netlink library opens this family too
	"sctp", "veth", "bridge", "br_netfilter", "dummy", "tun", "vxlan", "ipip", "sit", "wireguard", "8021q", "bonding", "ipvlan",
	"ip_vs", "ip_vs_rr", "ip_vs_wrr", "ip_vs_lc", "ip_vs_wlc", "ip_vs_lblc", "ip_vs_lblcr", "ip_vs_sh", "ip_vs_dh", "ip_vs_sed", "ip_vs_nq", "ip_vs_mh", "ip_vs_fo", "ip_vs_ovf",
	"ip_set", "ip_set_bitmap_port", "ip_set_hash_ipport",
	"ip_set_hash_ip", "ip_set_hash_ipportip", "ip_set_hash_ipportnet", "ip_set_hash_net",
	"iptable_nat", "iptable_filter", "iptable_raw", "iptable_mangle", "ip6table_nat", "ip6table_filter", "ip6table_raw", "ip6table_mangle", "nft_compat",
	"xt_comment", "xt_tcpudp", "xt_set", "xt_statistic", "xt_nat", "xt_MASQUERADE", "xt_addrtype", "xt_conntrack", "xt_mark", "xt_bpf", "xt_u32", "xt_CT", "ipt_REJECT", "ip6t_REJECT",
	"xt_NFLOG", "xt_LOG", "xt_limit", "xt_connlabel", "xt_multiport", "ipt_rpfilter", "ip6t_rpfilter",
}

// plan says what the guest has to do; the guest finds it in its initramfs.
type plan struct {
	Modules []string // files, in the order of loading
	Tests   []test
	Env     []string // of tests and programs
	Cache   string   // the folder of what labs keep
}

type test struct {
	Name   string // the package's directory in the module
	Binary string
	Dir    string // to run it in
	Args   []string
}

const (
	guestInit = "/init"
	guestPlan = "/plan.json"
)

// build builds the packages' test binaries in a folder, and says how the guest runs them.
func build(ctx context.Context, work, root string, dirs, args []string) (tests []test, err error) {
	for i, dir := range dirs {
		dir = filepath.Clean(dir)
		fmt.Printf("vm: building the tests of %s\n", dir)
		binary := filepath.Join(work, fmt.Sprint(i))
		if _, err := output(ctx, root, "go", "test", "-c", "-ldflags=-s -w", "-o", binary, "./"+dir); err != nil {
			return nil, err
		}
		if _, err := os.Stat(binary); err != nil {
			return nil, fmt.Errorf("package %s has no tests", dir)
		}
		t := test{Name: dir, Binary: binary, Dir: filepath.Join(root, dir), Args: args}
		if some := only[dir]; some != "" && !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-test.run=") }) {
			t.Args = append(slices.Clone(args), "-test.run="+some)
		}
		tests = append(tests, t)
	}
	return tests, nil
}

// pack writes the initramfs to a file: this program as the first process, the modules, and the
// plan.
func pack(ctx context.Context, file, work, root string, k *kernel, p plan) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	w := bufio.NewWriterSize(out, 1<<20)
	a := &archive{w: w, dirs: map[string]bool{}}

	self := filepath.Join(work, "init")
	if _, err := output(ctx, root, "go", "build", "-ldflags=-s -w", "-o", self, "./test/vm"); err != nil {
		return err
	}
	if err := a.copy(guestInit, self); err != nil {
		return err
	}
	files, err := k.order(modules)
	if err != nil {
		return err
	}
	for _, f := range files {
		name := "/modules/" + filepath.Base(f)
		if err := a.copy(name, f); err != nil {
			return err
		}
		p.Modules = append(p.Modules, name)
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return errors.Join(a.bytes(guestPlan, b), a.end(), w.Flush(), out.Close())
}

// archive writes a cpio archive in the "newc" format that the kernel unpacks (its
// Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w    io.Writer
	n    int64 // written so far
	ino  int
	dirs map[string]bool
}

const (
	modeFile = 0o100755
	modeDir  = 0o040755
)

func (a *archive) write(name string, mode int, size int64, data io.Reader) error {
	a.ino++
	name = strings.TrimPrefix(name, "/")
	// magic, ino, mode, uid, gid, nlink, mtime, size, device (two), device of a special
	// file (two), length of the name, checksum
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.ino, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0)
	n, err := io.WriteString(a.w, header+name+"\x00")
	a.n += int64(n)
	if err != nil {
		return err
	}
	if err := a.pad(); err != nil {
		return err
	}
	m, err := io.CopyN(a.w, data, size)
	a.n += m
	if err != nil {
		return fmt.Errorf("archive %s: %w", name, err)
	}
	return a.pad()
}

// pad fills up to the next multiple of four bytes.
func (a *archive) pad() error {
	n, err := a.w.Write(make([]byte, -a.n&3))
	a.n += int64(n)
	return err
}

func (a *archive) end() error { return a.write("TRAILER!!!", 0, 0, strings.NewReader("")) }

// directory adds a directory and those above it, once.
func (a *archive) directory(name string) error {
	if name == "/" || name == "." || a.dirs[name] {
		return nil
	}
	a.dirs[name] = true
	return errors.Join(a.directory(filepath.Dir(name)), a.write(name, modeDir, 0, strings.NewReader("")))
}

func (a *archive) bytes(name string, b []byte) error {
	return errors.Join(a.directory(filepath.Dir(name)), a.write(name, modeFile, int64(len(b)), strings.NewReader(string(b))))
}

// copy adds a file of this machine, following links.
func (a *archive) copy(name, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return errors.Join(a.directory(filepath.Dir(name)), a.write(name, modeFile, info.Size(), f))
}
