package manifest

import (
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/source/stamp"
	"sluice.dev/sluice/internal/source/watch"
)

const (
	// maxFile bounds the size of a manifest: some 30,000 EndpointSlices of ten
	// endpoints. See maxDocument too.
	maxFile = 64 << 20
	// largeFile is the size from which reading a file leaves garbage that is worth giving back.
	largeFile = 4 << 20
	// keptBuffer is the largest buffer that is kept for the next file.
	keptBuffer = 1 << 20
)

// job is a file to be read.
type job struct {
	path    string
	created bool  // only just, so that its content may be still to come
	known   *file // what is known of it; nil if it is new
}

// outcome is what came of a job.
type outcome uint8

const (
	parsed outcome = iota
	gone           // there is no such file, or it is no regular one
	busy           // somebody is writing it: its content is not to be trusted yet
	failed         // it can't be read
)

// reading is the result of a job.
type reading struct {
	job
	outcome outcome
	again   bool // parsed while a writer was still there: to be confirmed
	large   bool
	stamp   stamp.Stamp
	content content
	err     error
}

// readAll does all jobs, on as many cores as there are.
func readAll(parsers []*parser, f *folder, jobs []job) []reading {
	readings := make([]reading, len(jobs))
	if len(jobs) < 4 {
		for i, j := range jobs {
			readings[i] = parsers[0].read(f, j)
		}
		return readings
	}
	const chunk = 16
	var next atomic.Int64
	var wg sync.WaitGroup
	for _, p := range parsers {
		wg.Go(func() {
			for {
				end := int(next.Add(chunk))
				for i := end - chunk; i < min(end, len(jobs)); i++ {
					readings[i] = p.read(f, jobs[i])
				}
				if end >= len(jobs) {
					return
				}
			}
		})
	}
	wg.Wait()
	return readings
}

// newParsers makes a parser for each core.
func newParsers(ignoreRefused bool) []*parser {
	seed := maphash.MakeSeed()
	parsers := make([]*parser, runtime.GOMAXPROCS(0))
	for i := range parsers {
		parsers[i] = &parser{seed: seed, ignoreRefused: ignoreRefused}
	}
	return parsers
}

// read reads one file. Where there are no leases, the content is taken as it is; the event of the
// writer's close follows.
//
// The kernel sends that event before the writer is really gone: ext4 first
// starts to write a truncated file to disk, which can take a millisecond. JSON
// needn't wait for that, as no part of an object is an object.
func (p *parser) read(from *folder, j job) reading {
	r := reading{job: j}
	f, err := watch.Open(from.at(j.path))
	if err != nil {
		r.outcome, r.err = classify(err), fmt.Errorf("open file: %w", err)
		return r
	}
	defer f.Close()
	r.again = f.Lease == watch.ErrBusy
	if r.again && !isJSON(j.path) || f.Lease != nil && j.created {
		r.outcome = busy
		return r
	}
	data, err := p.load(f)
	if err != nil {
		r.outcome, r.err = failed, fmt.Errorf("read file: %w", err)
		return r
	}
	r.stamp, r.large = f.Stamp, f.Size >= largeFile
	var prev []object
	if j.known != nil {
		prev = j.known.objects
	}
	if r.content, err = p.parseSafely(j.path, data, prev); err != nil {
		r.outcome, r.err = failed, err
		return r
	}
	r.content.incomplete = isIncomplete(j.known, &r.content)
	if r.again && (r.content.unreadable || len(r.content.objects) == 0) {
		r.outcome = busy
	}
	if cap(p.buf) > keptBuffer {
		p.buf = nil
	}
	return r
}

// parseSafely is parse for whatever people put into a folder: if it hits a
// fault of the parser, that is this one file's, and not the agent's end.
func (p *parser) parseSafely(name string, data []byte, prev []object) (c content, err error) {
	defer func() {
		if r := recover(); r != nil {
			*p = parser{seed: p.seed, declared: p.declared, ignoreRefused: p.ignoreRefused}
			c, err = content{}, fmt.Errorf("parse file: the parser failed on it, which is a bug worth reporting: %v", r)
		}
	}()
	return p.parse(name, data, prev), nil
}

func classify(err error) outcome {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, watch.ErrIrregular):
		return gone
	case errors.Is(err, watch.ErrBusy):
		return busy
	}
	return failed
}

// load reads a file into the parser's buffer.
func (p *parser) load(f *watch.File) ([]byte, error) {
	if f.Size > maxFile {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read; split it", f.Size, maxFile)
	}
	if int64(len(p.buf)) < f.Size {
		p.buf = make([]byte, max(f.Size, 64<<10))
	}
	n, err := io.ReadFull(f, p.buf[:f.Size])
	if err == io.EOF || err == io.ErrUnexpectedEOF { // it was cut short meanwhile
		err = nil
	}
	return p.buf[:n], err
}
