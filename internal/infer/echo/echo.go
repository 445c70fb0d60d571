// Package echo is a Generator without a model: it answers each request with the request's own tokens, in a circle. It
// keeps every promise of package infer (order, cancellation, one last event, a bounded queue), so that a server, a
// load generator or a network can be measured and tested by itself. It caches nothing and samples nothing.
//
// Start at New.
package echo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"larder/internal/infer"
)

// Config describes the engine that echo pretends to be.
type Config struct {
	Vocab       int           // ids must be below; 0: any
	ContextLen  int           // prompt + output; 0: any
	EOS         []int32       // stop a request unless it ignores them
	MaxRunning  int           // at once; 0: no limit
	MaxQueued   int           // waiting beyond that; 0: no limit; negative: none may wait
	TokenTime   time.Duration // between two tokens; 0: as fast as the reader takes them
	EventTokens int           // tokens in one event; 0: 1
}

// Engine is a Generator and a Control. Make it with New.
type Engine struct {
	cfg   Config
	slots chan struct{} // one token for each running request; nil: no limit

	mu     sync.Mutex // guards what follows
	closed bool
	live   int
	stats  infer.Stats
	idle   chan struct{} // closed when live falls to 0; nil while nobody waits
}

// New makes an engine.
func New(cfg Config) *Engine {
	e := &Engine{cfg: cfg}
	if cfg.MaxRunning > 0 {
		e.slots = make(chan struct{}, cfg.MaxRunning)
	}
	if e.cfg.EventTokens < 1 {
		e.cfg.EventTokens = 1
	}
	return e
}

// Close makes further requests fail with ErrClosed. Running ones go on.
func (e *Engine) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
}

// Generate echoes r.
func (e *Engine) Generate(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
	u := infer.Usage{PromptTokens: len(r.Tokens), Timing: infer.Timing{Queued: time.Now()}}
	if err := e.validate(r); err != nil {
		return u, err
	}
	if err := e.enter(); err != nil {
		return u, err
	}
	err := e.admit(ctx)
	if err == nil {
		err = e.produce(ctx, r, &u, emit)
		e.release()
	}
	e.leave(&u, err)
	return u, err
}

func (e *Engine) validate(r *infer.Request) error {
	switch {
	case len(r.Tokens) == 0:
		return fmt.Errorf("%w: no tokens", infer.ErrInvalid)
	case r.MaxNew < 1:
		return fmt.Errorf("%w: max new tokens is %d", infer.ErrInvalid, r.MaxNew)
	case e.cfg.ContextLen > 0 && len(r.Tokens)+1 > e.cfg.ContextLen:
		return fmt.Errorf("%w: %d tokens, %d allowed", infer.ErrTooLong, len(r.Tokens), e.cfg.ContextLen-1)
	}
	for i, id := range r.Tokens {
		if id < 0 || e.cfg.Vocab > 0 && int(id) >= e.cfg.Vocab {
			return fmt.Errorf("%w: token %d is %d, outside the vocabulary", infer.ErrInvalid, i, id)
		}
	}
	return nil
}

// enter counts a request in, or refuses it.
func (e *Engine) enter() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return infer.ErrClosed
	}
	limit := e.cfg.MaxRunning + max(e.cfg.MaxQueued, 0)
	if e.cfg.MaxRunning > 0 && e.cfg.MaxQueued != 0 && e.live >= limit {
		return infer.ErrQueueFull
	}
	e.live++
	e.stats.Requests++
	return nil
}

func (e *Engine) admit(ctx context.Context) error {
	if e.slots == nil {
		return ctx.Err()
	}
	select {
	case e.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *Engine) release() {
	if e.slots != nil {
		<-e.slots
	}
}

func (e *Engine) leave(u *infer.Usage, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live--
	if err != nil {
		e.stats.Aborted++
	}
	e.stats.PromptTokens += uint64(u.PromptTokens)
	e.stats.ComputedTokens += uint64(u.Computed)
	e.stats.GeneratedTokens += uint64(u.CompletionTokens)
	if e.live == 0 && e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
}

// produce emits the tokens of r.
func (e *Engine) produce(ctx context.Context, r *infer.Request, u *infer.Usage, emit func(infer.Event) error) error {
	u.Timing.Admitted = time.Now()
	u.Timing.Loaded, u.Timing.Computing = u.Timing.Admitted, u.Timing.Admitted
	u.Computed = u.PromptTokens
	most := r.MaxNew
	if e.cfg.ContextLen > 0 {
		most = min(most, e.cfg.ContextLen-len(r.Tokens))
	}
	var tick *time.Ticker
	if e.cfg.TokenTime > 0 {
		tick = time.NewTicker(e.cfg.TokenTime)
		defer tick.Stop()
	}
	batch := make([]int32, 0, e.cfg.EventTokens)
	for n := 1; ; n++ {
		if err := pause(ctx, tick); err != nil {
			return e.abort(u, batch, emit, err)
		}
		id := r.Tokens[(n-1)%len(r.Tokens)]
		batch = append(batch, id)
		u.CompletionTokens = n
		if n == 1 {
			u.Timing.FirstToken = time.Now()
		}
		ev := infer.Event{StopID: -1}
		switch {
		case n > r.MinNew && e.stops(r, id):
			ev.Finish, ev.StopID = infer.FinishStop, id
		case n == most:
			ev.Finish = infer.FinishLength
		case len(batch) < e.cfg.EventTokens:
			continue
		}
		if ev.Finish != infer.NotFinished {
			u.Timing.Finished = time.Now()
		}
		ev.Tokens, ev.Usage = batch, *u
		if err := emit(ev); err != nil || ev.Finish != infer.NotFinished {
			return err
		}
		batch = batch[:0]
	}
}

// pause waits for the next token's time.
func pause(ctx context.Context, tick *time.Ticker) error {
	if tick == nil {
		return ctx.Err()
	}
	select {
	case <-tick.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abort emits the last event of a cancelled request.
func (e *Engine) abort(u *infer.Usage, batch []int32, emit func(infer.Event) error, err error) error {
	u.Timing.Finished = time.Now()
	return errors.Join(err, emit(infer.Event{Tokens: batch, Finish: infer.FinishAbort, StopID: -1, Usage: *u}))
}

func (e *Engine) stops(r *infer.Request, id int32) bool {
	return slices.Contains(r.StopIDs, id) || !r.IgnoreEOS && slices.Contains(e.cfg.EOS, id)
}

// Flush has nothing to empty; it only waits for idleness, as Control says.
func (e *Engine) Flush(ctx context.Context) error {
	e.mu.Lock()
	if e.live == 0 {
		e.mu.Unlock()
		return nil
	}
	if _, timed := ctx.Deadline(); !timed {
		n := e.live
		e.mu.Unlock()
		return fmt.Errorf("%w: %d live", infer.ErrInUse, n)
	}
	if e.idle == nil {
		e.idle = make(chan struct{})
	}
	idle := e.idle
	e.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stats counts requests and tokens; there are no tiers.
func (e *Engine) Stats(context.Context) (infer.Stats, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.Running = e.live
	if e.cfg.MaxRunning > 0 && s.Running > e.cfg.MaxRunning {
		s.Waiting = s.Running - e.cfg.MaxRunning
		s.Running = e.cfg.MaxRunning
	}
	return s, nil
}

// Health is nil until Close.
func (e *Engine) Health(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return infer.ErrClosed
	}
	return nil
}
