package serving

import (
	"math"
	"slices"
	"time"

	"larder/internal/loadgen"
	"larder/internal/stats"
)

// Steady is the part of a closed-loop run in which the server was as busy as it was meant to be: from the first to the
// last moment at which at least 95 % of the cap was in flight. Start and drain are outside, so its rates are those of
// capacity. Reason says why there is none.
type Steady struct {
	From        float64       `json:"from_s"` // s from the start of the run
	To          float64       `json:"to_s"`
	Requests    int           `json:"requests"` // that ended in it
	RequestRate float64       `json:"request_throughput"`
	OutputRate  float64       `json:"output_throughput"` // tokens by their own time of arrival, whoever they belong to
	TTFT        stats.Summary `json:"ttft_ms"`           // of requests sent in it
	Reason      string        `json:"reason,omitempty"`
}

const steadyShare = 0.95

// steady finds the window and measures it.
func steady(all []loadgen.Outcome, limit int) Steady {
	if limit == 0 {
		return noSteady("no cap on concurrency, so nothing says how busy the server was meant to be")
	}
	from, to := busy(all, int(math.Ceil(steadyShare*float64(limit))))
	if to <= from {
		return noSteady("the cap was never reached")
	}
	s := Steady{From: from.Seconds(), To: to.Seconds()}
	var ttft stats.Sample
	ttft.Unit = "ms"
	tokens := 0
	for i := range all {
		o := &all[i]
		if !o.OK() {
			continue
		}
		if o.Done > from && o.Done <= to {
			s.Requests++
		}
		if d, ok := o.TTFT(); ok && o.Sent >= from && o.Sent < to {
			ttft.Add(ms(d))
		}
		for _, c := range o.Chunks {
			if c.At > from && c.At <= to {
				tokens += max(c.Tokens, 1)
			}
		}
	}
	length := (to - from).Seconds()
	s.RequestRate, s.OutputRate = float64(s.Requests)/length, float64(tokens)/length
	s.TTFT = ttft.Summary("no request was sent in the window")
	return s
}

func noSteady(why string) Steady { return Steady{TTFT: stats.NoSummary("ms", why), Reason: why} }

// busy is the span from the first moment with at least n requests in flight to the last.
func busy(all []loadgen.Outcome, n int) (from, to time.Duration) {
	type edge struct {
		at    time.Duration
		delta int
	}
	var edges []edge
	for i := range all {
		if o := &all[i]; o.Sent != loadgen.NeverSent {
			edges = append(edges, edge{o.Sent, 1}, edge{o.Done, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			return int(min(max(a.at-b.at, -1), 1))
		}
		return a.delta - b.delta // a handover is a dip, never a peak
	})
	open, seen := 0, false
	for _, e := range edges {
		if open >= n && open+e.delta < n {
			to = e.at
		}
		open += e.delta
		if open >= n && !seen {
			from, seen = e.at, true
		}
	}
	return from, to
}
