package sched

import (
	"fmt"
	"time"

	"larder/internal/infer"
	"larder/internal/sample"
)

// Row is one sequence's part of a step.
type Row struct {
	Seq     *Seq
	Context int  // tokens whose KV is on the device when the step runs
	Tokens  int  // tokens to compute: [Context, Context+Tokens)
	Draw    bool // they are the last ones there are, so the next is picked
	Made    int  // tokens picked before that one
	From    int  // its last token is still being picked: this is its place among the draws of the step before; else -1
}

// Pick says how to pick the row's token.
func (r *Row) Pick() sample.Draw { return r.Seq.pick(r.Made) }

// Step is one pass of the model. It is valid until its Done, or Fail.
type Step struct {
	Rows           []Row
	DecodeTokens   int
	PrefillTokens  int
	DrawnSequences int
}

// maxUnder is how many steps may be under way: one that is computed, and the next.
const maxUnder = 2

// maxStalls is how many steps may pass a sequence by while moves that may make room for it are under way, before
// another is retracted for it.
const maxStalls = 4

// Next admits what can be admitted and returns the next pass, or nil when nothing can be computed now. Decoding
// sequences come first, one row each, then prompts by arrival, cut to what the budget leaves. A nil with sequences
// alive and no step under way means that a move is: ask again when it is done.
func (s *Scheduler) Next(now time.Time) *Step {
	if s.under == s.depth() {
		panic("sched: Next while as many steps are under way as may be")
	}
	step := &s.steps[(s.oldest+s.under)%maxUnder]
	*step = Step{Rows: step.Rows[:0]}
	s.land(now)
	s.cache.Prepare(len(s.running)) // each may need a block soon, and a store takes a while
	for !s.fill(step, now) {
		if len(s.running) > 0 || len(s.waiting) == 0 || s.stalled {
			return nil
		}
		// All that ran ended for want of room; that room is there for others now.
	}
	step.launch(now)
	s.under++
	s.caution = max(leastCaution, s.caution*lessCaution)
	return step
}

// depth is how many steps may be under way.
func (s *Scheduler) depth() int {
	if s.cfg.Overlap {
		return maxUnder
	}
	return 1
}

// launch counts the rows as under way.
func (step *Step) launch(now time.Time) {
	draws := 0
	for i := range step.Rows {
		r := &step.Rows[i]
		q := r.Seq
		q.flying++
		q.ahead += r.Tokens
		if r.Draw {
			q.drawing++
			q.drawn = draws
			draws++
		}
		if t := &q.usage.Timing; t.Computing.IsZero() {
			t.Computing = now
		}
	}
}

// fill plans the step and says whether it shall run. Behind a step under way that is not so when a sequence lacks a
// block that only retraction could give it, which must wait for that step; nor when the step under way computes prompts
// and this one would be less than full: what arrives meanwhile goes into it then.
func (s *Scheduler) fill(step *Step, now time.Time) bool {
	s.Admit(now)
	fed := s.decode(step, now)
	full := s.prefill(step)
	if s.under > 0 && (!fed || !full && s.steps[s.oldest].PrefillTokens > 0) {
		return false
	}
	return len(step.Rows) > 0
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
// blocks is younger than who gets them, and has no row yet. It says whether all got theirs.
func (s *Scheduler) decode(step *Step, now time.Time) (fed bool) {
	fed = true
	for i := 0; i < len(s.running); i++ {
		q := s.running[i]
		if !q.goes() || !q.decoding() {
			continue
		}
		if !s.grow(q, now) {
			fed = false
			continue
		}
		step.add(q, 1)
		step.DecodeTokens++
	}
	return fed
}

// prefill spends what the decoding rows left of the budget on prompts. It says whether that was too little for them.
func (s *Scheduler) prefill(step *Step) (full bool) {
	budget := s.cfg.StepTokens - step.DecodeTokens
	for _, q := range s.running {
		if !q.goes() || q.decoding() {
			continue
		}
		if budget == 0 {
			return true
		}
		n := s.chunk(q, budget)
		full = full || n < q.remaining()
		step.add(q, n)
		step.PrefillTokens += n
		budget -= n
	}
	return full
}

// chunk is how many of q's tokens to compute now. A cut prompt is cut where a block ends, if it can, so that whole
// blocks are published.
func (s *Scheduler) chunk(q *Seq, budget int) int {
	n := q.remaining()
	if n <= budget {
		return n
	}
	bt := s.cfg.Layout.BlockTokens
	if aligned := (q.reached()+budget)/bt*bt - q.reached(); aligned > 0 {
		return aligned
	}
	return budget
}

func (step *Step) add(q *Seq, n int) {
	row := Row{Seq: q, Context: q.reached(), Tokens: n, Draw: n == q.remaining(), Made: q.made(), From: -1}
	if q.drawing > 0 {
		row.From = q.drawn
	}
	if row.Draw {
		step.DrawnSequences++
	}
	step.Rows = append(step.Rows, row)
}

// grow makes sure that q has a block for its last token. For want of one it waits for the steps under way, which read
// the blocks of others, a little for moves that may make room, then retracts the youngest: so the oldest always gets
// on, and all end. It says whether q can run now.
func (s *Scheduler) grow(q *Seq, now time.Time) bool {
	for {
		err := q.lease.Extend(q.known())
		if err == nil {
			q.stalls = 0
			return true
		}
		if s.under > 0 {
			return false
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

// Done takes the result of the oldest step under way: one token for each sequence that drew, in the order of the rows.
// What was computed is published, and the sequences that are complete or were cancelled meanwhile end. An error means
// that the device broke its contract; then nothing has changed and Fail is due.
func (s *Scheduler) Done(tokens []int32, now time.Time) error {
	if s.under == 0 {
		panic("sched: Done while no step is under way")
	}
	step := &s.steps[s.oldest]
	if len(tokens) != step.DrawnSequences {
		return fmt.Errorf("the device picked %d tokens for %d sequences", len(tokens), step.DrawnSequences)
	}
	s.oldest = (s.oldest + 1) % maxUnder
	s.under--
	for i := range step.Rows {
		row := &step.Rows[i]
		token := int32(-1)
		if row.Draw {
			token, tokens = tokens[0], tokens[1:]
		}
		s.done(row, token, now)
	}
	if s.under == 0 {
		s.retire()
	}
	return nil
}

// done takes one row's result. Of a sequence that has ended it is nothing but the last use of its blocks.
func (s *Scheduler) done(row *Row, token int32, now time.Time) {
	q := row.Seq
	q.flying--
	q.ahead -= row.Tokens
	if row.Draw {
		q.drawing--
	}
	if q.ended {
		if q.flying == 0 {
			s.release(q)
		}
		return
	}
	q.valid += row.Tokens
	q.computed(q.valid)
	q.lease.Commit(q.tokens, q.valid)
	if row.Draw {
		s.take(q, token, now)
	}
	if q.cancelled != nil && !q.ended {
		s.end(q, infer.FinishAbort, -1, q.cancelled, now)
	}
}

// retire gives back the blocks that others took the place of: no step reads them any more.
func (s *Scheduler) retire() {
	for _, q := range s.running {
		q.lease.Retire()
	}
}
