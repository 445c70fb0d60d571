package sched

import (
	"fmt"

	"larder/internal/kv"
)

// Check names the first invariant that does not hold: the lists are in order and disjoint; who runs has blocks for
// what it computed; no block that a sequence still writes is another's; and the tokens counted as cached and computed
// are those of the prompt that are done, all of it once tokens were made. Steps may be under way.
func (s *Scheduler) Check() error {
	for i, q := range s.waiting {
		if q.lease != nil || q.ended || i > 0 && s.waiting[i-1].arrival >= q.arrival {
			return fmt.Errorf("sched: waiting request %q has blocks, has ended or is out of order", q.req.ID)
		}
	}
	owner := map[kv.BlockID]*Seq{} // of the blocks that are still written
	leaving := 0
	for i, q := range s.running {
		if q.ended {
			leaving++
		}
		if q.lease == nil || q.ended && q.flying == 0 || i > 0 && s.running[i-1].arrival >= q.arrival {
			return fmt.Errorf("sched: running request %q has no blocks, has ended or is out of order", q.req.ID)
		}
		if q.flying > s.under || q.flying == 0 && q.ahead+q.drawing > 0 {
			return fmt.Errorf("sched: request %q is part of %d steps of %d, %d tokens ahead, %d being picked", q.req.ID, q.flying, s.under, q.ahead, q.drawing)
		}
		if err := s.checkRunning(q, owner); err != nil {
			return err
		}
	}
	if leaving != s.leaving {
		return fmt.Errorf("sched: %d requests have ended and hold blocks, %d are counted", leaving, s.leaving)
	}
	for _, q := range s.running {
		for i, b := range q.lease.Blocks() {
			if o := owner[b]; o != nil && o != q {
				return fmt.Errorf("sched: block %d (the %dth of request %q) is still written by request %q", b, i, q.req.ID, o.req.ID)
			}
		}
	}
	return nil
}

func (s *Scheduler) checkRunning(q *Seq, owner map[kv.BlockID]*Seq) error {
	blocks := q.lease.Blocks()
	unknown := q.valid >= len(q.tokens) || q.reached() >= q.known()
	if unknown && !q.ended || q.reached() > len(blocks)*s.cfg.Layout.BlockTokens {
		return fmt.Errorf("sched: request %q has computed %d of %d tokens, %d more under way, in %d blocks", q.req.ID, q.valid, len(q.tokens), q.ahead, len(blocks))
	}
	if q.ready && q.valid != q.lease.Valid() {
		return fmt.Errorf("sched: request %q has %d valid tokens, its lease %d", q.req.ID, q.valid, q.lease.Valid())
	}
	u := &q.usage
	if got := u.Cached.Total() + u.Computed; got != q.covered || got > u.PromptTokens || u.CompletionTokens > 0 && got != u.PromptTokens {
		return fmt.Errorf("sched: request %q: %d tokens cached and %d computed of a prompt of %d", q.req.ID, u.Cached.Total(), u.Computed, u.PromptTokens)
	}
	if !q.ready {
		return nil
	}
	for _, b := range blocks[q.valid/s.cfg.Layout.BlockTokens:] {
		if o := owner[b]; o != nil {
			return fmt.Errorf("sched: block %d is written by requests %q and %q", b, q.req.ID, o.req.ID)
		}
		owner[b] = q
	}
	return nil
}
