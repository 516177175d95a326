// Package replace writes files that others may read at any time.
package replace

import (
	"errors"
	"os"
	"path/filepath"
)

// Unfinished is the pattern of the names that files have until they are in their place.
const Unfinished = ".sluice-*"

// File writes a file beside the old one and puts it in its place. It makes the folder where there
// is none.
func File(path string, data []byte, mode os.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), Unfinished)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
