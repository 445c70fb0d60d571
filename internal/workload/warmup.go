package workload

import (
	"fmt"
	"slices"
)

// Warmup is a request like it that leaves nothing in a prefix cache that it could hit: ids are sent backwards, text
// gets a line in front. It asks for maxOutput tokens at most. n tells warm-ups of one run apart.
func Warmup(it Item, n, maxOutput int) Item {
	w := it
	w.OutputLen, w.Due = min(it.OutputLen, maxOutput), 0
	mark := fmt.Sprintf("Warm-up %d, not measured.\n", n)
	switch {
	case it.IDs != nil:
		w.IDs = slices.Clone(it.IDs)
		slices.Reverse(w.IDs)
		if len(w.IDs) > 1 && w.IDs[0] == it.IDs[0] { // the same at both ends
			i := slices.IndexFunc(w.IDs, func(id int32) bool { return id != it.IDs[0] })
			w.IDs = w.IDs[max(i, 0):]
		}
	case len(it.Messages) > 0:
		w.Messages = slices.Clone(it.Messages)
		w.Messages[0].Content = mark + w.Messages[0].Content
	default:
		w.Text = mark + it.Text
	}
	return w
}
