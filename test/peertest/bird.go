package peertest

import (
	"context"
	"path/filepath"

	"sluice.dev/sluice/test/netns"
)

// BIRD is BIRD 2.
type BIRD struct {
	dir string
	d   *daemon
}

// StartBIRD starts BIRD in a namespace with a bird.conf. dir is an empty folder, whose path is
// short, as there is a socket in it. What was started is ended by Kill.
func StartBIRD(ctx context.Context, ns *netns.NS, dir, conf string) (*BIRD, error) {
	b := &BIRD{dir: dir}
	file := filepath.Join(dir, "bird.conf")
	if err := write(file, conf); err != nil {
		return nil, err
	}
	var err error
	b.d, err = start(ctx, ns, filepath.Join(dir, "bird.log"), b.socket(), "/usr/sbin/bird", "-f", "-c", file, "-s", b.socket())
	return b, err
}

func (b *BIRD) socket() string { return filepath.Join(b.dir, "bird.ctl") }

// Run runs a command of birdc: "show route all".
func (b *BIRD) Run(command string) (string, error) {
	return run("/usr/sbin/birdc", "-s", b.socket(), command)
}

// Kill ends it as a crash does.
func (b *BIRD) Kill() error { return b.d.kill() }
