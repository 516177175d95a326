package dataplane

import (
	"bytes"
	"slices"
	"sync"
	"time"
)

// log is what a program writes: its end is kept, and when it says that it has read its sources.
type log struct {
	mu      sync.Mutex
	marks   []string // that have not come yet
	last    time.Time
	pending []byte // a line that is not whole
	tail    []byte
}

func newLog(marks []string) *log { return &log{marks: slices.Clone(marks)} }

// kept is how much of the end stays.
const kept = 4096

// Write implements io.Writer.
func (l *log) Write(b []byte) (int, error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, b...)
	l.tail = l.tail[max(0, len(l.tail)-kept):]
	l.pending = append(l.pending, b...)
	for {
		line, rest, whole := bytes.Cut(l.pending, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		l.pending = rest
		l.marks = slices.DeleteFunc(l.marks, func(mark string) bool {
			found := bytes.Contains(line, []byte(mark))
			if found {
				l.last = now
			}
			return found
		})
	}
}

// at is when the last mark came; false: not all have.
func (l *log) at() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, len(l.marks) == 0
}

// String returns the end of the log.
func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.tail)
}
