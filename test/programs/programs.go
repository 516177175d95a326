// Package programs has the programs of this project for the tests that start them, built once for
// all of them.
package programs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Env names a folder in which the programs are already, as `make test` has it.
const Env = "SLUICE_PROGRAMS"

// Folder returns the folder of sluice, sluice-bgp, sluice-cni and sluice-lab: the one that Env
// names, or bin of the checkout that contains the working directory, where it has `make build`
// bring them up to date.
func Folder() (string, error) { return folder() }

var folder = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(Env); dir != "" {
		return dir, nil
	}
	root, err := checkout()
	if err != nil {
		return "", err
	}
	return build(root)
})

// checkout returns the root of the sources.
func checkout() (string, error) {
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test", "programs")); err == nil {
			return dir, nil
		}
		dir = filepath.Dir(dir)
	}
	return "", errors.Join(errors.New("find Sluice's sources: run this in a checkout"), err)
}

// build brings the programs of a checkout up to date; processes that do so at the same time wait
// for each other.
func build(root string) (bin string, err error) {
	bin = filepath.Join(root, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Open(bin)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // which gives the lock back
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", bin, err)
	}
	if out, err := exec.Command("make", "-s", "-C", root, "build").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build Sluice's programs: %w\n%s", err, out)
	}
	return bin, nil
}

// Path returns the path of one of the programs.
func Path(t testing.TB, name string) string {
	t.Helper()
	dir, err := Folder()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}
