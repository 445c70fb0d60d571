package sched

import (
	"fmt"
	"slices"
	"time"

	"larder/internal/infer"
)

// take appends the token picked for q and ends q when that completes it. The token of a cancelled sequence is dropped.
func (s *Scheduler) take(q *Seq, token int32, now time.Time) {
	if q.cancelled != nil {
		return
	}
	if token < 0 {
		s.end(q, infer.FinishAbort, -1, fmt.Errorf("%w: no token could be picked, the logits are not numbers", infer.ErrDevice), now)
		return
	}
	q.tokens = append(q.tokens, token)
	q.usage.CompletionTokens++
	if t := &q.usage.Timing; t.FirstToken.IsZero() {
		t.FirstToken = now
	}
	o := Output{Seq: q, Token: token, StopID: -1}
	switch {
	case slices.Contains(q.stops, token):
		o.Finish, o.StopID = infer.FinishStop, token
	case q.usage.CompletionTokens == q.req.MaxNew:
		o.Finish = infer.FinishLength
	}
	if o.Finish != infer.NotFinished {
		s.leave(q, now)
	}
	s.note(o)
}

// end ends q with no token.
func (s *Scheduler) end(q *Seq, why infer.FinishReason, stop int32, err error, now time.Time) {
	s.leave(q, now)
	s.note(Output{Seq: q, Token: -1, Finish: why, StopID: stop, Err: err})
}

// leave takes q out of every list and its blocks back; while q is part of a step under way, release does that later.
func (s *Scheduler) leave(q *Seq, now time.Time) {
	q.ended = true
	q.hold = hold{}
	q.usage.Timing.Finished = now
	if q.lease == nil {
		s.waiting = remove(s.waiting, q)
		s.stalled = false
		return
	}
	s.leaving++
	if q.flying == 0 {
		s.release(q)
	}
}

// release takes the blocks of a sequence that has ended: no step reads them any more.
func (s *Scheduler) release(q *Seq) {
	q.lease.Close()
	q.lease = nil
	s.running = remove(s.running, q)
	s.leaving--
	s.stalled = false
}
