package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"larder/internal/infer"
	"larder/internal/kv/cache"
)

// ask has the loop try something between its turns until it is done. Steps may be under way: what they read is leased.
func (e *Engine) ask(ctx context.Context, try func() (done bool, err error)) error {
	o := &order{ctx: ctx, try: try, reply: make(chan error, 1)}
	if err := e.inbox.order(o); err != nil {
		return err
	}
	select {
	case err := <-o.reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// retry tries the orders that are not done.
func (e *Engine) retry() {
	kept := e.orders[:0]
	for _, o := range e.orders {
		if o.ctx.Err() != nil {
			continue // the asker is gone
		}
		if done, err := o.try(); done {
			o.reply <- err
		} else {
			kept = append(kept, o)
		}
	}
	clear(e.orders[len(kept):])
	e.orders = kept
}

// hangUp answers those who came too late.
func (e *Engine) hangUp() {
	in := e.inbox.take(incoming{}, true)
	for _, q := range in.requests {
		q.mail.refuse(infer.ErrClosed)
	}
	for _, o := range append(e.orders, in.orders...) {
		o.reply <- infer.ErrClosed
	}
}

// abort ends everything once the steps under way are over.
func (e *Engine) abort() (bool, error) {
	e.aborting, e.cut = true, len(e.live)
	e.drain()
	e.sched.Fail(fmt.Errorf("%w: request aborted", infer.ErrClosed), time.Now())
	e.deliver()
	return true, nil
}

// Place implements infer.Placer.
func (e *Engine) Place(ctx context.Context, salt string, tokens []int32, to infer.Placement) error {
	want, err := placement(to)
	if err != nil {
		return err
	}
	return e.ask(ctx, func() (bool, error) {
		if e.sched.Leaving() > 0 {
			return false, nil // they hold what their askers may want placed
		}
		err := e.cache.Place(salt, tokens, want)
		e.sched.Moved()
		waits := errors.Is(err, cache.ErrMoving) || errors.Is(err, cache.ErrNoRoom) && e.cache.Pending() > 0
		return !waits, translate(err)
	})
}

func placement(p infer.Placement) (cache.Placement, error) {
	switch p {
	case infer.Nowhere:
		return cache.Nowhere, nil
	case infer.OnlyDevice:
		return cache.OnlyDevice, nil
	case infer.OnlyHost:
		return cache.OnlyHost, nil
	}
	return 0, fmt.Errorf("%w: unknown placement %d", infer.ErrInvalid, p)
}

// translate wraps the cache's errors in those of infer.
func translate(err error) error {
	for from, to := range map[error]error{
		cache.ErrNoRoom:    infer.ErrNoRoom,
		cache.ErrNotCached: infer.ErrNotCached,
		cache.ErrInUse:     infer.ErrInUse,
	} {
		if errors.Is(err, from) {
			return fmt.Errorf("%w: %w", to, err)
		}
	}
	return err
}

// Residency implements infer.Placer.
func (e *Engine) Residency(ctx context.Context, salt string, tokens []int32) (infer.Residency, error) {
	var r infer.Residency
	err := e.ask(ctx, func() (bool, error) {
		r.Device, r.Host, r.Both, r.Missing = e.cache.Residency(salt, tokens)
		r.Blocks = len(tokens) / e.cfg.Cache.Layout.BlockTokens
		r.BlockBytes = e.cfg.Cache.Layout.BlockBytes()
		return true, nil
	})
	if err != nil {
		return infer.Residency{}, err
	}
	return r, nil
}

// Flush implements infer.Control. Moves, and steps of requests that have ended, are waited for in any case: they end by
// themselves.
func (e *Engine) Flush(ctx context.Context) error {
	_, patient := ctx.Deadline()
	return e.ask(ctx, func() (bool, error) {
		if len(e.live) > 0 {
			return !patient, fmt.Errorf("%w: %d requests live", infer.ErrInUse, len(e.live))
		}
		if e.sched.Under() > 0 || e.cache.Pending() > 0 {
			return false, nil
		}
		err := e.cache.Flush()
		e.sched.Moved()
		return true, translate(err)
	})
}

// Stats implements infer.Control.
func (e *Engine) Stats(ctx context.Context) (infer.Stats, error) {
	var st infer.Stats
	err := e.ask(ctx, func() (bool, error) {
		st = e.snapshot()
		return true, nil
	})
	if err != nil {
		return infer.Stats{}, err
	}
	return st, nil
}

func (e *Engine) snapshot() infer.Stats {
	st := e.stats
	st.Running, st.Loading, st.Waiting = e.sched.Counts()
	st.Retracted = e.sched.Retracted()
	st.BlockTokens = e.cfg.Cache.Layout.BlockTokens
	bytes := uint64(e.cfg.Cache.Layout.BlockBytes())
	for i, t := range e.cache.Stats() {
		st.Tiers[i] = infer.TierStats{
			Total: t.Total, Free: t.Free, Leased: t.Leased, Cached: t.Cached,
			HitTokens:     e.stats.Tiers[i].HitTokens,
			EvictedBlocks: t.EvictedBlocks, DroppedBlocks: t.DroppedBlocks,
			LoadedBlocks: t.LoadedBlocks, StoredBlocks: t.StoredBlocks,
			LoadedBytes: t.LoadedBlocks * bytes, StoredBytes: t.StoredBlocks * bytes,
			FailedLoads: t.FailedLoads, FailedStores: t.FailedStores, LateLoads: t.LateLoads, SkippedStores: t.SkippedStores,
		}
	}
	return st
}

// Health implements infer.Control.
func (e *Engine) Health(ctx context.Context) error {
	return e.ask(ctx, func() (bool, error) {
		if e.failure == nil && e.inbox.shut.Load() {
			return true, infer.ErrClosed
		}
		return true, e.failure
	})
}

// Check implements infer.Checker.
func (e *Engine) Check(ctx context.Context) error {
	return e.ask(ctx, func() (bool, error) { return true, e.check() })
}

// check walks all that the loop owns.
func (e *Engine) check() error {
	if err := e.cache.Check(); err != nil {
		return err
	}
	if err := e.sched.Check(); err != nil {
		return err
	}
	running, loading, waiting := e.sched.Counts()
	if n := running + loading + waiting; n != len(e.live) {
		return fmt.Errorf("invariant 7: %d requests are scheduled, %d callers wait", n, len(e.live))
	}
	if e.ends+uint64(len(e.live)) != e.stats.Requests {
		return fmt.Errorf("invariant 7: %d requests accepted, %d ended, %d live", e.stats.Requests, e.ends, len(e.live))
	}
	e.stats.InvariantChecks++
	return nil
}
