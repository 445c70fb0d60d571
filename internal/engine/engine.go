// Package engine joins those who decide (sched, kv/cache) and those who do (model, kv/xfer): one goroutine, locked to
// its OS thread, owns them all, and everybody else sends it messages. It makes tokens out of tokens; it refuses to know
// about text, JSON and HTTP, and takes no decision of its own.
//
// Start at Engine; loop.go and pass.go are the life of a step, and hold invariant 4: a block is published only after
// the device said that it is written.
package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/kv/cache"
	"larder/internal/sched"
)

// Engine implements infer.Generator, infer.Placer, infer.Control and infer.Checker; all their methods are safe for
// concurrent use. Invariant 7: every request that Generate accepted gets exactly one last event.
type Engine struct {
	cfg   Config
	inbox inbox
	done  chan struct{} // closed when the loop is gone

	// The loop's own, from here on.
	cache    *cache.Cache
	sched    *sched.Scheduler
	live     map[*sched.Seq]*request
	passes   [2]pass // steps on their way: the n-th launched is in place n % 2
	launched uint64
	settled  uint64
	computed time.Time // when the last step settled was done
	orders   []*order  // being tried
	spare    incoming
	moved    func(kv.Move, error) // e.moveDone, bound once
	moves    MovesInfo
	failure  error // the device's; nothing is computed any more
	aborting bool  // end even with moves under way
	cut      int   // requests that Close aborted
	stats    infer.Stats
	ends     uint64 // accepted requests that got their last event
}

var (
	_ infer.Generator = (*Engine)(nil)
	_ infer.Placer    = (*Engine)(nil)
	_ infer.Control   = (*Engine)(nil)
	_ infer.Checker   = (*Engine)(nil)
)

// New makes an engine. It computes nothing before Start; requests wait in its inbox.
func New(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c, err := cache.New(cfg.Cache)
	if err != nil {
		return nil, err
	}
	s, err := sched.New(cfg.sched(), c)
	if err != nil {
		return nil, err
	}
	e := &Engine{cfg: cfg, cache: c, sched: s, live: map[*sched.Seq]*request{}, done: make(chan struct{})}
	e.inbox = inbox{limit: cfg.MaxQueued + cfg.MaxRunning, wake: make(chan struct{}, 1)}
	e.moved = e.moveDone
	return e, nil
}

// Start starts the loop. It must be called once, and Close after it.
func (e *Engine) Start() { go e.loop() }

// abortGrace is how long Close waits for the step under way once it aborts.
const abortGrace = 5 * time.Second

// Close takes no new request (they get ErrClosed), finishes those accepted, and returns when the loop has ended. When
// ctx is done first, it ends them with ErrClosed and says so. The caller closes mover and device after it.
func (e *Engine) Close(ctx context.Context) error {
	e.inbox.close()
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
	}
	abort := &order{ctx: context.Background(), try: e.abort, reply: make(chan error, 1)}
	if e.inbox.order(abort) != nil {
		return nil // it ended just now
	}
	late := time.NewTimer(abortGrace)
	defer late.Stop()
	select {
	case <-e.done:
		if e.cut == 0 {
			return nil
		}
		return fmt.Errorf("%d requests aborted on shutdown: %w", e.cut, ctx.Err())
	case <-late.C:
		return fmt.Errorf("the device does not finish its step: %w", ctx.Err())
	}
}

// Generate implements infer.Generator.
func (e *Engine) Generate(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
	refused := infer.Usage{PromptTokens: len(r.Tokens)}
	if err := r.Validate(e.cfg.Vocab, e.cfg.ContextLen); err != nil {
		return refused, err
	}
	if err := ctx.Err(); err != nil {
		return refused, err
	}
	q := &request{seq: sched.NewSeq(r, e.cfg.EOS, time.Now()), mail: mail{wake: make(chan struct{}, 1)}}
	if err := e.inbox.request(q); err != nil {
		return refused, err
	}
	return e.follow(ctx, q, emit)
}

// follow hands on q's events until the last.
func (e *Engine) follow(ctx context.Context, q *request, emit func(infer.Event) error) (infer.Usage, error) {
	var stopped error // why q was cancelled from here
	var muted bool    // emit has failed and is not called again
	stop := func(err error) {
		if stopped == nil {
			stopped = err
			e.inbox.cancel(q, err)
		}
	}
	gone := ctx.Done()
	var l letter
	for {
		select {
		case <-q.mail.wake:
		case <-gone:
			gone = nil
			stop(ctx.Err())
			continue
		}
		l = q.mail.take(l.tokens)
		accepted := l.finish != infer.NotFinished || l.err == nil
		if accepted && !muted {
			ev := infer.Event{Tokens: l.tokens, Finish: l.finish, StopID: l.stopID, Usage: l.usage}
			if err := emit(ev); err != nil {
				muted = true
				stop(err)
			}
		}
		if l.last {
			return l.usage, outcome(&l, stopped, muted)
		}
	}
}

// outcome is Generate's error after the last letter. An error of emit counts even when the request was complete.
func outcome(l *letter, stopped error, muted bool) error {
	if muted || l.err != nil && errors.Is(l.err, stopped) {
		return stopped
	}
	return l.err
}
