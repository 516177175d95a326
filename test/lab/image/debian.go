package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// unpacked are the newest packages of a release, unpacked only: their scripts would want more
// packages than the programs do.
type unpacked struct {
	release  string
	packages []string
	hooks    []string // shell commands that mmdebstrap runs with the folder of the files as first argument
	under    string   // the folder for them, with a slash; "" for the root
}

// unpackedLayers are the layers of such packages.
var unpackedLayers = map[string]unpacked{
	// nft of Debian 12 crashes where it lists tables that kube-proxy has made by nft of Debian 13.
	"debian": {
		release: "bookworm",
		packages: []string{
			"apache2-bin", "bash", "bind9-dnsutils", "busybox", "ca-certificates", "conntrack", "coreutils", "curl",
			"debianutils", "diffutils", "ethtool", "findutils", "grep", "gzip", "hostname", "iperf", "iperf3", "iproute2",
			"iptables", "iputils-ping", "jq", "less", "libc-bin", "mawk", "mtr-tiny", "netcat-openbsd", "nftables",
			"nginx-light", "procps", "redis-server", "sed", "socat", "tar", "tcpdump", "traceroute", "util-linux",
			"vim-tiny", "wget",
		},
		hooks: []string{
			`--extract-hook=chroot "$1" /sbin/ldconfig`,
			`--extract-hook=cat "$1"/usr/share/ca-certificates/mozilla/*.crt > "$1/etc/ssl/certs/ca-certificates.crt"`,
			`--extract-hook=list=$(chroot "$1" /bin/busybox --list) && mkdir -p "$1/opt/busybox" && for a in $list; do ln -s /bin/busybox "$1/opt/busybox/$a" || exit; done`,
		},
	},
	// Kubernetes' tests read what iperf prints since its version 2.2.
	"iperf": {release: "trixie", packages: []string{"iperf"}, under: "opt/iperf/"},
}

// mergedUsr makes the links that Debian's packages take for there.
const mergedUsr = `--setup-hook=for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d" && ln -s "usr/$d" "$1/$d" || exit; done`

// leftOut are the beginnings of paths that take space, and that nothing needs which runs here.
var leftOut = []string{
	"boot/", "dev/", "etc/apt/", "etc/cron", "etc/init.d/", "etc/logrotate.d/", "etc/rc", "etc/ufw/", "etc/hostname", "etc/resolv.conf",
	"usr/bin/perl", "usr/bin/redis-benchmark",
	"usr/lib/locale/", "usr/lib/systemd/", "usr/lib/udev/", "usr/lib/*/gconv/", "usr/lib/*/libperl.so", "usr/lib/*/perl", "usr/sbin/nologin.",
	"usr/share/bash-completion/", "usr/share/bug/", "usr/share/ca-certificates/", "usr/share/doc", "usr/share/gdb/", "usr/share/i18n/", "usr/share/icons/", "usr/share/info/",
	"usr/share/lintian/", "usr/share/locale/", "usr/share/man/", "usr/share/perl", "usr/share/pixmaps/", "usr/share/vim/vim", "usr/share/zsh/",
	"var/cache/", "var/lib/apt/", "var/lib/dpkg/", "var/log/apt/",
}

// write writes the files of the packages as a layer. It needs mmdebstrap, and the packages'
// repository.
func (u unpacked) write(ctx context.Context, w *tar.Writer) (err error) {
	args := append([]string{"--quiet", "--variant=extract", "--format=tar", "--include=" + strings.Join(u.packages, ","), mergedUsr}, u.hooks...)
	cmd := exec.CommandContext(ctx, "mmdebstrap", append(args, u.release, "-")...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("mmdebstrap unpacks what images consist of, and is not in PATH: apt-get install mmdebstrap: %w", err)
		}
		return err
	}
	failed := copyFiles(w, out, u.under)
	if failed != nil {
		_, _ = io.Copy(io.Discard, out) // or it would wait for us
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("mmdebstrap: %w\n%s", err, errs.Bytes())
	}
	return failed
}

// copyFiles copies an archive into a folder, without what is left out, and without anything that
// depends on when and by whom it was made.
func copyFiles(w *tar.Writer, from io.Reader, under string) error {
	files := tar.NewReader(from)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(h.Name, "./")
		if name == "" || isLeftOut(name) {
			continue
		}
		link := strings.TrimPrefix(h.Linkname, "./")
		if h.Typeflag == tar.TypeLink {
			link = under + link
		}
		err = w.WriteHeader(&tar.Header{
			Typeflag: h.Typeflag, Name: under + name, Linkname: link, Size: h.Size, Mode: h.Mode,
			Uid: h.Uid, Gid: h.Gid, ModTime: epoch, Format: tar.FormatGNU,
		})
		if err == nil {
			_, err = io.Copy(w, files)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

// isLeftOut reports whether a path begins as one of leftOut does, in which * is any one name.
// The folder itself remains.
func isLeftOut(name string) bool {
	for _, begin := range leftOut {
		rest := name
		before, after, any := strings.Cut(begin, "*/")
		rest, ok := strings.CutPrefix(rest, before)
		if ok && any {
			_, rest, ok = strings.Cut(rest, "/")
			ok = ok && strings.HasPrefix(rest, after)
			rest = strings.TrimPrefix(rest, after)
		}
		if ok && (rest != "" || !strings.HasSuffix(begin, "/")) {
			return true
		}
	}
	return false
}
