package nft

import (
	"os"
	"testing"
)

// A socket that is closed again leaves the file alone that has its descriptor's number by then.
func TestCloseAgain(t *testing.T) {
	s, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe() // the lowest numbers that are free
	if err != nil {
		t.Fatal(err)
	}
	if s.Close() == nil {
		t.Error("a second Close succeeds")
	}
	if err := r.Close(); err != nil {
		t.Errorf("another's file: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("another's file: %v", err)
	}
}
