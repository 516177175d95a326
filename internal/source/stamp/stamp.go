// Package stamp tells whether a file has changed, for the sources that read files.
package stamp

import "golang.org/x/sys/unix"

// Stamp changes when a file's content does, as far as the kernel's clock can
// tell. Stamps are compared with ==; the zero Stamp is that of no file.
type Stamp struct {
	dev, ino uint64
	size     int64
	ctime    unix.Timespec
}

// Of makes the stamp of a file from what stat(2) says of it.
func Of(st *unix.Stat_t) Stamp {
	return Stamp{dev: uint64(st.Dev), ino: st.Ino, size: st.Size, ctime: st.Ctim}
}

// At returns the stamp of the file at a path; the zero Stamp if there is none.
func At(path string) Stamp {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return Stamp{}
	}
	return Of(&st)
}
