// Package watch tells of changes in folders, for the sources that read files.
package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/lib/wake"
)

// watched are the events that tell that a file has got its content, or lost
// it. What a writer does before it closes a file is none of them, so that
// nobody looks at half a file. A created file is of interest if it is a
// symbolic link or came by link(2): those get no other event. A file that
// couldn't be read may have become readable when its attributes change.
const watched = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CREATE | unix.IN_DELETE |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// Event is one inotify event.
type Event struct {
	WD   int32  // the folder: what Add returned
	Mask uint32 // unix.IN_…
	Name string // within the watched folder; empty for the folder itself
}

// Swaps tells whether all files of the folder may have changed: a ConfigMap volume changes by a
// symbolic link "..data" that is replaced, which changes all the files that lead through it.
func (e Event) Swaps() bool { return strings.HasPrefix(e.Name, "..") }

// Begins tells whether the event is of a file at path that somebody is about to fill: its content
// will be told when that is done. A link has its content already.
func (e Event) Begins(path string) bool {
	var st unix.Stat_t
	return e.Mask&unix.IN_CREATE != 0 && unix.Lstat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1
}

// Watcher collects inotify events. It is built on the system calls themselves,
// as fsnotify doesn't pass on IN_CLOSE_WRITE. Its methods are safe for concurrent use.
type Watcher struct {
	file *os.File
	fd   int
	raw  syscall.RawConn

	// Ready has an item when there are events to take.
	Ready wake.Signal

	mu      sync.Mutex
	pending []Event
	buf     [64 << 10]byte
}

// New makes a watcher, to be closed with Close.
func New() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		if errors.Is(err, unix.EMFILE) {
			return nil, fmt.Errorf("watch for changes: too many watchers on this machine; raise the sysctl fs.inotify.max_user_instances: %w", err)
		}
		return nil, fmt.Errorf("watch for changes: %w", err)
	}
	w := &Watcher{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, Ready: wake.New()}
	if w.raw, err = w.file.SyscallConn(); err != nil {
		w.file.Close()
		return nil, fmt.Errorf("watch for changes: %w", err)
	}
	return w, nil
}

// Close ends all watches and Run.
func (w *Watcher) Close() { w.file.Close() }

// Run collects events until the watcher is closed.
func (w *Watcher) Run() {
	for {
		if err := w.raw.Read(func(uintptr) bool { return w.drain() }); err != nil {
			return
		}
		w.Ready.Set()
	}
}

// drain reads all events that the kernel holds, and tells whether there were any.
func (w *Watcher) drain() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	some := false
	for {
		n, err := unix.Read(w.fd, w.buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return some
		}
		some = true
		w.decode(w.buf[:n])
	}
}

func (w *Watcher) decode(b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		e := Event{
			WD:   int32(binary.NativeEndian.Uint32(b)),
			Mask: binary.NativeEndian.Uint32(b[4:]),
		}
		end := min(unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])), len(b))
		name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:end], []byte{0})
		e.Name = string(name)
		w.pending = append(w.pending, e)
		b = b[end:]
	}
}

// moveTime is how long the second event of a renamed file may take to follow the first, with the
// process suspended in between that renames it.
const moveTime = 20 * time.Millisecond

// Take returns the events that the kernel has told so far and that were not taken before. Both
// events of a file that is renamed come together.
func (w *Watcher) Take() []Event {
	w.drain()
	for until := time.Now().Add(moveTime); w.halfMoved() && time.Now().Before(until); w.drain() {
		time.Sleep(moveTime / 100)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.pending
	w.pending = nil
	return events
}

// halfMoved tells whether a file has lost its old name, and where it went is not told yet. It may
// have left all folders that are watched: then nothing follows.
func (w *Watcher) halfMoved() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.pending)
	return n > 0 && w.pending[n-1].Mask&unix.IN_MOVED_FROM != 0
}

// Add watches a folder and returns the descriptor that its events carry.
func (w *Watcher) Add(path string) (int32, error) {
	wd, err := unix.InotifyAddWatch(w.fd, path, watched)
	if errors.Is(err, unix.ENOSPC) {
		return 0, fmt.Errorf("watch folder: too many folders are watched on this machine; raise the sysctl fs.inotify.max_user_watches: %w", err)
	}
	if err != nil {
		return 0, fmt.Errorf("watch folder: %w", err)
	}
	return int32(wd), nil
}

// Remove ends a watch; that it has ended already is no error.
func (w *Watcher) Remove(wd int32) {
	_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
}
