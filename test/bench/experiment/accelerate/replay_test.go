package accelerate

import (
	"fmt"
	"os"
	"testing"

	"sluice.dev/sluice/test/bench/harness"
	"sluice.dev/sluice/test/bench/peer"
)

// TestReplay has connection tracking find nothing wrong with the segments of connections, from the
// first to the last, and with none of their checksums.
func TestReplay(t *testing.T) {
	p := of(peer.Plain{}, 1)
	l, err := p.NewTestbed(fmt.Sprintf("sbr%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := l.Track(true); err != nil { // drops what is invalid
		t.Fatal(err)
	}
	st, err := newStage(&harness.Setup[program]{Case: p, Testbed: l}, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	if c, err := st.replay(t.Context(), st.cores, 1_000, 2); err != nil || c.end <= 0 {
		t.Errorf("%+v, %v", c, err)
	}
}
