package health

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestCommand(t *testing.T) {
	t.Setenv("SLUICE_SECRET", "key")
	at := netip.MustParseAddrPort("[2001:db8::1]:80")
	sh := func(script string) Check { return Check{Type: Command, Command: []string{"sh", "-c", script}} }
	b := run(t, Options{})
	for _, test := range []struct {
		Check
		up  bool
		why string
	}{
		{sh("exit 0"), true, "exit status 0"},
		{sh("echo fine; echo more"), true, "exit status 0: fine"},
		{sh("echo disk full >&2; exit 2"), false, "exit status 2: disk full"},
		{sh("kill -TERM $$"), false, "signal: terminated"},
		{sh("echo $SLUICE_FARM $SLUICE_ADDRESS $SLUICE_PORT $SLUICE_SECRET"), true, "exit status 0: farm 2001:db8::1 80"},
		{sh("echo $SLUICE_BACKEND"), true, "exit status 0: " + t.Name()},
		{quick(sh("sleep 60")), false, "no answer within 100ms"},
		{sh("sleep 60 & exit 3"), false, "exit status 3"},
		{sh("head -c 10000000 /dev/zero | tr '\\0' x"), true, "exit status 0: " + strings.Repeat("x", maxReason) + "…"},
		{sh(`printf '\033[31mred\377'`), true, "exit status 0: [31mred"},
		{Check{Type: Command, Command: []string{"/nonexistent"}}, false, "no such file or directory"},
		{Check{Type: Command, Command: []string{"sluice-no-such-program"}}, false,
			`exec: "sluice-no-such-program": executable file not found in $PATH`},
	} {
		b.want(test.Check, at, test.up, test.why)
	}
}

// A command that is given up leaves no process, wherever its children are.
func TestCommandLeavesNothing(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	b := run(t, Options{})
	script := "sleep 600 & echo $! >>" + pids + "; echo $$ >>" + pids + "; wait"
	b.want(quick(Check{Type: Command, Command: []string{"sh", "-c", script}}), netip.AddrPort{}, false, "no answer within 100ms")
	b.Set(map[Key]*Target{{"farm", t.Name()}: nil})
	text, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		await(t, "process "+field+" to end", func() bool { return ended(pid) })
	}
}

// ended reports whether a process is gone, or nothing but its entry is left.
func ended(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, state, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(state, "Z") || syscall.Kill(pid, 0) != nil
}

// await waits for a condition.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
