package sched

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"larder/internal/infer"
	"larder/internal/kv/cache"
)

const (
	// maxOvertaken later arrivals may be admitted before a sequence, then it goes first: lpm starves nobody.
	maxOvertaken = 16
	// Looking a prompt up costs a hash of it, so lpm looks only so many up again per admission round.
	looksAgain, looksFirst = 8, 64
	// maxTries bounds the admissions of a sequence that fail with nothing else running, each after all moves were
	// done: then no event is left that could make room (stores that fail for ever, for example).
	maxTries = 64

	startCaution = 0.5
	leastCaution = 0.1
	moreCaution  = 0.2   // per retraction
	lessCaution  = 0.999 // per step
)

// Admit lets waiting sequences in while there are places and blocks. It may be called while a step is under way, so
// that their loads start early.
func (s *Scheduler) Admit(now time.Time) {
	if len(s.waiting) == 0 || s.stalled || len(s.running) >= s.cfg.MaxRunning {
		return
	}
	if s.cfg.Policy == LPM {
		s.look()
	}
	for len(s.running) < s.cfg.MaxRunning && !s.stalled {
		q := s.choose()
		if q == nil {
			return
		}
		s.admit(q, now)
	}
}

// choose is the waiting sequence to try next; nil when there is none that is not held back.
func (s *Scheduler) choose() *Seq {
	var best *Seq
	for _, q := range s.waiting {
		switch {
		case q.hold.holds():
		case s.cfg.Policy == FCFS:
			return q
		case best == nil || before(q, best):
			best = q
		}
	}
	return best
}

// before says that lpm prefers q to b, which arrived earlier.
func before(q, b *Seq) bool {
	if p := b.urgent(); p || q.urgent() {
		return !p
	}
	return q.match > b.match
}

func (q *Seq) urgent() bool { return q.pulled || q.overtaken >= maxOvertaken }

// look refreshes what the waiting sequences would hit: new ones first, then a few in turn.
func (s *Scheduler) look() {
	first := looksFirst
	for _, q := range s.waiting {
		if q.match < 0 && first > 0 {
			s.lookup(q)
			first--
		}
	}
	for range min(looksAgain, len(s.waiting)) {
		s.cursor = (s.cursor + 1) % len(s.waiting)
		s.lookup(s.waiting[s.cursor])
	}
}

func (s *Scheduler) lookup(q *Seq) cache.Hit {
	hit := s.cache.Lookup(q.req.Salt, q.tokens)
	q.match = hit.Device + hit.Host
	return hit
}

// admit gives q its blocks, holds it back, or finds no room for it (then s is stalled).
func (s *Scheduler) admit(q *Seq, now time.Time) {
	hit := s.lookup(q)
	if !s.cfg.NoHold && s.holdBack(q) {
		return
	}
	need := s.blocks(len(q.tokens)) - hit.Device/s.cfg.Layout.BlockTokens
	busy := len(s.running) > 0
	if busy && need+s.growth(q) > s.cache.Room() {
		s.stalled = true
		s.cache.Prepare(need + s.growth(q))
		return
	}
	lease, err := s.open(q, s.loadable(hit))
	switch {
	case err == nil:
		s.enter(q, lease, now)
	case errors.Is(err, cache.ErrNoRoom) && (busy || s.cache.Pending() > 0 && q.tries < maxTries):
		s.stalled = true
		if !busy {
			q.tries++
		}
	default:
		s.end(q, infer.FinishAbort, -1, fmt.Errorf("%w: %w", infer.ErrNoRoom, err), now)
	}
}

// open leases the blocks of all of q's tokens, or none.
func (s *Scheduler) open(q *Seq, maxLoad int) (*cache.Lease, error) {
	lease, err := s.cache.Open(q.req.Salt, q.tokens, maxLoad)
	if err != nil {
		return nil, err
	}
	if err := lease.Extend(len(q.tokens)); err != nil {
		lease.Close()
		return nil, err
	}
	return lease, nil
}

// loadable is how many tokens of a hit are worth loading.
func (s *Scheduler) loadable(hit cache.Hit) int {
	if hit.Host < s.cfg.MinLoadTokens {
		return 0
	}
	return hit.Host
}

// growth estimates the blocks that q and the running sequences will still ask for: the part of their remaining
// tokens that caution says. Being wrong costs a retraction; that makes it more cautious.
func (s *Scheduler) growth(q *Seq) int {
	n := s.blocks(int(s.caution * float64(q.left())))
	for _, r := range s.running {
		if r.ended {
			continue
		}
		n += s.blocks(int(s.caution * float64(r.left())))
	}
	return n
}

// enter moves q from the queue to those that run.
func (s *Scheduler) enter(q *Seq, lease *cache.Lease, now time.Time) {
	s.waiting = remove(s.waiting, q)
	for _, w := range s.waiting {
		if w.arrival > q.arrival {
			break
		}
		w.overtaken++
	}
	s.running = insert(s.running, q)
	q.lease, q.pulled, q.tries, q.stalls = lease, false, 0, 0
	if t := &q.usage.Timing; t.Admitted.IsZero() {
		t.Admitted = now
	}
	if lease.Ready() {
		q.land(now)
	}
}

// insert keeps the list in the order of arrival.
func insert(list []*Seq, q *Seq) []*Seq {
	i := len(list)
	for i > 0 && list[i-1].arrival > q.arrival {
		i--
	}
	return slices.Insert(list, i, q)
}

func remove(list []*Seq, q *Seq) []*Seq {
	if i := slices.Index(list, q); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
