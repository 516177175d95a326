package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/foreign"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/policy/verdict"
	"sluice.dev/sluice/internal/preflight"
	services "sluice.dev/sluice/internal/services/compile"
)

// evil is text that controls a terminal, adds lines and columns, and turns the direction of
// writing. It is given as in YAML, in JSON and in Go.
const evil = `\e[2J\n\u009b31mOK\t\u202e`

const (
	evilGo   = "\x1b[2J\n\u009b31mOK\t\u202e"
	harmless = `\x1b[2J\n\u009b31mOK\t\u202e`
)

// clean fails the test if a text has unprintable characters, or another number of lines.
func clean(t *testing.T, what, text string, lines int) {
	t.Helper()
	if strings.ContainsAny(strings.ReplaceAll(text, "\n", ""), "\x1b\u009b\u202e\t\r\x07\x7f") {
		t.Errorf("%s prints %q", what, text)
	}
	if n := strings.Count(text, "\n"); lines > 0 && n != lines {
		t.Errorf("%s prints %d lines, want %d:\n%s", what, n, lines, text)
	}
	if !strings.Contains(text, harmless) {
		t.Errorf("%s does not print the name:\n%s", what, text)
	}
}

// Names and files can neither control the terminal of whoever asks, nor make lines that look like
// others.
func TestOutputIsPrintable(t *testing.T) {
	useKernel(t)
	web := strings.NewReplacer("name: web,", `name: "web`+evil+`",`, "service-name: web}", `service-name: "web`+evil+`"}`).Replace(web)
	bad := strings.Replace(bad, "name: bad,", `name: "bad`+evil+`",`, 1)
	policy := `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: "deny` + evil + `", namespace: shop}
spec: {podSelector: {}}
`
	dir := folder(t, map[string]string{"web.yaml": web, "bad" + evilGo + ".yaml": bad, "policy.yaml": policy})
	socket := filepath.Join(t.TempDir(), "s.sock")
	startAgent(t, dir, socket, here)
	code, _, stderr := sluice(t, "sync", "--socket", socket)
	if code != cli.ExitOK || stderr == "" {
		t.Errorf("sync exits with %d: %s", code, stderr)
	}
	clean(t, "sync", stderr, 0)
	_, stdout, _ := sluice(t, "status", "--socket", socket)
	clean(t, "status", stdout, 0)
	_, stdout, _ = sluice(t, "policies", "--socket", socket)
	clean(t, "policies", stdout, 2)
	_, _, stderr = sluice(t, "plan", "--manifests", dir, "--node", "node-a", "--policy=false")
	clean(t, "plan", stderr, 3)
	_, stdout, _ = sluice(t, "status", "--socket", socket, "-o", "json")
	if !strings.Contains(stdout, `"name": "web\u001b[2J\n`) {
		t.Errorf("status -o json:\n%s", stdout)
	}
}

func TestLinesArePrintable(t *testing.T) {
	var b bytes.Buffer
	party := verdict.Party{Object: model.Ref{Kind: model.PodKind, Name: model.Name{Namespace: "shop", Name: evilGo}}, Address: netip.MustParseAddr("10.1.0.1")}
	if err := printDrop(&b, "text", agent.Drop{Time: time.Now(), From: party, To: party, Says: evilGo}); err != nil {
		t.Fatal(err)
	}
	clean(t, "drops", b.String(), 1)
	b.Reset()
	servicesTable(&b, []services.ServiceView{{Namespace: "shop", Name: evilGo, Issues: []string{evilGo}}})
	clean(t, "services", strings.ReplaceAll(b.String(), "\t", ""), 2)
	b.Reset()
	evilRef := model.Ref{Kind: model.PodKind, Name: model.Name{Namespace: evilGo, Name: evilGo}}
	e := agent.Explanation{
		Connections: []verdict.Answer{{From: verdict.Party{Object: evilRef}, To: verdict.Party{Object: evilRef}, Paths: []verdict.Path{{
			Steps:   []verdict.Step{{Stage: "x", Of: evilRef, Text: evilGo}},
			Missing: []string{evilGo},
			Nearest: []verdict.Near{{Policy: evilRef, Rule: evilGo, Lacks: []string{evilGo}}},
		}}}},
		Warnings:  []string{evilGo},
		Obstacles: []foreign.Obstacle{{Seen: "rule with the comment " + evilGo, Do: evilGo}},
	}
	for _, all := range []bool{false, true} {
		b.Reset()
		explanation(&b, e, all)
		clean(t, "why", b.String(), 8)
	}
	b.Reset()
	preflight.Print(&b, []preflight.Result{{Check: "x", Seen: evilGo, Do: evilGo}})
	clean(t, "preflight", strings.ReplaceAll(b.String(), "\t", ""), 2)
	b.Reset()
	if err := printf(&b, "%s\n", fmt.Errorf("open %s", evilGo)); err != nil {
		t.Fatal(err)
	}
	clean(t, "an error", b.String(), 1)
}
