package main

import (
	"bytes"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/test/logtest"
)

// A random key is printed once the API is served, and not by a balancer that does not start.
func TestBalanceKey(t *testing.T) {
	t.Parallel()
	ns := nodeNS(t)
	dir := folder(t, map[string]string{"good.json": `{"farms": []}`, "bad.json": `{"farms": [{"name": "web", "mode": "no"}]}`})
	balancer := func(out *logtest.Log, flags ...string) *exec.Cmd {
		cmd := exec.Command(self, append([]string{"balance", "--set-sysctls=false", "--socket", filepath.Join(dir, "s.sock")}, flags...)...)
		cmd.Stdout = out
		return cmd
	}
	var taken net.Listener
	if err := ns.Do(func() (err error) { taken, err = net.Listen("tcp", "127.0.0.1:5556"); return err }); err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for what, flags := range map[string]string{
		"its address is taken":       "--config good.json --api 127.0.0.1:5556",
		"its configuration is wrong": "--config bad.json",
		"there is no certificate":    "--config good.json --tls-cert none.pem --tls-key none.pem",
		"its socket has no folder":   "--config good.json --socket good.json/s.sock",
	} {
		var out logtest.Log
		var stderr bytes.Buffer
		cmd := balancer(&out, strings.Fields(flags)...)
		cmd.Dir, cmd.Stderr = dir, &stderr
		if err := ns.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil || out.String() != "" {
			t.Errorf("%s: %v, printed %q; %s", what, err, out.String(), stderr.String())
		}
	}
	var out logtest.Log
	cmd := balancer(&out)
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	eventually(t, "the key is printed", func() bool { return strings.HasSuffix(out.String(), "\n") })
	err := ns.Do(func() error {
		c, err := net.Dial("tcp", "127.0.0.1:5555")
		if err == nil {
			err = c.Close()
		}
		return err
	})
	if key, found := strings.CutPrefix(out.String(), "Key: "); err != nil || !found || len(key) < 20 {
		t.Errorf("printed %q, and the API: %v", out.String(), err)
	}
}
