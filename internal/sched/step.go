package sched

import (
	"fmt"
	"time"

	"larder/internal/infer"
)

// Row is one sequence's part of a step.
type Row struct {
	Seq     *Seq
	Context int  // tokens whose KV is on the device already
	Tokens  int  // tokens to compute: [Context, Context+Tokens)
	Draw    bool // they are the last ones known, so the next is picked
}

// Step is one pass of the model. It is valid until Done or Fail.
type Step struct {
	Rows           []Row
	DecodeTokens   int
	PrefillTokens  int
	DrawnSequences int
}

// maxStalls is how many steps may pass a sequence by while moves that may make room for it are under way, before
// another is retracted for it.
const maxStalls = 4

// Next admits what can be admitted and returns the next pass, or nil when nothing can be computed now. Decoding
// sequences come first, one row each, then prompts by arrival, cut to what the budget leaves. A nil with sequences
// alive means that a move is under way: ask again when it is done.
func (s *Scheduler) Next(now time.Time) *Step {
	if s.flying {
		panic("sched: Next while a step is under way")
	}
	s.step = Step{Rows: s.step.Rows[:0]}
	s.land(now)
	s.cache.Prepare(len(s.running)) // each may need a block soon, and a store takes a while
	for s.fill(now); len(s.step.Rows) == 0; s.fill(now) {
		if len(s.running) > 0 || len(s.waiting) == 0 || s.stalled {
			return nil
		}
		// All that ran ended for want of room; that room is there for others now.
	}
	for i := range s.step.Rows {
		q := s.step.Rows[i].Seq
		q.flying = true
		if t := &q.usage.Timing; t.Computing.IsZero() {
			t.Computing = now
		}
	}
	s.flying = true
	s.caution = max(leastCaution, s.caution*lessCaution)
	return &s.step
}

func (s *Scheduler) fill(now time.Time) {
	s.Admit(now)
	s.decode(now)
	s.prefill()
}

// land lets those go on whose loads are done. A lease whose load failed has lost the blocks from there on; when it
// cannot get them back, the sequence returns to the queue.
func (s *Scheduler) land(now time.Time) {
	for i := len(s.running) - 1; i >= 0; i-- {
		q := s.running[i]
		if q.ready || !q.lease.Ready() {
			continue
		}
		if q.lease.Extend(len(q.tokens)) != nil {
			s.retract(q)
			continue
		}
		q.land(now)
	}
}

// decode adds a row for each sequence that decodes and has, or gets, the block for it. Oldest first: whoever loses
// blocks is younger than who gets them, and has no row yet.
func (s *Scheduler) decode(now time.Time) {
	for i := 0; i < len(s.running); i++ {
		if q := s.running[i]; q.decoding() && s.grow(q, now) {
			s.add(q, 1)
			s.step.DecodeTokens++
		}
	}
}

// prefill spends what the decoding rows left of the budget on prompts.
func (s *Scheduler) prefill() {
	budget := s.cfg.StepTokens - s.step.DecodeTokens
	for _, q := range s.running {
		if budget == 0 {
			return
		}
		if !q.ready || q.decoding() {
			continue
		}
		n := s.chunk(q, budget)
		s.add(q, n)
		s.step.PrefillTokens += n
		budget -= n
	}
}

// chunk is how many of q's tokens to compute now. A cut prompt is cut where a block ends, if it can, so that whole
// blocks are published.
func (s *Scheduler) chunk(q *Seq, budget int) int {
	n := q.remaining()
	if n <= budget {
		return n
	}
	bt := s.cfg.Layout.BlockTokens
	if aligned := (q.valid+budget)/bt*bt - q.valid; aligned > 0 {
		return aligned
	}
	return budget
}

func (s *Scheduler) add(q *Seq, n int) {
	draw := n == q.remaining()
	if draw {
		s.step.DrawnSequences++
	}
	s.step.Rows = append(s.step.Rows, Row{Seq: q, Context: q.valid, Tokens: n, Draw: draw})
}

// grow makes sure that q has a block for its last token. For want of one it waits a little for moves that may make
// room, then retracts the youngest: so the oldest always gets on, and all end. It says whether q can run now.
func (s *Scheduler) grow(q *Seq, now time.Time) bool {
	for {
		err := q.lease.Extend(len(q.tokens))
		if err == nil {
			q.stalls = 0
			return true
		}
		last := s.running[len(s.running)-1]
		alone := len(s.running) == 1
		switch pending := s.cache.Pending() > 0; {
		case pending && (q.stalls < maxStalls || alone && q.stalls < maxTries):
			q.stalls++
			return false
		case alone:
			s.end(q, infer.FinishAbort, -1, fmt.Errorf("%w: %w", infer.ErrNoRoom, err), now)
			return false
		}
		s.retract(last)
		if last == q {
			return false
		}
	}
}

// retract takes q's blocks and puts it back into the queue, where it goes first. What it has published stays cached
// until somebody needs the room.
func (s *Scheduler) retract(q *Seq) {
	q.lease.Close()
	q.lease, q.ready, q.valid, q.pulled = nil, false, 0, true
	q.hold = hold{holders: maxHolders}
	q.usage.Retractions++
	s.running = remove(s.running, q)
	s.waiting = insert(s.waiting, q)
	s.retracted++
	s.caution = min(1, s.caution+moreCaution)
	s.stalled = false
}

// Done takes the step's result: one token for each sequence that drew, in the order of the rows. What was computed is
// published, and the sequences that are complete or were cancelled meanwhile end. An error means that the device
// broke its contract; then nothing has changed and Fail is due.
func (s *Scheduler) Done(tokens []int32, now time.Time) error {
	if len(tokens) != s.step.DrawnSequences {
		return fmt.Errorf("the device picked %d tokens for %d sequences", len(tokens), s.step.DrawnSequences)
	}
	s.flying = false
	for i := range s.step.Rows {
		row := &s.step.Rows[i]
		q := row.Seq
		q.flying = false
		q.valid += row.Tokens
		q.computed(q.valid)
		q.lease.Commit(q.tokens, q.valid)
		if row.Draw {
			s.take(q, tokens[0], now)
			tokens = tokens[1:]
		}
		if q.cancelled != nil && !q.ended {
			s.end(q, infer.FinishAbort, -1, q.cancelled, now)
		}
	}
	return nil
}
