// Package sched decides which tokens of which request go through the model next, and which request gets or loses KV
// blocks. It is a pure state machine over kv/cache: no device, no goroutine, no clock (the time is passed in). It
// refuses to know about text, devices and bytes; the moves that kv/cache orders meanwhile are the engine's to carry out.
//
// Start at Scheduler. A sequence (Seq) waits, is admitted when the blocks of its whole prompt are its own, perhaps
// waits for loads from a slower tier, is computed chunk by chunk, then token by token, and ends; under pressure the
// youngest goes back to the queue and its tokens so far become its prompt.
//
// With Config.Overlap a step may be planned while the one before is under way: as if each sequence went on, with the
// token that is just being picked still unknown. What ends meanwhile keeps its blocks until no step reads them.
package sched

import (
	"fmt"
	"time"

	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/kv/cache"
)

// Policy is the order in which waiting requests are admitted.
type Policy uint8

// The policies.
const (
	FCFS Policy = iota // by arrival
	LPM                // longest cached prefix first; who was overtaken maxOvertaken times goes before
)

// ParsePolicy reads "fcfs" or "lpm".
func ParsePolicy(name string) (Policy, error) {
	switch name {
	case "fcfs":
		return FCFS, nil
	case "lpm":
		return LPM, nil
	}
	return 0, fmt.Errorf("schedule policy %q: want fcfs or lpm", name)
}

// Config bounds the scheduler. It is copied by New and never changed.
type Config struct {
	MaxRunning    int  // most requests that hold blocks at once; also the most sequences of one step
	MaxQueued     int  // most requests that wait, besides those for which a place to run is free
	StepTokens    int  // most rows (tokens) of one step; at least MaxRunning, so that prefill always finds a row left
	MinLoadTokens int  // a shorter hit on a slower tier is computed instead of loaded; 0: always load
	Overlap       bool // plan a step while the one before is under way
	NoHold        bool // do not hold a request back while another is just computing the prefix that they share
	Policy        Policy
	Layout        kv.Layout
	DeviceBlocks  int // blocks of the device tier: no single request may need more
}

// Validate reports what is wrong with the config.
func (c *Config) Validate() error {
	if err := c.Layout.Validate(); err != nil {
		return err
	}
	switch {
	case c.MaxRunning < 1:
		return fmt.Errorf("max running requests %d: must be at least 1", c.MaxRunning)
	case c.MaxQueued < 1:
		return fmt.Errorf("max queued requests %d: must be at least 1", c.MaxQueued)
	case c.StepTokens < c.MaxRunning:
		return fmt.Errorf("chunk of %d tokens per step: must be at least the %d requests that may run, one token each", c.StepTokens, c.MaxRunning)
	case c.MinLoadTokens < 0:
		return fmt.Errorf("least tokens to load %d: must not be negative", c.MinLoadTokens)
	case c.Policy > LPM:
		return fmt.Errorf("unknown schedule policy %d", c.Policy)
	case c.DeviceBlocks < 1:
		return fmt.Errorf("%d device blocks: must be at least 1", c.DeviceBlocks)
	}
	return nil
}

// Scheduler owns the sequences from Add to their Output. For one goroutine.
type Scheduler struct {
	cfg     Config
	cache   *cache.Cache
	waiting []*Seq // by arrival
	running []*Seq // by arrival; each has a lease. Ended ones stay while a step that they are part of is under way
	steps   [maxUnder]Step
	oldest  int // of the steps under way
	under   int // steps under way: between their Next and their Done, or Fail
	leaving int // ended sequences that are still in running
	outputs []Output
	spare   []Output // what Outputs gave last, for reuse

	arrivals  uint64
	retracted uint64
	stalled   bool    // the last admission found no room and nothing has been freed since
	caution   float64 // share of the tokens still to come for which admission keeps room
	cursor    int     // next waiting sequence whose match is looked up again
}

// New makes a scheduler that takes blocks from c.
func New(cfg Config, c *cache.Cache) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Scheduler{cfg: cfg, cache: c, caution: startCaution}, nil
}

// Output is news of one sequence: a token, its end, or both.
type Output struct {
	Seq    *Seq
	Token  int32 // -1: none
	Finish infer.FinishReason
	StopID int32 // with FinishStop; else -1
	Err    error // why, with FinishAbort
}

// Outputs drains the news since the last call, in the order in which they happened. The slice is valid until the next
// call. Every sequence that was added has exactly one Output with a Finish.
func (s *Scheduler) Outputs() []Output {
	s.spare, s.outputs = s.outputs, s.spare[:0]
	return s.spare
}

// Add queues a sequence. It fails with ErrQueueFull, or with ErrTooLong when the device tier could never hold it;
// then nothing of it remains.
func (s *Scheduler) Add(q *Seq) error {
	if free := s.cfg.MaxRunning - len(s.running); len(s.waiting) >= s.cfg.MaxQueued+free {
		return fmt.Errorf("%w: %d requests wait", infer.ErrQueueFull, len(s.waiting))
	}
	// The last token made is never computed, so it needs no KV.
	if tokens := len(q.req.Tokens) + q.req.MaxNew - 1; s.blocks(tokens) > s.cfg.DeviceBlocks {
		return fmt.Errorf("%w: the input (%d tokens) and max_new_tokens (%d) need more KV cache than the device has (%d tokens)",
			infer.ErrTooLong, len(q.req.Tokens), q.req.MaxNew, s.cfg.DeviceBlocks*s.cfg.Layout.BlockTokens)
	}
	s.arrivals++
	q.arrival = s.arrivals
	s.waiting = append(s.waiting, q)
	return nil
}

// Cancel ends a sequence because of cause. Its blocks are free at once, or, when it is part of a step under way, after
// that step. A sequence that has ended is left alone.
func (s *Scheduler) Cancel(q *Seq, cause error, now time.Time) {
	switch {
	case q.ended:
	case q.flying > 0:
		q.cancelled = cause
	default:
		s.end(q, infer.FinishAbort, -1, cause, now)
	}
}

// Fail ends every sequence because of cause and forgets the steps under way: the device will not finish them, or has.
func (s *Scheduler) Fail(cause error, now time.Time) {
	s.under = 0
	for _, list := range [][]*Seq{s.running, s.waiting} {
		for i := len(list) - 1; i >= 0; i-- {
			q := list[i]
			q.flying = 0
			if q.ended {
				s.release(q)
				continue
			}
			s.end(q, infer.FinishAbort, -1, cause, now)
		}
	}
}

// Moved says that blocks may have come free otherwise than through this scheduler: moves done, prefixes dropped.
func (s *Scheduler) Moved() { s.stalled = false }

// Counts are the numbers of sequences that compute, wait for a load, and wait for admission.
func (s *Scheduler) Counts() (running, loading, waiting int) {
	for _, q := range s.running {
		if !q.ready {
			loading++
		}
	}
	return len(s.running) - s.leaving - loading, loading, len(s.waiting)
}

// Under is how many steps are under way.
func (s *Scheduler) Under() int { return s.under }

// Leaving is how many sequences have ended and keep their blocks until a step under way is done.
func (s *Scheduler) Leaving() int { return s.leaving }

// Retracted is how often a sequence lost its blocks to others.
func (s *Scheduler) Retracted() uint64 { return s.retracted }

// Idle says that no sequence lives and no step is under way.
func (s *Scheduler) Idle() bool { return len(s.running)+len(s.waiting)+s.under == 0 }

func (s *Scheduler) blocks(tokens int) int { return s.cfg.Layout.Blocks(tokens) }

func (s *Scheduler) note(o Output) { s.outputs = append(s.outputs, o) }
