package config

import (
	"context"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/world"
)

// TestBesideNftlb asks Debian's nftlb and Sluice the same, and compares what they answer byte by
// byte. Where they differ on purpose, see docs/nftlb.md.
func TestBesideNftlb(t *testing.T) {
	theirs := runNftlb(t)
	b := start(t, Options{Lenient: true})
	for _, test := range []struct{ verb, path, body string }{
		{"POST", "/farms", `{"farms":[{"name":"f1","virtual-addr":"10.9.0.100","virtual-ports":"80","mode":"dnat","backends":[{"name":"b1","ip-addr":"10.9.0.11","port":"80","state":"up"},{"name":"b2","ip-addr":"10.9.0.12","port":"80","state":"up","weight":"5"}]}]}`},
		{"GET", "/farms", ""},
		{"PUT", "/farms", `{"farms":[{"name":"f1","scheduler":"hash","sched-param":"srcip srcport","persistence":"srcip","persist-ttl":"50"}]}`},
		{"GET", "/farms/f1", ""},
		{"PUT", "/farms", `{"farms":[{"name":"f1","backends":[{"name":"b1","state":"down"}]}]}`},
		{"GET", "/farms/f1", ""},
		{"POST", "/policies", `{"policies":[{"name":"bl","type":"blacklist","elements":[{"data":"10.0.0.1"},{"data":"192.168.0.0/16"}]}]}`},
		{"GET", "/policies", ""},
		{"PUT", "/farms", `{"farms":[{"name":"f1","policies":[{"name":"bl"}]}]}`},
		{"GET", "/farms/f1", ""},
		{"PUT", "/farms", `{"farms":[{"name":"f1","new-rtlimit":"10/second","new-rtlimit-burst":"5","est-connlimit":"20","tcp-strict":"on","mark":"0x10"}]}`},
		{"GET", "/farms/f1", ""},
		{"PUT", "/farms", `{"farms":[{"name":"f1","newname":"f2"}]}`},
		{"GET", "/farms", ""},
		{"DELETE", "/farms/f2/backends/b2", ""},
		{"DELETE", "/farms/f2/backends/b2", ""},
		{"DELETE", "/farms/f2/policies/bl", ""},
		{"DELETE", "/policies/bl", ""},
		{"DELETE", "/policies/bl", ""},
		{"GET", "/farms/f2/sessions", ""},
		{"GET", "/addresses", ""},
		{"DELETE", "/farms/f2", ""},
		{"DELETE", "/farms/f2", ""},
		{"GET", "/farms", ""},
		{"POST", "/nope", "{}"},
		{"GET", "/nope", ""},
		{"GET", "/farms/zz/sessions", ""},
	} {
		want, wantCode := theirs(test.verb, test.path, test.body)
		code, got := b.ask(test.verb, test.path, test.body)
		if got != want || code != wantCode {
			t.Errorf("%s %s %s\nnftlb says %d: %s\nSluice says %d: %s", test.verb, test.path, test.body, wantCode, want, code, got)
		}
	}
}

// runNftlb runs nftlb in a namespace of its own, and returns what asks it.
func runNftlb(t *testing.T) func(verb, path, body string) (string, int) {
	t.Helper()
	program, err := exec.LookPath("nftlb")
	if err != nil {
		t.Skip("needs Debian's package nftlb")
	}
	h := world.NewHost(t, "nftlb")
	h.Address("lo", "10.9.0.100/24")
	cmd := exec.Command(program, "-k", "K", "-H", "127.0.0.1", "-P", "5555", "-l", "0")
	h.In(cmd.Start)
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
			err = h.Do(func() (err error) { c, err = new(net.Dialer).DialContext(ctx, network, addr); return err })
			return c, err
		},
	}}
	ask := func(verb, path, body string) (string, int, error) {
		r, err := http.NewRequestWithContext(t.Context(), verb, "http://127.0.0.1:5555"+path, strings.NewReader(body))
		if err != nil {
			return "", 0, err
		}
		r.Header.Set("Key", "K")
		answer, err := client.Do(r)
		if err != nil {
			return "", 0, err
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		return string(text), answer.StatusCode, err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, _, err := ask("GET", "/farms", ""); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("nftlb does not answer: ", err)
		}
	}
	return func(verb, path, body string) (string, int) {
		text, code, err := ask(verb, path, body)
		if err != nil {
			t.Fatalf("%s %s: %v", verb, path, err)
		}
		return text, code
	}
}
