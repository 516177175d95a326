package verdict

import (
	"fmt"
	"strings"
	"testing"
)

// Of very many ways an answer shows some.
func TestTextOfManyWays(t *testing.T) {
	a := Answer{Outcome: Allowed}
	for i := range 50 {
		a.Paths = append(a.Paths, Path{Outcome: Allowed, Steps: []Step{{Text: fmt.Sprint("way ", i)}}})
	}
	text := a.String()
	if strings.Contains(text, "way 20") || !strings.Contains(text, "way 19") || !strings.Contains(text, "and in 30 ways more: -o json has all") {
		t.Errorf("the answer says:\n%s", text)
	}
}
