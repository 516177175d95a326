package main

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// service is a unit of the packages, with what its user writes before it is started.
type service struct {
	name    string
	config  map[string]string // in files that the package has
	objects map[string]string // in files of the user's own
	table   string
}

var services = []service{{
	name:   "sluice",
	config: map[string]string{"etc/default/sluice": `SLUICE_ARGS="--manifests /srv/manifests --node here"` + "\n"},
	objects: map[string]string{
		"srv/manifests/node.yaml": `{apiVersion: v1, kind: Node, metadata: {name: here}, status: {addresses: [{type: InternalIP, address: 127.0.0.1}]}}`,
	},
	table: "table inet sluice",
}, {
	name: "sluice-balance",
	config: map[string]string{"etc/sluice/farms.json": `{"farms": [{"name": "web", "virtual-addr": "192.0.2.80", "virtual-ports": "80", "mode": "dnat",
		"backends": [{"name": "red", "ip-addr": "10.20.0.11", "port": "8080"}]}]}`},
	table: "table inet sluice-farms",
}}

// Where a unit's starts are written to, and what it prints.
const started, printed = "/run/started", "/run/printed"

// install installs a version with a command, which gets the package as its last argument.
func (b *box) install(t *testing.T, r *release, pattern string, command ...string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.out, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	b.write(t, "srv/package", string(text))
	b.run(t, append(command, "/srv/package")...)
	if got := b.run(t, "sluice", "--version"); !strings.Contains(got, "v"+r.version) {
		t.Errorf("--version prints %q after v%s was installed", got, r.version)
	}
}

// stands checks whether a unit is enabled and active, in the words of systemctl.
func (b *box) stands(t *testing.T, unit, enabled, active string) {
	t.Helper()
	for verb, want := range map[string]string{"is-enabled": enabled, "is-active": active} {
		if got, _ := b.try("systemctl", verb, unit); got != want {
			t.Errorf("systemctl %s %s: %s, not %s", verb, unit, got, want)
		}
	}
}

// unknown checks that systemd neither runs a unit nor knows it.
func (b *box) unknown(t *testing.T, s service) {
	t.Helper()
	if got := b.run(t, "systemctl", "show", "--property", "LoadState,ActiveState", s.name); got != "LoadState=not-found\nActiveState=inactive" {
		t.Errorf("%s after the package was removed: %s", s.name, got)
	}
}

// starts checks how often the unit has been started, and waits until the kernel has what it wants.
func (b *box) starts(t *testing.T, s service, times int) {
	t.Helper()
	if got := strings.Count(b.read(t, started), "\n"); got != times {
		t.Errorf("%s was started %d times, not %d", s.name, got, times)
	}
	for {
		out, err := b.try("sluice", "sync", "--timeout", "10s")
		if err == nil {
			break
		}
		if got, _ := b.try("systemctl", "is-active", s.name); got != "active" && got != "activating" {
			t.Fatalf("%s is %s: %s\n%s", s.name, got, out, b.read(t, printed))
		}
		time.Sleep(100 * time.Millisecond)
	}
	if !strings.Contains(b.tables(t), s.table) {
		t.Errorf("no %s among %s", s.table, b.tables(t))
	}
}

// upgraded installs a version, has the unit run, and upgrades to the next one: nothing is started
// that is not asked for, what runs is restarted once, and what the user wrote stays. It returns the
// files that were there before.
func (b *box) upgraded(t *testing.T, s service, install func(*release), before, after *release) map[string]bool {
	t.Helper()
	had := b.files(t)
	install(before)
	for _, name := range units {
		b.stands(t, name, "disabled", "inactive")
	}
	for name, text := range s.objects {
		b.write(t, name, text)
	}
	for name, text := range s.config {
		if !b.files(t)[name] {
			t.Errorf("the package has no %s", name)
		}
		b.write(t, name, text)
	}
	b.write(t, "run/systemd/system/"+s.name+".service.d/watched.conf",
		"[Service]\nExecStartPre=+/bin/sh -c 'echo started >>"+started+"'\nStandardOutput=append:"+printed+"\nStandardError=inherit\n")
	b.write(t, started, "")
	b.run(t, "systemctl", "daemon-reload")
	if out, err := b.try("systemctl", "enable", "--now", s.name); err != nil {
		t.Fatalf("%s\n%s", out, b.read(t, printed))
	}
	b.starts(t, s, 1)

	install(after)
	b.starts(t, s, 2)
	for _, name := range units {
		if name == s.name {
			b.stands(t, name, "enabled", "active")
		} else {
			b.stands(t, name, "disabled", "inactive")
		}
	}
	pid := b.run(t, "systemctl", "show", "--property", "MainPID", "--value", s.name)
	if got := b.run(t, "/proc/"+pid+"/exe", "--version"); !strings.Contains(got, "v"+after.version) {
		t.Errorf("%s runs %s after the upgrade", s.name, got)
	}
	for name, text := range s.config {
		if got := b.read(t, name); got != text {
			t.Errorf("the upgrade changed /%s: %s", name, got)
		}
	}
	return had
}

// gone checks that nothing is left in the kernel, nor any file that was not there, except for some.
func (b *box) gone(t *testing.T, had map[string]bool, but ...string) {
	t.Helper()
	if left := b.tables(t); left != "" {
		t.Errorf("tables are left: %s", left)
	}
	for name := range b.files(t) {
		if !had[name] && !slices.Contains(but, name) {
			t.Errorf("/%s is left", name)
		}
	}
}

// checkDeb has a Debian package do what Debian's policy asks for.
func (b *box) checkDeb(t *testing.T, s service, before, after *release) {
	install := func(r *release) { b.install(t, r, "*_"+runtime.GOARCH+".deb", "dpkg", "--install") }
	had := b.upgraded(t, s, install, before, after)
	b.run(t, "dpkg", "--remove", "sluice")
	b.unknown(t, s)
	if left := b.tables(t); left != "" {
		t.Errorf("tables are left: %s", left)
	}
	for name, text := range s.config {
		if got := b.read(t, name); got != text {
			t.Errorf("removing the package changed /%s: %s", name, got)
		}
	}
	// Configuration outlives a removal, and whether a unit is enabled is some of it.
	install(after)
	b.stands(t, s.name, "enabled", "inactive")
	b.run(t, "dpkg", "--purge", "sluice")
	b.gone(t, had)
}

// checkRPM has an RPM package do what Fedora's guidelines ask for. rpm checks only what is in its
// own database, which in a Debian has no package that a requirement could be met by.
func (b *box) checkRPM(t *testing.T, s service, before, after *release) {
	install := func(r *release) {
		b.install(t, r, "*."+architectures[runtime.GOARCH].rpm+".rpm", "rpm", "--upgrade", "--nodeps")
	}
	had := b.upgraded(t, s, install, before, after)
	b.run(t, "rpm", "--erase", "sluice")
	b.unknown(t, s)
	// rpm keeps what somebody changed, beside it, and what the program wrote.
	saved := []string{"etc/sluice", "var/lib/sluice"}
	for name := range s.config {
		saved = append(saved, name+".rpmsave")
	}
	b.gone(t, had, saved...)
	for _, name := range saved {
		if err := os.RemoveAll(b.path(name)); err != nil {
			t.Error(err)
		}
	}
}
