// Package list is the source that reads address lists from text files and
// follows their changes. A list becomes a model.NetworkSet of the kind
// AddressList, with the label sluice.dev/list.
//
// See Read for what a file looks like. A list counts as a whole or not at all: while its file has
// broken lines, or can't be read or is gone, its last good version stays. If it was never good, a
// set is delivered that has no networks and says why in Refused. Removing a file removes no list;
// emptying it does empty the list. A file counts once its writer has closed it. What changes
// without an event in the folder of the file (at the far end of a symbolic link, or on a filesystem
// of the network) is noticed within two seconds, or by Flush.
package list

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/source"
	"sluice.dev/sluice/internal/source/stamp"
	"sluice.dev/sluice/internal/source/watch"
	"sluice.dev/sluice/internal/store"
)

// Label is the label of a list's network set; its value is the list's name.
const Label = "sluice.dev/list"

// patience is how long the first reading waits for files that somebody is writing.
const patience = time.Second

// Source follows the files of some lists. Its methods are safe for concurrent use.
type Source struct {
	sink source.Sink
	log  *slog.Logger

	work  sync.Mutex // held while files are read and events are delivered
	lists []*list
	began time.Time // when files were first read

	mu     sync.Mutex // guards synced, and set and issue of lists; held for short
	synced bool
}

// list is what is known of one list.
type list struct {
	File
	due   bool        // it is to be read, and stays so while somebody is writing it
	tried stamp.Stamp // of the content that was read last, for better or worse
	seen  stamp.Stamp // of the file at the last look

	set   *model.NetworkSet // the last good version; nil if there never was one
	why   string            // what the set was refused for that stands in for a good version; empty if none does
	issue *model.Issue      // what is wrong at present; nil if nothing is
}

var _ source.Source = (*Source)(nil)

// New returns a source that reads files and delivers to sink. Their names must differ.
func New(files Files, sink source.Sink, log *slog.Logger) *Source {
	s := &Source{sink: sink, log: log}
	for _, f := range files {
		f.Path = filepath.Clean(f.Path)
		s.lists = append(s.lists, &list{File: f, due: true})
	}
	return s
}

// Run implements source.Source. It may be called once.
func (s *Source) Run(ctx context.Context) error {
	w, err := watch.New()
	if err != nil {
		return err
	}
	var collector sync.WaitGroup
	collector.Go(w.Run)
	defer collector.Wait()
	defer w.Close()
	s.follow(ctx, w)
	return nil
}

// follow follows the files until ctx ends.
func (s *Source) follow(ctx context.Context, w *watch.Watcher) {
	w.Follow(ctx, func(check bool) watch.Next { return s.step(w, check) })
}

// step delivers what has changed; check looks at every file for that.
func (s *Source) step(w *watch.Watcher, check bool) watch.Next {
	s.work.Lock()
	defer s.work.Unlock()
	touched := s.touched(w)
	for _, l := range s.lists {
		settled := check && l.settled()
		l.due = l.due || settled || touched[l.Path]
	}
	if len(s.readDue()) > 0 {
		return watch.Again
	}
	return watch.OnEvent
}

// settled tells whether a file has changed without an event. Its writer may be at
// it still, and leases can't tell on every filesystem: so it counts once it
// was the same at two looks.
func (l *list) settled() bool {
	last := l.seen
	l.seen = stamp.At(l.Path)
	return l.seen != l.tried && l.seen == last
}

// readDue reads the files that are due, and delivers what is new in them. The
// result names those that somebody is writing.
func (s *Source) readDue() (writing []string) {
	if s.began.IsZero() {
		s.began = time.Now()
	}
	waiting := false
	for _, l := range s.lists {
		if l.due {
			s.read(l)
		}
		if l.due {
			writing = append(writing, l.Path)
			waiting = waiting || l.set == nil
		}
	}
	if !s.synced && (!waiting || time.Since(s.began) > patience) {
		for _, l := range s.lists {
			if l.due && l.set == nil {
				s.refuse(l, watch.ErrBusy)
			}
		}
		s.mu.Lock()
		s.synced = true
		s.mu.Unlock()
		s.sink.SetSynced()
	}
	return writing
}

// read reads one file and delivers it if it is another list than before.
func (s *Source) read(l *list) {
	before := stamp.At(l.Path)
	nets, of, err := load(l.Path)
	if errors.Is(err, watch.ErrBusy) {
		return
	}
	if l.due, l.tried = false, of; of == (stamp.Stamp{}) {
		l.tried = before
	}
	if err != nil {
		if l.set == nil {
			s.refuse(l, err)
		}
		s.enter(l, l.set, l.fault(err))
		return
	}
	set := l.set
	if set == nil || !slices.Equal(nets, set.Nets) {
		s.warnOfLoss(l, len(nets))
		set = s.deliver(l, nets, "")
		s.log.Info("read address list", "list", l.Name, "file", l.Path, "networks", len(nets))
	}
	s.enter(l, set, nil)
}

// refuse delivers what stands in for a list of which no good version is known.
func (s *Source) refuse(l *list, why error) {
	if reason := why.Error(); l.why != reason {
		l.why = reason
		s.deliver(l, nil, reason)
	}
}

func (s *Source) deliver(l *list, nets []netip.Prefix, refused string) *model.NetworkSet {
	name := model.Name{Name: l.Name}
	set := &model.NetworkSet{
		Key:     model.NetworkSetKey{Kind: model.AddressList, Name: name},
		Labels:  map[string]string{Label: l.Name},
		Nets:    nets,
		Refused: refused,
	}
	s.sink.Apply([]store.Event{{Kind: model.AddressList, Name: name, Object: set}})
	return set
}

// warnOfLoss says that a list has lost most of what was in it, as it does when
// its file was cut short by accident: it counts all the same.
func (s *Source) warnOfLoss(l *list, now int) {
	if l.set == nil || 2*now >= len(l.set.Nets) {
		return
	}
	s.log.Warn("address list has lost more than half of its networks at once; if that was not meant, put its file right", "list", l.Name, "file", l.Path, "before", len(l.set.Nets), "now", now)
}

// fault says what is wrong with a list.
func (l *list) fault(err error) *model.Issue {
	i := &model.Issue{Object: model.Ref{Kind: model.AddressList, Name: model.Name{Name: l.Name}}, Source: l.Path, Reason: err.Error(), InForce: model.InForceLast}
	if broken, ok := errors.AsType[*BrokenError](err); ok {
		i.Source += ":" + strconv.Itoa(broken.First)
	}
	if l.set == nil {
		i.InForce = model.InForceDoubt
	}
	return i
}

// enter makes Status show what became of a list, and logs what went wrong and what was mended.
func (s *Source) enter(l *list, set *model.NetworkSet, issue *model.Issue) {
	was := l.issue
	s.mu.Lock()
	l.set, l.issue = set, issue
	s.mu.Unlock()
	switch {
	case issue != nil && (was == nil || *was != *issue):
		s.log.Warn("address list is at fault", "list", l.Name, "source", issue.Source, "reason", issue.Reason, "inForce", issue.InForce)
	case issue == nil && was != nil:
		s.log.Info("address list is no longer at fault", "list", l.Name)
	}
}

// Flush implements source.Source. It waits for files that somebody has open
// for writing; if they are still open when ctx ends, the error names them. A
// list at fault is no error here; Status tells of it.
func (s *Source) Flush(ctx context.Context) error {
	return watch.Flush(ctx, "address lists", s.flushOnce)
}

// flushOnce delivers what can be read, and names the files that are being written.
func (s *Source) flushOnce() (writing []string, err error) {
	s.work.Lock()
	defer s.work.Unlock()
	for _, l := range s.lists {
		l.due = l.due || stamp.At(l.Path) != l.tried
	}
	return s.readDue(), nil
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := source.Status{
		Name:    "address lists",
		Synced:  s.synced,
		Objects: map[string]int{},
		Skipped: map[string]int{},
		Issues:  []model.Issue{},
	}
	var paths []string
	for _, l := range s.lists {
		paths = append(paths, l.Path)
		if l.issue != nil {
			st.Issues = append(st.Issues, *l.issue)
		}
		switch {
		case l.set != nil:
			st.Objects[string(model.AddressList)]++
		case l.issue != nil:
			st.Lacking = append(st.Lacking, l.Path+": "+l.issue.Reason)
		default:
			st.Lacking = append(st.Lacking, l.Path+": "+watch.ErrBusy.Error())
		}
	}
	st.Where = strings.Join(paths, ", ")
	return st
}
