package dataplane

import (
	"bytes"
	"slices"
	"sync"
	"time"
)

// log keeps the end of what a program writes, and the time at which it had logged all marks.
type log struct {
	mu      sync.Mutex
	marks   []string // not seen yet
	last    time.Time
	pending []byte // an incomplete line
	tail    []byte
}

func newLog(marks []string) *log { return &log{marks: slices.Clone(marks)} }

// kept is how many bytes of the end are kept.
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

// at returns when the last mark was logged; false: some are missing.
func (l *log) at() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, len(l.marks) == 0
}

// String returns the kept end of the log.
func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.tail)
}
