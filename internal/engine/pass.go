package engine

import (
	"fmt"
	"slices"
	"time"

	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/sample"
	"larder/internal/sched"
)

// pass is a step on its way through the device, which reads the pass's memory until it is over. That memory is kept from
// step to step.
type pass struct {
	batch    device.Batch
	blocks   []kv.BlockID
	draws    []sample.Draw
	info     StepInfo
	launched time.Time
}

// fill makes the step's batch: the scheduler may change its own lists as soon as this returns.
func (p *pass) fill(step *sched.Step, blockTokens int) {
	b := &p.batch
	b.IDs, b.Seqs = b.IDs[:0], b.Seqs[:0]
	p.blocks, p.draws = slices.Grow(p.blocks[:0], blocksOf(step, blockTokens)), slices.Grow(p.draws[:0], step.DrawnSequences)
	for i := range step.Rows {
		r := &step.Rows[i]
		end := r.Context + r.Tokens
		if r.From >= 0 {
			b.IDs = append(b.IDs, device.Drawn(r.From))
		} else {
			b.IDs = append(b.IDs, r.Seq.Tokens()[r.Context:end]...)
		}
		first := len(p.blocks)
		p.blocks = append(p.blocks, r.Seq.Blocks(end, blockTokens)...)
		seq := device.Seq{Blocks: p.blocks[first:], Context: r.Context, Tokens: r.Tokens}
		if r.Draw {
			p.draws = append(p.draws, r.Pick())
			seq.Draw = &p.draws[len(p.draws)-1]
		}
		b.Seqs = append(b.Seqs, seq)
	}
}

// blocksOf is how many blocks the rows of a step read and write.
func blocksOf(step *sched.Step, blockTokens int) (n int) {
	for i := range step.Rows {
		r := &step.Rows[i]
		n += (r.Context + r.Tokens + blockTokens - 1) / blockTokens
	}
	return n
}

// launch sends a step to the device.
func (e *Engine) launch(step *sched.Step, began time.Time) {
	p := &e.passes[e.launched%uint64(len(e.passes))]
	e.launched++
	p.info = StepInfo{Began: began, Sequences: len(step.Rows), DecodeTokens: step.DecodeTokens, PrefillTokens: step.PrefillTokens}
	p.fill(step, e.cfg.Cache.Layout.BlockTokens)
	p.launched = time.Now()
	p.info.Plan = p.launched.Sub(began)
	if err := e.cfg.Runner.Launch(&p.batch); err != nil {
		e.fail(err)
	}
}

// settle waits for the oldest step under way and takes its result: here, and not before, what it wrote is published
// (invariant 4). Those who can be admitted meanwhile are, so that their loads start.
func (e *Engine) settle() {
	e.sched.Admit(time.Now())
	e.deliver()
	e.submit()
	tokens, err := e.cfg.Runner.Wait()
	computed := time.Now()
	if err == nil {
		err = e.checkTokens(tokens)
	}
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
	e.report(computed)
}

// report tells the listener of the step that is done.
func (e *Engine) report(computed time.Time) {
	p := &e.passes[e.settled%uint64(len(e.passes))]
	e.settled++
	last := e.computed
	e.computed = computed
	if e.cfg.Listener.StepDone != nil {
		p.info.Compute, p.info.Settle = computed.Sub(later(p.launched, last)), time.Since(computed)
		p.info.Took = time.Since(later(p.info.Began, last))
		p.info.Running, p.info.Loading, p.info.Waiting = e.sched.Counts()
		e.cfg.Listener.StepDone(p.info)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (e *Engine) checkTokens(tokens []int32) error {
	for _, t := range tokens {
		if int(t) >= e.cfg.Vocab {
			return fmt.Errorf("the device picked token %d of a vocabulary of %d", t, e.cfg.Vocab)
		}
	}
	return nil
}

// drain waits for the steps under way and drops what comes of them.
func (e *Engine) drain() {
	if e.failure != nil {
		return // the device is not asked again
	}
	for range e.sched.Under() {
		if _, err := e.cfg.Runner.Wait(); err != nil {
			return
		}
	}
}
