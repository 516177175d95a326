package ruleset

import (
	"strings"
	"testing"
	"unicode/utf8"

	"sluice.dev/sluice/internal/kernel/nft"
	"sluice.dev/sluice/internal/model"
	"sluice.dev/sluice/internal/state"
)

// nft and the kernel's log print comments as they are.
func TestCommentsArePrintable(t *testing.T) {
	t.Parallel()
	name := model.Name{Namespace: "shop", Name: "\x1b[2J\n\u202e\xff"}
	if got, want := frontendComment(&state.Frontend{Service: name}), `shop/\x1b[2J\n\u202e\xff`; got != want {
		t.Errorf("a frontend's comment is %q, want %q", got, want)
	}
	long := truncate(strings.Repeat("ä", 100))
	if len(long) > nft.MaxComment || !utf8.ValidString(long) {
		t.Errorf("a long comment is %q", long)
	}
}
