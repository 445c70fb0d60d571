package workload

import (
	"slices"
	"testing"
)

func TestWarmupSharesNothing(t *testing.T) {
	for _, ids := range [][]int32{{1, 2, 3}, {1, 2, 1}, {1, 1, 5, 1}} {
		it := Item{IDs: ids, OutputLen: 100}
		w := Warmup(it, 0, 32)
		if w.IDs[0] == ids[0] || w.OutputLen != 32 || len(w.IDs) == 0 {
			t.Errorf("%v warms up with %v, %d tokens", ids, w.IDs, w.OutputLen)
		}
		if !slices.Equal(it.IDs, ids) {
			t.Errorf("the item changed to %v", it.IDs)
		}
	}
	it := Item{Messages: []Message{{"user", "hi"}, {"assistant", "yes"}}, OutputLen: 5}
	w := Warmup(it, 0, 32)
	if it.Messages[0].Content != "hi" || w.Messages[0].Content == "hi" || w.Messages[1].Content != "yes" || w.OutputLen != 5 {
		t.Errorf("messages %v warm up with %v", it.Messages, w.Messages)
	}
	if a, b := Warmup(Item{Text: "hi"}, 0, 1).Text, Warmup(Item{Text: "hi"}, 1, 1).Text; a == "hi" || a == b {
		t.Errorf("texts %q and %q", a, b)
	}
}
