package nft

import "testing"

// A set that is emptied and filled anew while rules are written anew changes with these: the rules
// of before would look in vain.
func TestFlushedSetsChangeWithRules(t *testing.T) {
	s := &Set{ID: 1, Name: "members", Early: true, Key: []Field{Mark}}
	b := NewBatch("test")
	b.Stepwise = true
	b.FlushSet(s)
	e := &Element{Set: s}
	e.AppendUint32(7)
	b.Add(e)
	steps := b.transactions()
	for i, want := range []bool{false, true, false} {
		if bufs, _ := buffers(steps[i]); bufs != nil != want {
			t.Errorf("step %d: it has messages: %v", i+1, bufs != nil)
		}
	}
}
