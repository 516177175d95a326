// Package sysctl sets the kernel parameters that the agent needs in its network namespace, records
// their former values, and restores them.
//
// The record is a small file beside the agent's socket, one for each network namespace: only that
// namespace reads, writes or removes it. The next boot removes the files and resets the parameters.
// A namespace that ends before leaves its file to the next that gets its inode, so that there are
// never more files than there were namespaces at one time.
package sysctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"sluice.dev/sluice/internal/kernel/netns"
	"sluice.dev/sluice/internal/lib/replace"
)

// ErrNotNoted is wrapped where parameters were set whose former values could not be noted.
var ErrNotNoted = errors.New("former values are not noted, and 'sluice cleanup' will not restore them")

// Override is a parameter that was given another value.
type Override struct {
	Key string `json:"key"` // with dots: "net.ipv4.ip_forward"
	Was string `json:"was"` // before we first set it
	Now string `json:"now"` // what we set it to
}

// String returns "net.ipv4.ip_forward = 1 (was 0)".
func (c Override) String() string { return fmt.Sprintf("%s = %s (was %s)", c.Key, c.Now, c.Was) }

// Read returns a parameter's value in the calling thread's network namespace, with
// its fields separated by single spaces. A parameter that this kernel does not have
// gives an error that wraps os.ErrNotExist.
func Read(key string) (string, error) {
	b, err := os.ReadFile(path(key))
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return normal(string(b)), nil
}

// Number is Read for a parameter that is a number.
func Number(key string) (int, error) {
	text, err := Read(key)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// Set gives each parameter of want its value in the calling thread's network namespace and notes
// the former values in the record of that namespace before it does. It returns what it changed now,
// sorted by key; a value that is already right is neither changed nor noted. The first former value
// is kept over later calls and restarts. One parameter's failure does not keep the others from
// being set, nor does a record that cannot be read or written, as on a full disk: Restore does not
// know those values then, and the error, which wraps ErrNotNoted, says so.
//
// The caller must be the only one of its network namespace to use record.
func Set(record string, want map[string]string) ([]Override, error) {
	old, noted := List(record) // nil: they are, or can be
	var changes []Override
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(want)) {
		now, err := Read(key)
		if err != nil {
			errs = append(errs, err)
		} else if value := normal(want[key]); now != value {
			changes = append(changes, Override{Key: key, Was: now, Now: value})
		}
	}
	if len(changes) == 0 {
		return nil, errors.Join(append(errs, noted)...)
	}
	// Noted first: if we die before the last write, Restore still knows all of it,
	// and leaves alone what was never set.
	if noted == nil {
		noted = save(record, merge(old, changes))
	}
	if noted != nil {
		errs = append(errs, fmt.Errorf("%w: %w", ErrNotNoted, noted))
	}
	done := changes[:0]
	for _, c := range changes {
		if err := write(c.Key, c.Now); err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, c)
	}
	return done, errors.Join(errs...)
}

// List returns what the record of the calling thread's network namespace holds, sorted by key;
// nothing where it has none.
func List(record string) ([]Override, error) {
	changes, _, err := read(record)
	return changes, err
}

// read returns what is noted, and the files that hold it: the namespace's own, or the one of
// releases that had one for all namespaces, or both. Its own counts.
func read(record string) (changes []Override, files []string, err error) {
	own, err := netns.Own(record)
	if err != nil {
		return nil, nil, fmt.Errorf("read record of sysctls: %w", err)
	}
	scope, err := netns.Scope()
	if err != nil {
		return nil, nil, fmt.Errorf("read record of sysctls: %w", err)
	}
	for _, path := range []string{record, own} {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read record of sysctls: %w", err)
		}
		var f file
		if err := json.Unmarshal(b, &f); err != nil {
			return nil, nil, fmt.Errorf("parse record of sysctls %s: %w", path, err)
		}
		if f.Scope == scope {
			changes, files = f.Changes, append(files, path)
		}
	}
	return changes, files, nil
}

// Restore gives each parameter in the record its former value, unless someone
// else has changed it since, and removes the record. It returns what it put back.
// After an error the record stays, so that Restore can be tried again.
func Restore(record string) ([]Override, error) {
	noted, files, err := read(record)
	if err != nil {
		return nil, err
	}
	var done []Override
	var errs []error
	for _, c := range noted {
		now, err := Read(c.Key)
		if errors.Is(err, os.ErrNotExist) || err == nil && now != c.Now {
			continue // the interface is gone, or the value is someone else's by now
		}
		if err == nil {
			err = write(c.Key, c.Was)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, Override{Key: c.Key, Was: c.Now, Now: c.Was})
	}
	if len(errs) > 0 {
		return done, errors.Join(errs...)
	}
	for _, path := range files {
		if err := os.Remove(path); err != nil {
			return done, fmt.Errorf("remove record of sysctls: %w", err)
		}
	}
	return done, nil
}

// file is the record's form.
type file struct {
	Scope   string     `json:"scope"` // netns.Scope
	Changes []Override `json:"changes"`
}

// merge adds changes to those noted before: the first former value and the last
// set value count.
func merge(old, changes []Override) []Override {
	byKey := make(map[string]Override, len(old)+len(changes))
	for _, c := range old {
		byKey[c.Key] = c
	}
	for _, c := range changes {
		if first, ok := byKey[c.Key]; ok {
			c.Was = first.Was
		}
		byKey[c.Key] = c
	}
	merged := slices.Collect(maps.Values(byKey))
	slices.SortFunc(merged, func(a, b Override) int { return strings.Compare(a.Key, b.Key) })
	return merged
}

// save writes the record whole or not at all.
func save(record string, changes []Override) error {
	own, err := netns.Own(record)
	if err != nil {
		return err
	}
	scope, err := netns.Scope()
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(file{Scope: scope, Changes: changes}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode record of sysctls: %w", err)
	}
	if err := replace.File(own, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write record of sysctls: %w", err)
	}
	return nil
}

func write(key, value string) error {
	err := os.WriteFile(path(key), []byte(value), 0)
	if errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("set sysctl %s=%s: /proc/sys is read-only in this container, set it on the host: %w", key, value, err)
	}
	if err != nil {
		return fmt.Errorf("set sysctl %s=%s: %w", key, value, err)
	}
	return nil
}

// path takes keys as sysctl(8) does: dots separate them, and a slash stands for a dot
// inside an interface's name ("net.ipv4.conf.eth0/100.rp_filter").
func path(key string) string { return "/proc/sys/" + swap.Replace(key) }

// Interface returns an interface's name as it is written inside a key.
func Interface(name string) string { return swap.Replace(name) }

var swap = strings.NewReplacer(".", "/", "/", ".")

func normal(value string) string { return strings.Join(strings.Fields(value), " ") }

// RecordPath names the records of agents that are reached on socket.
func RecordPath(socket string) string { return socket + ".sysctls.json" }
