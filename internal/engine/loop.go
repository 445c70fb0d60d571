package engine

import (
	"fmt"
	"runtime"
	"time"

	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/sched"
)

// loop is the engine's own goroutine. One turn launches a step of the model, waits for the oldest one under way, or waits
// for news. With Config.Overlap the device has its next step before it is done with one.
func (e *Engine) loop() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(e.done)
	defer e.hangUp()
	for {
		began := time.Now()
		e.listen(began)
		e.retry()
		if e.over() {
			return
		}
		var step *sched.Step
		if e.failure == nil && e.sched.Under() < e.depth() {
			step = e.sched.Next(began)
		}
		ended := e.deliver()
		e.submit()
		switch {
		case step != nil:
			e.launch(step, began)
		case e.sched.Under() > 0:
			e.settle()
		case !ended: // an end may be what an order waits for
			e.wait()
		}
	}
}

// depth is how many steps may be under way.
func (e *Engine) depth() int {
	if e.cfg.Overlap {
		return len(e.passes)
	}
	return 1
}

// over says that the engine was closed and has nothing left to do.
func (e *Engine) over() bool {
	return e.inbox.shut.Load() && !e.inbox.full.Load() && e.sched.Idle() && (e.aborting || e.cache.Pending() == 0)
}

// wait sleeps until somebody sends something or a move is done.
func (e *Engine) wait() {
	var moved <-chan struct{}
	if e.cfg.Mover != nil {
		moved = e.cfg.Mover.Notify()
	}
	select {
	case <-e.inbox.wake:
	case <-moved:
	}
}

// listen takes what came in, and what moves are done.
func (e *Engine) listen(now time.Time) {
	if e.inbox.full.Load() {
		in := e.inbox.take(e.spare, false)
		for _, q := range in.requests {
			e.accept(q)
		}
		for _, c := range in.cancels {
			if _, ok := e.live[c.request.seq]; ok {
				e.sched.Cancel(c.request.seq, c.cause, now)
			}
		}
		e.orders = append(e.orders, in.orders...)
		e.spare = in.emptied()
	}
	e.poll(now)
	e.deliver()
}

func (e *Engine) accept(q *request) {
	err := e.failure
	if err == nil {
		err = e.sched.Add(q.seq)
	}
	if err != nil {
		q.mail.refuse(err)
		return
	}
	e.live[q.seq] = q
	e.stats.Requests++
}

// poll tells the cache which moves are done.
func (e *Engine) poll(now time.Time) {
	if e.cfg.Mover == nil || e.cfg.Mover.Poll(e.moved) == 0 {
		return
	}
	e.sched.Moved()
	if e.cfg.Listener.MovesDone != nil {
		e.moves.At = now
		e.cfg.Listener.MovesDone(e.moves)
	}
	e.moves = MovesInfo{}
}

func (e *Engine) moveDone(m kv.Move, err error) {
	e.cache.Done(m.ID, err)
	if err != nil {
		e.moves.Failed[m.From][m.To]++
		return
	}
	e.moves.Done[m.From][m.To]++
	e.moves.Bytes += e.cfg.Cache.Layout.BlockBytes()
}

// submit hands on the moves that the cache has ordered.
func (e *Engine) submit() {
	if moves := e.cache.Moves(); len(moves) > 0 {
		e.cfg.Mover.Submit(moves)
	}
}

// deliver hands news to those who asked. It says whether a request has ended.
func (e *Engine) deliver() (ended bool) {
	outputs := e.sched.Outputs()
	for i := range outputs {
		o := &outputs[i]
		q := e.live[o.Seq]
		usage := o.Seq.Usage()
		if o.Token >= 0 {
			e.count(&usage)
		}
		if o.Finish != infer.NotFinished {
			ended = true
			e.finish(q, o, usage)
		}
		q.mail.put(o, usage)
	}
	return ended
}

// count adds a token to the totals, and with the first the prompt, so that hits + computed = prompt holds for them at
// any time. The cache's own counts of hits include those of admissions that found no room or were repeated.
func (e *Engine) count(u *infer.Usage) {
	e.stats.GeneratedTokens++
	if u.CompletionTokens == 1 {
		e.stats.PromptTokens += uint64(u.PromptTokens)
		e.stats.ComputedTokens += uint64(u.Computed)
		e.stats.Tiers[kv.Device].HitTokens += uint64(u.Cached.Device)
		e.stats.Tiers[kv.Host].HitTokens += uint64(u.Cached.Host)
	}
}

func (e *Engine) finish(q *request, o *sched.Output, usage infer.Usage) {
	delete(e.live, q.seq)
	e.ends++
	if o.Finish == infer.FinishAbort {
		e.stats.Aborted++
	}
	if e.cfg.Listener.RequestDone != nil {
		e.cfg.Listener.RequestDone(RequestInfo{q.seq.Request(), o.Finish, o.Err, usage})
	}
}

// fail is the end of all computing: every request gets the error, and those to come too.
func (e *Engine) fail(err error) {
	e.failure = fmt.Errorf("%w: %w", infer.ErrDevice, err)
	e.inbox.refuse(e.failure)
	e.sched.Fail(e.failure, time.Now())
	e.deliver()
}
