package cost

import "larder/internal/kv"

// Rates are what a machine was measured to do for one request with a reusable prefix.
type Rates struct {
	Layout    kv.Layout
	Recompute float64 // R: prefix tokens a second when computing them, at Anchor tokens
	Anchor    int     // prefix length at which Recompute was measured
	Load      float64 // B: bytes a second from the slower tier into the device
	Fixed     float64 // t0: seconds that a load costs whatever its size

	// Work is the cost of computing a prefix of n tokens in any unit; only ratios count, so that attention's growth
	// with length is in the curve. nil: proportional to n.
	Work func(n int) float64
}

// RecomputeSeconds is the time to compute a prefix of n tokens.
func (r Rates) RecomputeSeconds(n int) float64 {
	at := float64(r.Anchor) / r.Recompute
	if r.Work == nil {
		return at * float64(n) / float64(r.Anchor)
	}
	return at * r.Work(n) / r.Work(r.Anchor)
}

// LoadSeconds is the time to load the KV of a prefix of n tokens; nothing to load takes no time.
func (r Rates) LoadSeconds(n int) float64 {
	if n == 0 {
		return 0
	}
	return r.Fixed + float64(n)*float64(r.Layout.TokenBytes())/r.Load
}

// NeedBandwidth is B* = bytes per token x R: the bandwidth at which, fixed costs aside, loading and recomputing tie.
func (r Rates) NeedBandwidth() float64 { return float64(r.Layout.TokenBytes()) * r.Recompute }

// Margin is the bandwidth at hand over the one needed; above 1 loading wins for long enough prefixes.
func (r Rates) Margin() float64 { return r.Load / r.NeedBandwidth() }

// MinPrefix is n*, the shortest prefix of whole blocks up to limit tokens whose KV is loaded faster than recomputed;
// ok is false when there is none. With a recompute rate R that does not fall with length it is t0 / (1/R - b/B)
// rounded up to a block.
func (r Rates) MinPrefix(limit int) (n int, ok bool) {
	for n = r.Layout.BlockTokens; n <= limit; n += r.Layout.BlockTokens {
		if r.LoadSeconds(n) < r.RecomputeSeconds(n) {
			return n, true
		}
	}
	return 0, false
}
