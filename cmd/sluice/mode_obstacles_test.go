package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/agent"
	"sluice.dev/sluice/internal/cli"
	"sluice.dev/sluice/internal/driver/userspace"
)

// tells waits until the status of an agent has a text.
func tells(t *testing.T, socket, text string) {
	t.Helper()
	eventually(t, "status says "+text, func() bool {
		_, out, _ := sluice(t, "status", "--socket", socket)
		return strings.Contains(strings.Join(strings.Fields(out), " "), text)
	})
}

// While another program holds the lock of xtables, for longer than six changes wait for it, status
// says so, and what was programmed works on. The changes of that time are carried out once the lock
// is free.
func TestLockOfXtablesHeld(t *testing.T) {
	wait := xtablesWait
	xtablesWait = time.Second
	t.Cleanup(func() { xtablesWait = wait })
	n := newModeNode(t)
	path := filepath.Join(t.TempDir(), "xtables.lock")
	t.Setenv("XTABLES_LOCKFILE", path)
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	named := func(name, addr string) string { return strings.NewReplacer("web", name, "10.0.0.1", addr).Replace(web) }
	write(t, n.dir, "gone.yaml", named("gone", "10.0.0.6"))
	socket := filepath.Join(t.TempDir(), "s.sock")
	stop := startAgent(t, n.dir, socket, n.Do, append(agentModes[1].flags, "--policy=false")...)
	inSync(t, socket)
	rules := func(text string) string { return lines(t, n.NS, []string{text}, "iptables-legacy-save") }
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	load := n.send("tcp", "udp")
	const former = ", {addresses: [10.1.0.2]}"
	write(t, n.dir, "web.yaml", strings.ReplaceAll(web, former, ""))
	write(t, n.dir, "dns.yaml", strings.ReplaceAll(datagrams, former, ""))
	write(t, n.dir, "late.yaml", strings.ReplaceAll(named("late", "10.0.0.7"), former, ""))
	if err := os.Remove(filepath.Join(n.dir, "gone.yaml")); err != nil {
		t.Fatal(err)
	}
	tells(t, socket, "another program holds the lock of xtables (/run/xtables.lock), also after 1s: end the program that holds it")
	eventually(t, "the agent has tried six times", func() bool {
		s, err := agent.NewClient(socket).Status(t.Context())
		return err == nil && !s.OK && s.Failure != nil && s.Failure.Attempts >= 6
	})
	if rules("10.0.0.7") != "" || rules("10.1.0.2") == "" {
		t.Error("rules have changed though the lock is held")
	}
	load.goOn(t, 20)
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent is in step again", func() bool {
		code, _, _ := sluice(t, "sync", "--socket", socket)
		return code == cli.ExitOK
	})
	if err := request(n.client, "tcp", "10.0.0.7:80"); err != nil {
		t.Errorf("a service that came meanwhile: %v", err)
	}
	if former := rules("10.0.0.6") + rules("10.1.0.2"); former != "" {
		t.Errorf("a service and an endpoint that went meanwhile are still there:\n%s", former)
	}
	load.goOn(t, 20)
	if failed := load.failures(); len(failed) > 0 {
		t.Errorf("%d requests failed:\n%s", len(failed), strings.Join(failed, "\n"))
	}
	stop()
	if code, out := inside(t, n.NS, "cleanup", "--socket", socket); code != cli.ExitOK {
		t.Error(out)
	}
}

// An ipset that is called as one of ours and is of another type is another program's: status says
// what to do, nothing is changed, also by cleanup, and all is served once the set is gone.
func TestIPSetOfAnotherType(t *testing.T) {
	t.Parallel()
	n := newModeNode(t)
	const theirs = "SLUICE-4-FRONTENDS"
	if out, err := n.Run("ipset", "create", theirs, "hash:net"); err != nil {
		t.Fatal(err, string(out))
	}
	socket := filepath.Join(t.TempDir(), "s.sock")
	stop := startAgent(t, n.dir, socket, n.Do, append(agentModes[1].flags, "--policy=false")...)
	tells(t, socket, "ipset "+theirs+" is another program's: it is of type hash:net, and not hash:ip,port of its family; remove it, or run that program without it")
	if left := leftIn("legacy")(t, n.NS) + strings.ReplaceAll(leftSets(t, n.NS), theirs+"\n", ""); left != "" {
		t.Errorf("there are\n%s", left)
	}
	if out, err := n.Run("ipset", "destroy", theirs); err != nil {
		t.Fatal(err, string(out))
	}
	eventually(t, "the agent serves", func() bool {
		code, _, _ := sluice(t, "sync", "--socket", socket)
		return code == cli.ExitOK
	})
	stop()
	if code, out := inside(t, n.NS, "cleanup", "--socket", socket); code != cli.ExitOK {
		t.Error(out)
	}
	if out, err := n.Run("ipset", "create", theirs, "hash:net"); err != nil {
		t.Fatal(err, string(out))
	}
	if code, out := inside(t, n.NS, "cleanup", "--socket", socket); code != cli.ExitOK || leftSets(t, n.NS) != theirs+"\n" {
		t.Errorf("cleanup ends with %d, and leaves %s: %s", code, leftSets(t, n.NS), out)
	}
}

// Where rules of other programs are in one variant of iptables, the agent chooses that one. Told to
// take the other, it does so, and says what that means; those rules stay.
func TestRulesInTheOtherVariant(t *testing.T) {
	t.Parallel()
	n := newModeNode(t)
	if out, err := n.Run("iptables-legacy", "-A", "FORWARD", "-s", "203.0.113.0/24", "-j", "DROP"); err != nil {
		t.Fatal(err, string(out))
	}
	for _, c := range []struct{ flags, says string }{
		{"--iptables-variant=", "iptables: variant chosen\" variant=legacy"},
		{"--iptables-variant=nft", "other programs have rules in the other variant of iptables"},
	} {
		socket := filepath.Join(t.TempDir(), "s.sock")
		log, stop := startAgentLogged(t, n.dir, socket, n.Do, "--mode", "iptables", c.flags, "--policy=false")
		inSync(t, socket)
		if !strings.Contains(log.String(), c.says) {
			t.Errorf("%s: the log does not say %q:\n%s", c.flags, c.says, log)
		}
		stop()
		if code, out := inside(t, n.NS, "cleanup", "--socket", socket); code != cli.ExitOK {
			t.Error(out)
		}
		if rules := lines(t, n.NS, []string{"203.0.113.0/24"}, "iptables-legacy-save"); rules == "" || leftAll(t, n.NS, agentMode{}) != "" {
			t.Errorf("afterwards there are %s\n%s", rules, leftAll(t, n.NS, agentMode{}))
		}
	}
}

// Where what one mode left cannot be removed, cleanup removes what the others did, and says what is
// left.
func TestCleanupGoesOnAfterAMode(t *testing.T) {
	n := newModeNode(t)
	ofProxy := fmt.Sprint("table ", userspace.RouteTable)
	for _, left := range []string{"nft add table inet sluice", "nft add table inet sluice-farms", "ipset create SLUICE-4-FRONTENDS hash:ip,port", "iptables-legacy -t nat -N SLUICE-SERVICES", "ip route add local default dev lo scope host " + ofProxy} {
		if out, err := n.Run("sh", "-c", left); err != nil {
			t.Fatal(err, string(out))
		}
	}
	programs := t.TempDir()
	for name, does := range map[string]string{"save": "printf '*nat\n:SLUICE-SERVICES - [0:0]\nCOMMIT\n'", "restore": "echo broken >&2; exit 1"} {
		write(t, programs, "iptables-legacy-"+name, "#!/bin/sh\n"+does+"\n")
		if err := os.Chmod(filepath.Join(programs, "iptables-legacy-"+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	code, said := inside(t, n.NS, "cleanup", "--socket", filepath.Join(t.TempDir(), "s.sock"))
	if code != cli.ExitError || !strings.Contains(said, "mode iptables: ") || !strings.Contains(said, "broken") || strings.Contains(said, "nothing of sluice is left") {
		t.Errorf("cleanup ends with %d: %s", code, said)
	}
	if out, err := n.Run("sh", "-c", "nft list tables; ip route show "+ofProxy+" 2>/dev/null"); strings.Contains(string(out), "sluice") || strings.Contains(string(out), "local") {
		t.Errorf("%v: cleanup says %s and leaves\n%s", err, said, out)
	}
}
