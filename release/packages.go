package main

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	nfiles "github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const (
	systemdDir = "deploy/systemd"
	// sbin is where packages have the programs. The unit of the checkout has them where somebody
	// puts them by hand.
	sbin, sbinByHand = "/usr/sbin/", "/usr/local/sbin/"
	docDir           = "/usr/share/doc/sluice/"
	homepage         = "https://sluice.dev"
)

// scripts are the packages' scripts.
//
//go:embed scripts
var scripts embed.FS

// units are what systemd runs, each with its file of variables; packages have them by these names.
var units = []string{"sluice", "sluice-balance"}

// packages writes a Debian and an RPM package for each architecture.
func (r *release) packages() error {
	if err := os.CopyFS(r.work, scripts); err != nil {
		return err
	}
	for _, name := range units {
		unit, err := os.ReadFile(filepath.Join(r.root, systemdDir, name+".service"))
		if err != nil {
			return err
		}
		if err := os.WriteFile(r.unit(name), packagedUnit(unit), 0o644); err != nil {
			return err
		}
	}
	for _, arch := range r.arches {
		for _, format := range []string{"deb", "rpm"} {
			packager, err := nfpm.Get(format)
			if err != nil {
				return err
			}
			info := r.info(arch)
			info.Scripts = r.scripts(format)
			if err := nfpm.PrepareForPackager(info, format); err != nil {
				return fmt.Errorf("package for %s: %w", arch, err)
			}
			var out bytes.Buffer
			if err := packager.Package(info, &out); err != nil {
				return fmt.Errorf("package %s for %s: %w", format, arch, err)
			}
			if err := r.write(packager.ConventionalFileName(info), out.Bytes()); err != nil {
				return err
			}
		}
	}
	return nil
}

// scripts returns where the scripts of a format are: each calls them with arguments of its own.
func (r *release) scripts(format string) nfpm.Scripts {
	at := func(name string) string { return filepath.Join(r.work, "scripts", format, name) }
	if format == "deb" {
		return nfpm.Scripts{PostInstall: at("postinst"), PreRemove: at("prerm"), PostRemove: at("postrm")}
	}
	return nfpm.Scripts{PostInstall: at("post"), PreRemove: at("preun"), PostRemove: at("postun")}
}

// unit is where a unit is as packages have it.
func (r *release) unit(name string) string { return filepath.Join(r.work, name+".service") }

// packagedUnit is the unit without the lines that say how to install it by hand.
func packagedUnit(unit []byte) []byte {
	var lines []string
	for line := range strings.Lines(string(unit)) {
		if !strings.HasPrefix(line, "#   ") {
			lines = append(lines, strings.ReplaceAll(line, sbinByHand, sbin))
		}
	}
	return []byte(strings.Join(lines, ""))
}

func (r *release) info(arch string) *nfpm.Info {
	var contents nfiles.Contents
	add := func(from, to string, mode os.FileMode, kind string) {
		contents = append(contents, &nfiles.Content{
			Source: from, Destination: to, Type: kind,
			FileInfo: &nfiles.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: r.time},
		})
	}
	for _, p := range programs {
		add(r.binary(arch, p), sbin+p, 0o755, nfiles.TypeFile)
	}
	add("", docDir, 0o755, nfiles.TypeDir)
	for _, f := range files {
		to := docDir + f
		if f == "LICENSE" {
			to = docDir + "copyright" // where Debian looks for it
		}
		add(filepath.Join(r.root, f), to, 0o644, nfiles.TypeFile)
	}
	add(r.notices(), docDir+"LICENSES", 0o644, nfiles.TypeFile)
	for _, name := range units {
		add(r.unit(name), "/usr/lib/systemd/system/"+name+".service", 0o644, nfiles.TypeFile)
	}
	add(filepath.Join(r.root, systemdDir, "sluice.env"), "/etc/default/sluice", 0o644, nfiles.TypeConfigNoReplace)
	// It has a key in it.
	add(filepath.Join(r.root, systemdDir, "sluice-balance.env"), "/etc/default/sluice-balance", 0o600, nfiles.TypeConfigNoReplace)
	add("", "/etc/sluice", 0o755, nfiles.TypeDir)
	add(filepath.Join(r.root, systemdDir, "farms.json"), "/etc/sluice/farms.json", 0o644, nfiles.TypeConfigNoReplace)

	info := &nfpm.Info{
		Name: "sluice", Arch: arch, Platform: "linux", Version: r.version, Release: "1",
		Section: "net", Priority: "optional", Maintainer: "The authors of Sluice <maintainers@sluice.dev>",
		Homepage: homepage, License: "Apache-2.0", MTime: r.time,
		Description: "Service load balancing, network policy and pod networking for Linux nodes\n" +
			"Kubernetes services, network policy and pod networks on each node, and a load\n" +
			"balancer without Kubernetes, at a cost that does not grow with the cluster.",
		Overridables: nfpm.Overridables{Contents: contents},
	}
	info.RPM.BuildHost = "sluice.dev" // not the machine's
	info.RPM.Summary = "Service load balancing, network policy and pod networking for Linux nodes"
	return info
}
