package study

import (
	"sync"
	"time"

	"larder/internal/device"
	"larder/internal/record"
)

// plan predicts the work of a study, in seconds of a machine that reaches part of its ceilings, and tells progress.
// The prediction need not be right: the ETA scales it by what was measured so far.
type plan struct {
	flops, bytes float64 // rates assumed
	roof         Roofline
	tell         Progress
	start        time.Time

	mu      sync.Mutex // guards what follows
	total   float64
	done    float64
	phase   string
	current float64 // work of the phase under way
	each    float64 // work of one of its requests
	partial float64
}

// assumedShare is what a run is predicted to reach of the measured ceilings.
const assumedShare = 0.5

func newPlan(env *Env, start time.Time) *plan {
	p := &plan{flops: 1e11, bytes: 1e10, roof: env.Roofline, tell: env.Progress, start: start}
	for _, c := range env.Ceilings {
		switch c.Name {
		case device.CeilingGEMM:
			p.flops = assumedShare * c.Value
		case device.CeilingMemory:
			p.bytes = assumedShare * c.Value
		}
	}
	return p
}

// overhead is the fixed cost of a request and of a burst that the prediction assumes, in seconds.
const overhead = 0.005

// prefill predicts n prompts of so many new tokens behind context cached ones.
func (p *plan) prefill(n, tokens, context int) float64 {
	s := overhead * float64(n+1)
	if p.roof == nil {
		return s + float64(n*tokens)/1e5
	}
	return s + float64(n)*p.roof.PrefillFLOPs(tokens, context)/p.flops
}

// steps predicts decoding n tokens for each of batch sequences.
func (p *plan) steps(n, batch, context int) float64 {
	if p.roof == nil {
		return float64(n) * overhead
	}
	return float64(n) * (p.roof.DecodeBytes(batch, context)/p.bytes + float64(batch)*p.roof.PrefillFLOPs(1, context)/p.flops)
}

// burst predicts one burst of an arm.
func (p *plan) burst(arm string, batch, input, shared, output int) float64 {
	cached := shared
	if arm == record.Recompute {
		cached = 0
	}
	return p.prefill(batch, input-cached, cached) + p.steps(output-1, batch, input)
}

// predict sums the work of the whole study.
func (r *run) predict() float64 {
	c, p := r.cfg, r.plan
	shared := r.shared
	sum := p.prefill(1, shared, 0) + p.prefill(2, c.InputLen-shared, shared)
	primed := []int{maxBatch(c)}
	if c.Interleave == "batch" {
		primed = c.BatchSizes
	}
	for _, arm := range c.Arms {
		one := 0.0
		for _, n := range primed {
			if groups, _ := c.groups(n); arm != record.Recompute { // validated
				one += p.prefill(groups, shared, 0)
			}
		}
		for _, b := range c.BatchSizes {
			one += p.burst(arm, b, c.InputLen, shared, c.OutputLen)
		}
		sum += one * float64(c.Repeats)
		if arm == record.Recompute {
			continue // held-out hit rates are of the other arms
		}
		for _, h := range c.HeldOut {
			n := c.SharedLen(h, r.env.Layout.BlockTokens)
			least, _ := c.groups(minBatch(c)) // validated
			sum += p.burst(arm, minBatch(c), c.InputLen, n, c.OutputLen) + p.prefill(least, n, 0)
		}
	}
	for _, d := range c.Decode {
		sum += p.decodeRun(c, d, shared)
	}
	return sum
}

func (p *plan) decodeRun(c *Config, d record.DecodeRun, shared int) float64 {
	groups, _ := c.groups(d.Requests) // validated
	return p.prefill(groups, shared, 0) + p.decodeBurst(c, d, shared)
}

func (p *plan) decodeBurst(c *Config, d record.DecodeRun, shared int) float64 {
	width := d.Requests
	if d.Concurrency > 0 {
		width = min(width, d.Concurrency)
	}
	rounds := (d.Requests + width - 1) / width
	return p.prefill(d.Requests, c.InputLen-shared, shared) + p.steps(rounds*(d.OutputLen-1), width, c.InputLen)
}

// begin opens a phase of so much work and so many requests; the returned function closes it.
func (p *plan) begin(phase string, work float64, requests int) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase, p.current, p.partial = phase, work, 0
	p.each = work / float64(max(requests, 1))
	p.report()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.done += p.current
		p.current, p.partial = 0, 0
		p.report()
	}
}

// one says that a request of the phase under way ended.
func (p *plan) one() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partial = min(p.partial+p.each, p.current)
	p.report()
}

// finish reports the end.
func (p *plan) finish(phase string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase, p.done, p.partial = phase, p.total, 0
	p.report()
}

// report tells the listener; p.mu is held.
func (p *plan) report() {
	if p.tell == nil {
		return
	}
	elapsed := time.Since(p.start)
	u := Update{Phase: p.phase, Elapsed: elapsed}
	if at := p.done + p.partial; p.total > 0 && at > 0 {
		u.Fraction = min(at/p.total, 1)
		u.ETA = time.Duration(float64(elapsed) * (1/u.Fraction - 1))
	} else {
		u.ETA = time.Duration(p.total * float64(time.Second))
	}
	p.tell.Update(u)
}
