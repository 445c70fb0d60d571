package sched

import "slices"

const (
	// minShared tokens must be won for holding a sequence back.
	minShared = 32
	// maxHolders sequences may hold one back, each until it has computed what they share; then it goes its own way.
	maxHolders = 2
)

// hold says that a waiting sequence waits for another, which is just computing a prefix of both, to publish it:
// computing it twice would cost the batch more than the wait.
type hold struct {
	by      *Seq
	until   int // tokens that by must have computed
	holders int
}

func (h *hold) holds() bool {
	return h.by != nil && h.by.lease != nil && !h.by.ended && h.by.valid < h.until
}

// holdBack holds q back when a running sequence is about to publish more of its prefix than is cached.
func (s *Scheduler) holdBack(q *Seq) bool {
	if q.hold.holders >= maxHolders {
		return false
	}
	for _, r := range s.running {
		if until := s.willShare(q, r); until > 0 {
			q.hold = hold{r, until, q.hold.holders + 1}
			return true
		}
	}
	return false
}

// willShare is the number of leading tokens, in whole blocks, that r will publish, q can use and nothing caches yet;
// 0 when these are too few. The new part is compared first, because there unrelated prompts differ.
func (s *Scheduler) willShare(q, r *Seq) int {
	bt := s.cfg.Layout.BlockTokens
	most := min(len(q.tokens)-1, len(r.tokens)) / bt * bt
	if most < q.match+minShared || r.ended || r.valid >= most || q.req.Salt != r.req.Salt {
		return 0
	}
	n := q.match + common(q.tokens[q.match:most], r.tokens[q.match:most])/bt*bt
	if n < q.match+minShared || r.valid >= n || !slices.Equal(q.tokens[:q.match], r.tokens[:q.match]) {
		return 0
	}
	return n
}

// common is the length of the common prefix of two slices of equal length.
func common(a, b []int32) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
