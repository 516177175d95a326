package demo

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/test/lab/echo"
	"sluice.dev/sluice/test/netns"
)

// These are the time-outs of requests that should be answered, and of those that should be dropped.
const (
	answerTime  = 10 * time.Second
	silenceTime = 500 * time.Millisecond
)

// ask sends one request over TCP from a network namespace.
func ask(from string, to netip.AddrPort, timeout time.Duration) (a echo.Answer, err error) {
	ns, err := netns.Open(from)
	if err != nil {
		return a, err
	}
	defer ns.Close()
	err = ns.Do(func() error { a, err = echo.Ask("TCP", to, timeout); return err })
	return a, err
}
