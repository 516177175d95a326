package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"time"

	"sluice.dev/sluice/internal/model"
)

const (
	mostFeed     = 256 << 20 // bytes
	feedPatience = time.Minute
	// firstPatience is how long a start waits for feeds: until then, the kernel serves as before.
	firstPatience = 5 * time.Second
)

// followFeed begins or ends following a policy's feed after an edit; nil: it has none.
func (s *Source) followFeed(name string, was, now *feed) {
	if was == now {
		return
	}
	if stop := s.feeds[was]; stop != nil {
		stop()
		delete(s.feeds, was)
		delete(s.faults, name)
	}
	if now == nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	s.feeds[now] = stop
	s.following.Go(func() { s.feed(ctx, name, now) })
}

// feedOf is the feed of a policy; nil: it has none, or there is no policy.
func feedOf(p *policy) *feed {
	if p == nil {
		return nil
	}
	return p.feed
}

// readFeeds has the lists of a new document hold what their feeds do. Those whose feed cannot be
// read keep what the kernel has of them from before a restart.
func (s *Source) readFeeds(ctx context.Context, d *document) error {
	soon, cancel := context.WithTimeout(ctx, firstPatience)
	defer cancel()
	type reading struct {
		of   *policy
		nets []netip.Prefix
		ok   bool
	}
	unread, done := map[string]*policy{}, make(chan reading, d.policies.Len())
	for name, p := range d.policies.All() {
		if p.feed != nil {
			unread[name] = p
			go func() {
				nets, blank, err := s.fetch(soon, p.feed)
				done <- reading{p, nets, err == nil && !blank}
			}()
		}
	}
	for range len(unread) {
		select {
		case <-soon.Done():
		case r := <-done:
			if r.ok {
				r.of.elements, r.of.feed.begun = nil, true
				r.of.add(rangesOf(r.nets, r.of.family))
				delete(unread, r.of.name)
			}
		}
	}
	if len(unread) == 0 || s.options.Listed == nil {
		return nil
	}
	nets, err := s.options.Listed(ctx, slices.Collect(maps.Keys(unread)))
	for name, of := range nets {
		p := unread[name]
		p.add(rangesOf(of, p.family))
	}
	return err
}

// stopFeeds ends all, and waits for them. Nothing may begin any more.
func (s *Source) stopFeeds() {
	s.mu.Lock()
	for _, stop := range s.feeds {
		stop()
	}
	clear(s.feeds)
	s.mu.Unlock()
	s.following.Wait()
}

// feed reads a feed again and again.
func (s *Source) feed(ctx context.Context, name string, f *feed) {
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	for wait := f.begun; ; wait = false {
		if !wait {
			err := s.readFeed(ctx, name, f)
			if ctx.Err() != nil {
				return
			}
			s.enterFeed(name, f, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// readFeed reads a feed once, and makes what it holds the elements of its policy.
func (s *Source) readFeed(ctx context.Context, name string, f *feed) error {
	nets, blank, err := s.fetch(ctx, f)
	if err != nil {
		return err
	}
	_, err = s.submit(ctx, func(r *revision) error {
		p := r.policies.Get(name)
		if p == nil || p.feed != f {
			return nil
		}
		next := policy{}
		next.add(rangesOf(nets, p.family))
		if blank && len(p.elements) > 0 {
			return errBlankFeed
		}
		if !slices.Equal(next.elements, p.elements) {
			r.listEdits.edit(name).elements = next.elements
		}
		return nil
	})
	return err
}

// errBlankFeed keeps a list: whoever writes a feed may be at fault, or half done.
var errBlankFeed = errors.New("it is blank; where no address belongs on the list, let it have a comment, such as # none")

// fetch returns what a feed holds. It is blank if it has nothing but spaces.
func (s *Source) fetch(ctx context.Context, f *feed) (nets []netip.Prefix, blank bool, err error) {
	if s.options.ReadList == nil {
		return nil, false, errors.New("this program reads no feeds")
	}
	from, err := f.open(ctx)
	if err != nil {
		return nil, false, err
	}
	defer from.Close()
	limited := &io.LimitedReader{R: from, N: mostFeed}
	text := &textSeen{from: limited}
	nets, err = s.options.ReadList(text)
	if err == nil && limited.N == 0 {
		err = fmt.Errorf("it has more than %d bytes", mostFeed)
	}
	return nets, !text.seen, err
}

// textSeen notes whether anything but spaces is read.
type textSeen struct {
	from io.Reader
	seen bool
}

func (t *textSeen) Read(to []byte) (int, error) {
	n, err := t.from.Read(to)
	t.seen = t.seen || len(bytes.TrimSpace(to[:n])) > 0
	return n, err
}

// shown is the file or URL for people: without the password.
func (f *feed) shown() string {
	if f.file != "" {
		return f.file
	}
	u, err := url.Parse(f.url)
	if err != nil {
		return "its URL"
	}
	return u.Redacted()
}

var feedClient = &http.Client{Timeout: feedPatience}

func (f *feed) open(ctx context.Context) (io.ReadCloser, error) {
	if f.file != "" {
		info, err := os.Stat(f.file)
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is no regular file", f.file)
		}
		if err != nil {
			return nil, err
		}
		return os.Open(f.file)
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return nil, err
	}
	a, err := feedClient.Do(q) // its errors have no password
	if err != nil {
		return nil, err
	}
	if a.StatusCode != http.StatusOK {
		a.Body.Close()
		return nil, fmt.Errorf("get %s: %s", f.shown(), a.Status)
	}
	return a.Body, nil
}

// rangesOf are the networks of a family.
func rangesOf(nets []netip.Prefix, of family) (all []model.AddressRange) {
	for _, p := range nets {
		if of.holds(p.Addr()) {
			all = append(all, prefixRange(p))
		}
	}
	return all
}

// enterFeed notes whether a feed could be read.
func (s *Source) enterFeed(name string, f *feed, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.feeds[f] == nil {
		return
	}
	before, failed := s.faults[name]
	if err == nil {
		if delete(s.faults, name); failed {
			s.log.Info("feed can be read again", "policy", name)
		}
		return
	}
	from := f.shown()
	list := model.FarmList{Name: name}
	i := model.Issue{Object: list.Ref(), Source: from, Reason: "read feed: " + err.Error(), InForce: model.InForceLast}
	s.faults[name] = i
	if before != i {
		s.log.Warn("feed cannot be read", "policy", name, "from", from, "error", err)
	}
}
