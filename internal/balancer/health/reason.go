package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
	"unicode"
)

const maxReason = 200 // bytes

// own are errors of this machine's: they say nothing of a backend.
var own = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN, syscall.EADDRNOTAVAIL,
}

// failed is the outcome of a check that an error has ended.
func failed(err error) outcome {
	for _, o := range own {
		if errors.Is(err, o) {
			return outcome{err: err}
		}
	}
	return down(reason(err))
}

// reason says an error in words for people, without the addresses that everybody knows.
func reason(err error) string {
	var errno syscall.Errno
	var alert tls.AlertError
	var certificate *tls.CertificateVerificationError
	var op *net.OpError
	switch {
	case errors.As(err, &certificate):
		err = certificate.Err
	case errors.As(err, &alert):
		err = alert
	case errors.As(err, &errno):
		err = errno
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed without an answer"
	case errors.As(err, &op):
		err = op.Err
	}
	return line(err.Error())
}

// silence says that nothing came in time.
func silence(limit time.Duration) string { return fmt.Sprintf("no answer within %v", limit) }

// askedFor adds to why a check has failed what it asked for, where that is not the backend's own
// address and port alone.
func (t *target) askedFor(why string) string {
	switch {
	case t.kind.needs == aURL:
		host := ""
		if t.check.Host != "" {
			host = ", Host " + t.check.Host
		}
		return line(fmt.Sprintf("%s (%s %s://%s%s%s)", why, t.check.Method, t.check.Type, t.at, t.check.Path, host))
	case t.kind.needs == aPort && t.at.Port() != t.server.Port():
		return fmt.Sprintf("%s (port %d)", why, t.at.Port())
	}
	return why
}

// late reports whether an error is that of a time-out.
func late(err error) bool {
	var timeout net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// lacks says that an answer, or a part of it, is not as expected.
func lacks(what, text string) string { return line(fmt.Sprintf("the %s lacks %q", what, text)) }

// line makes one line of bounded length of what others have written.
func line(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}
