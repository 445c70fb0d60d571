package serving

import (
	"testing"
	"time"

	"larder/internal/loadgen"
	"larder/internal/workload"
)

// Two lanes of requests of one second and four tokens each, after a slow start and before a lonely end.
func TestSteady(t *testing.T) {
	s := time.Second
	var all []loadgen.Outcome
	add := func(from time.Duration) {
		o := loadgen.Outcome{Item: &workload.Item{}, Sent: from, First: from + s/4, Done: from + s}
		for k := range 4 {
			o.Chunks = append(o.Chunks, loadgen.Chunk{At: from + time.Duration(k+1)*s/4, Tokens: 1})
		}
		all = append(all, o)
	}
	for i := range 6 { // lane one: 0 s to 6 s
		add(time.Duration(i) * s)
	}
	for i := range 4 { // lane two: 1 s to 5 s
		add(time.Duration(i+1) * s)
	}
	got := steady(all, 2)
	if got.Reason != "" || got.From != 1 || got.To != 5 || got.Requests != 8 || got.RequestRate != 2 || got.OutputRate != 8 || got.TTFT.N != 8 {
		t.Errorf("%+v", got)
	}
	if got := steady(all, 3); got.Reason == "" {
		t.Errorf("three were never in flight: %+v", got)
	}
	if got := steady(all, 0); got.Reason == "" {
		t.Errorf("no cap: %+v", got)
	}
}
