package main

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestBalanceFeed restarts a balancer while the feed of a list cannot be read: the list stays as
// the kernel has it until the feed has been read.
func TestBalanceFeed(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"the configuration alone": {"--state", ""}, "a state file": nil} {
		t.Run(name, func(t *testing.T) {
			w := newBalanced(t)
			w.flags = flags
			write(t, w.dir, "denied", "10.0.0.0/30\n10.9.0.0/16\nfd00::/64\n")
			config := strings.Replace(balancedFarm, `"backends":`, `"policies": [{"name": "denied"}], "backends":`, 1)
			write(t, w.dir, "farms.json", strings.Replace(config, `{`, `{"policies": [{"name": "denied", "feed": {"file": "`+w.path("denied")+`", "interval": "1"}}], `, 1))
			passes := func() bool {
				c, err := w.client.Dial("tcp", "10.0.0.2", "10.0.0.100:80", 50*time.Millisecond)
				if err == nil {
					_ = c.Close()
				}
				return err == nil
			}
			w.start()
			eventually(t, "the list is in force", func() bool { return !passes() })
			var over atomic.Bool
			var client sync.WaitGroup
			client.Go(func() {
				for !over.Load() && !t.Failed() {
					if passes() {
						t.Error("a denied address is answered")
					}
				}
			})
			w.must(os.Remove(w.path("denied")))
			w.kill()
			w.start()
			eventually(t, "the feed is a fault", func() bool {
				_, out, _ := sluice(t, "status", "--socket", w.path("s.sock"))
				return strings.Contains(out, "read feed")
			})
			over.Store(true)
			client.Wait()
			write(t, w.dir, "denied", "10.9.0.0/16\n")
			eventually(t, "the address is off the list", passes)
		})
	}
}
