package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Folder returns the folder NAME-KEY of the user's cache, and makes it if it is missing. Until the
// caller calls release, other processes that ask for the same folder wait.
func Folder(ctx context.Context, name, key string) (dir string, release func(), err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", nil, err
	}
	dir = filepath.Join(cache, "sluice", name+"-"+key)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	release, err = lockFolder(ctx, dir)
	return dir, release, err
}

// Newest returns the folder NAME-KEY of the last complete build, or "". last is the file that a
// build finishes last.
func Newest(name, last string) (newest string) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	dirs, _ := filepath.Glob(filepath.Join(cache, "sluice", name+"-*")) // the pattern is well-formed
	var when time.Time
	for _, dir := range dirs {
		info, err := os.Stat(filepath.Join(dir, last))
		if err == nil && info.ModTime().After(when) {
			newest, when = dir, info.ModTime()
		}
	}
	return newest
}

// lockFolder waits until no other process builds into the folder.
func lockFolder(ctx context.Context, dir string) (release func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another process that builds: %w", ctx.Err()), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
