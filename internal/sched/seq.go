package sched

import (
	"slices"
	"time"

	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/kv/cache"
	"larder/internal/sample"
)

// Seq is one request on its way through the scheduler.
type Seq struct {
	req    *infer.Request
	tokens []int32 // the prompt, then what was made
	stops  []int32 // ids that end it
	usage  infer.Usage

	arrival   uint64
	lease     *cache.Lease // nil while waiting
	ready     bool         // its loads have landed, so valid counts
	valid     int          // leading tokens whose KV is on the device
	covered   int          // leading prompt tokens that usage counts already, cached or computed
	flying    int          // steps under way that it is part of
	ahead     int          // tokens behind valid that those compute
	drawing   int          // tokens that those pick
	drawn     int          // its place among the draws of the last of those, when drawing
	ended     bool
	cancelled error // ends with the next step done because of this
	stalls    int   // steps that passed it by for want of a block

	// While waiting.
	match     int  // cached tokens at the last look; -1: not looked yet
	overtaken int  // later arrivals that were admitted before it
	pulled    bool // it was retracted, so it goes first
	tries     int  // admissions that failed with nothing else running
	hold      hold
}

// grownTokens is for how many new tokens a sequence has room from the start, so that steady decoding of usual lengths
// allocates nothing.
const grownTokens = 4096

// NewSeq prepares a validated request that arrived at the given time; eos are the model's own end tokens. It copies the
// prompt, and may run on any goroutine.
func NewSeq(r *infer.Request, eos []int32, queued time.Time) *Seq {
	q := &Seq{req: r, match: -1}
	q.tokens = make([]int32, len(r.Tokens), len(r.Tokens)+min(r.MaxNew, grownTokens))
	copy(q.tokens, r.Tokens)
	q.stops = slices.Clone(r.StopIDs)
	if !r.IgnoreEOS {
		q.stops = append(q.stops, eos...)
	}
	q.usage.PromptTokens = len(r.Tokens)
	q.usage.Timing.Queued = queued
	return q
}

// Request is what was asked for.
func (q *Seq) Request() *infer.Request { return q.req }

// Usage is what the sequence cost so far.
func (q *Seq) Usage() infer.Usage { return q.usage }

// Tokens are the prompt and what was made and is known so far; the caller may not change them.
func (q *Seq) Tokens() []int32 { return q.tokens }

// Blocks are the device blocks of the first n tokens, valid until the scheduler is called again: a step keeps a copy.
func (q *Seq) Blocks(n, blockTokens int) []kv.BlockID {
	return q.lease.Blocks()[:(n+blockTokens-1)/blockTokens]
}

// pick says how to pick the token that has made others before it.
func (q *Seq) pick(made int) sample.Draw {
	d := sample.Draw{Params: q.req.Sampling, Position: made}
	if made < q.req.MinNew {
		d.Banned = q.stops
	}
	return d
}

// known is how many tokens there are, with those that steps under way pick.
func (q *Seq) known() int { return len(q.tokens) + q.drawing }

// reached is how many leading tokens have their KV on the device once the steps under way are done.
func (q *Seq) reached() int { return q.valid + q.ahead }

// made is how many tokens were picked so far, or are being picked.
func (q *Seq) made() int { return q.known() - len(q.req.Tokens) }

// left is the most tokens that may still be picked.
func (q *Seq) left() int { return q.req.MaxNew - q.made() }

// remaining is how many tokens must go through the model before the next one can be picked; at least 1 while any is
// left to pick.
func (q *Seq) remaining() int { return q.known() - q.reached() }

// goes says that q can be part of a next step, as far as is known.
func (q *Seq) goes() bool { return q.ready && !q.ended && q.cancelled == nil && q.left() > 0 }

// decoding says that just the token picked last is to be computed.
func (q *Seq) decoding() bool { return q.remaining() == 1 && q.made() > 0 }

// land takes over what the lease holds once its loads are done, and counts what of the prompt was cached. What an
// earlier admission had counted stays as it was.
func (q *Seq) land(now time.Time) {
	q.ready = true
	q.valid = q.lease.Valid()
	hit := q.lease.Hit()
	prompt := len(q.req.Tokens)
	device, all := min(hit.Device, prompt), min(hit.Device+hit.Host, prompt)
	q.usage.Cached.Device += max(device-q.covered, 0)
	q.usage.Cached.Host += max(all-max(device, q.covered), 0)
	q.covered = max(q.covered, all)
	if t := &q.usage.Timing; t.Loaded.IsZero() {
		t.Loaded = now
	}
}

// computed counts the prompt tokens up to n that went through the model for the first time.
func (q *Seq) computed(n int) {
	if n = min(n, len(q.req.Tokens)); n > q.covered {
		q.usage.Computed += n - q.covered
		q.covered = n
	}
}
