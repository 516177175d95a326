package list

import (
	"fmt"
	"net/netip"

	"sluice.dev/sluice/internal/source/stamp"
	"sluice.dev/sluice/internal/source/watch"
)

// maxFile bounds the size of a list's file.
const maxFile = 512 << 20

// load reads a file that nobody is writing. Where there are no leases, one that changes while it is
// read is busy.
func load(path string) (nets []netip.Prefix, of stamp.Stamp, err error) {
	f, err := watch.Open(path)
	if err != nil {
		return nil, of, fmt.Errorf("open list: %w", err)
	}
	defer f.Close()
	if f.Lease == watch.ErrBusy {
		return nil, of, f.Lease
	}
	if f.Size > maxFile {
		return nil, f.Stamp, fmt.Errorf("read list: it has %d bytes, at most %d are read; split it", f.Size, maxFile)
	}
	if nets, err = Read(f); f.Changed() {
		return nil, of, watch.ErrBusy
	}
	return nets, f.Stamp, err
}
