package engine

import (
	"fmt"
	"runtime"
	"time"

	"larder/internal/device"
	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/sched"
)

// loop is the engine's own goroutine. One turn is one step of the model, or one wait for news.
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
		if e.failure == nil {
			step = e.sched.Next(began)
		}
		ended := e.deliver()
		e.submit()
		switch {
		case step != nil:
			e.run(step, began)
		case !ended: // an end may be what an order waits for
			e.wait()
		}
	}
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

// listen takes what came in, and what moves are done. It may be called while a step is under way.
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

// run carries one step out.
func (e *Engine) run(step *sched.Step, began time.Time) {
	info := StepInfo{Began: began, Sequences: len(step.Rows), DecodeTokens: step.DecodeTokens, PrefillTokens: step.PrefillTokens}
	e.fill(step)
	launched := time.Now()
	tokens, err := e.compute(launched)
	computed := time.Now()
	if err == nil {
		err = e.sched.Done(tokens, computed)
	}
	if err != nil {
		e.fail(err)
		return
	}
	e.deliver()
	e.submit()
	e.stats.Steps++
	if e.cfg.CheckSteps {
		if err := e.check(); err != nil {
			e.fail(err)
			return
		}
	}
	if e.cfg.Listener.StepDone != nil {
		info.Plan, info.Compute, info.Settle = launched.Sub(began), computed.Sub(launched), time.Since(computed)
		info.Running, info.Loading, info.Waiting = e.sched.Counts()
		e.cfg.Listener.StepDone(info)
	}
}

// fill makes the step's batch. Its slices are kept from step to step.
func (e *Engine) fill(step *sched.Step) {
	b := &e.batch
	b.IDs, b.Seqs = b.IDs[:0], b.Seqs[:0]
	for i := range step.Rows {
		r := &step.Rows[i]
		end := r.Context + r.Tokens
		b.IDs = append(b.IDs, r.Seq.Tokens()[r.Context:end]...)
		seq := device.Seq{Blocks: r.Seq.Blocks(end, e.cfg.Cache.Layout.BlockTokens), Context: r.Context, Tokens: r.Tokens}
		if r.Draw {
			seq.Draw = r.Seq.Draw()
		}
		b.Seqs = append(b.Seqs, seq)
	}
}

// compute runs the batch and returns its tokens. While it runs, requests come and go, and loads for those that are
// admitted start; blocks of the batch stay where they are.
func (e *Engine) compute(now time.Time) ([]int32, error) {
	if err := e.cfg.Runner.Launch(&e.batch); err != nil {
		return nil, err
	}
	e.listen(now)
	e.sched.Admit(now)
	e.deliver()
	e.submit()
	tokens, err := e.cfg.Runner.Wait()
	if err != nil {
		return nil, err
	}
	for _, t := range tokens {
		if int(t) >= e.cfg.Vocab {
			return nil, fmt.Errorf("the device picked token %d of a vocabulary of %d", t, e.cfg.Vocab)
		}
	}
	return tokens, nil
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
