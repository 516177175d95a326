package list

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sluice.dev/sluice/internal/model"
)

// File is a list that is read from a file.
type File struct {
	Name string // of the list: lower-case letters, digits, '-' and '.'
	Path string
}

// Files are those of one source. As a flag, they are given one by one as
// NAME=FILE; *Files has the methods of a pflag.Value for that.
type Files []File

// String returns "NAME=FILE,NAME=FILE".
func (f *Files) String() string {
	var all []string
	for _, file := range *f {
		all = append(all, file.Name+"="+file.Path)
	}
	return strings.Join(all, ",")
}

// Type is what help texts call the value.
func (f *Files) Type() string { return "NAME=FILE" }

// Set adds a file, NAME=FILE. No name may come twice.
func (f *Files) Set(value string) error {
	name, path, ok := strings.Cut(value, "=")
	if !ok || path == "" {
		return fmt.Errorf("%q is not NAME=FILE", value)
	}
	if err := checkName(name); err != nil {
		return err
	}
	if slices.ContainsFunc(*f, func(other File) bool { return other.Name == name }) {
		return fmt.Errorf("there are two lists called %s", name)
	}
	*f = append(*f, File{Name: name, Path: filepath.Clean(path)})
	return nil
}

// checkName holds names of lists to what names of Kubernetes objects look
// like: they are values of a label, and go into what people read.
func checkName(name string) error {
	if name == "" || len(name) > 63 {
		return errors.New("the name of a list has 1 to 63 characters")
	}
	if !model.IsName(name) {
		return fmt.Errorf("%q is no name of a list: only lower-case letters, digits, '-' and '.' are allowed, and it starts and ends with a letter or digit", name)
	}
	return nil
}
