package config

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// stateFileError says why the state file can't be written.
type stateFileError struct{ error }

func (e *stateFileError) Unwrap() error { return e.error }

// load takes over a file as a whole. Its errors name the file.
func (s *Source) load(ctx context.Context, file string, lenient bool) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	limited := &io.LimitedReader{R: bufio.NewReaderSize(f, 1<<20), N: mostFile}
	o := s.options
	if o.Lenient, o.HasDevice = lenient, nil; o.LoadAll {
		o.Check = nil
	}
	r := newRevision(s.doc, o)
	r.ofState = file == s.options.State // what served before does not wait for a farm
	if err = (&reader{revision: r}).read(limited); err == nil && limited.N == 0 {
		err = fmt.Errorf("it has more than %d bytes", mostFile)
	}
	if err == nil && !r.ofState {
		err = s.readFeeds(ctx, r.document)
	}
	if err == nil {
		err = r.finish()
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok && path.Path == file {
		err = path.Err
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	for _, w := range r.warnings {
		s.log.Debug("a reservation about the configuration", "file", file, "reason", w)
	}
	if n := len(r.warnings); n > 0 {
		s.log.Warn("configuration is read with reservations; --log-level debug names all", "file", file, "count", n, "first", r.warnings[0])
	}
	for _, i := range r.asides() {
		s.log.Warn("a farm is kept, but not served", "farm", i.Object.Name.Name, "reason", i.Reason)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doc, s.from, s.loaded = r.document, file, []*request{{change: r}}
	return nil
}

// save writes the state file: a new one in its place, on disk when save returns. It is called by
// one goroutine at a time. An error is a *stateFileError.
func (s *Source) save() error {
	if s.options.State == "" {
		return nil
	}
	if err := s.write(); err != nil {
		return &stateFileError{err}
	}
	return nil
}

func (s *Source) write() error {
	pieces := s.pieces()
	folder := filepath.Dir(s.options.State)
	f, err := os.CreateTemp(folder, s.halfWritten()+"*") // mode 0600
	if err != nil {
		return fmt.Errorf("make state file: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // it is gone by then if all went well
	w := bufio.NewWriterSize(f, 1<<20)
	for _, p := range pieces {
		_, _ = w.Write(p) // the writer keeps the error
	}
	if err = w.Flush(); err == nil {
		err = f.Sync()
	}
	if other := f.Close(); err == nil {
		err = other
	}
	if err == nil {
		err = os.Rename(f.Name(), s.options.State)
	}
	if err == nil {
		err = syncFolder(folder)
	}
	if err != nil {
		return fmt.Errorf("write state file: %w", err)
	}
	return nil
}

// halfWritten begins the names of files that are not in the state file's place yet.
func (s *Source) halfWritten() string { return "." + filepath.Base(s.options.State) + "." }

// removeLeft removes what balancers left that were killed while they wrote.
func (s *Source) removeLeft() {
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(s.options.State), s.halfWritten()+"[0-9]*")) // none where the name makes no pattern
	for _, file := range left {
		if err := os.Remove(file); err != nil {
			s.log.Warn("remove what a balancer left that was killed while it wrote", "file", file, "error", err)
		}
	}
}

func syncFolder(folder string) error {
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// pieces are the text of the state file, an object a line. Each is written once and kept with its
// object, as most do not change from one state to the next.
func (s *Source) pieces() (all [][]byte) {
	doc := s.document()
	all = append(all, []byte(`{"policies":[`))
	for i, p := range ordered(doc.policies) {
		all = appendPiece(all, i, &p.stored, &policyFields{policy: p}, (*printer).policy)
	}
	all = append(all, []byte("\n],\n\"addresses\":["))
	for i, a := range ordered(doc.addresses) {
		all = appendPiece(all, i, &a.stored, &addressFields{address: a}, (*printer).address)
	}
	all = append(all, []byte("\n],\n\"farms\":["))
	for i, f := range ordered(doc.farms) {
		all = appendPiece(all, i, &f.stored, &farmFields{farm: f}, (*printer).farm)
	}
	return append(all, []byte("\n]}\n"))
}

func appendPiece[T any](all [][]byte, i int, kept *[]byte, of T, write func(*printer, T)) [][]byte {
	if *kept == nil {
		p := &printer{stored: true}
		write(p, of)
		*kept = bytes.Clone(p.Bytes())
	}
	if i > 0 {
		all = append(all, []byte(","))
	}
	return append(all, []byte("\n"), *kept)
}
