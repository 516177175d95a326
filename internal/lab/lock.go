package lab

import (
	"fmt"
	"net"
)

// lock prevents two commands from building or removing the same lab at the same time. The lock is
// an abstract Unix socket: it ends with its holder in any case, and leaves no file.
func lock(name string) (release func(), err error) {
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("lab name %q: use 1 to 20 lower-case letters and digits", name)
	}
	l, err := net.Listen("unix", "@sluice/lab/"+name)
	if err != nil {
		return nil, fmt.Errorf("lock lab %s: another command is bringing it up or taking it down: %w", name, err)
	}
	return func() { _ = l.Close() }, nil
}
