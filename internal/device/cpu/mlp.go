package cpu

import (
	"math"

	"larder/internal/device"
	"larder/internal/device/cpu/gemm"
)

// moeScratch is the routing of up to mlpRows rows and the experts' answers.
type moeScratch struct {
	router  []float32 // [rows][padded experts]
	chosen  []int32   // [rows][k]
	weight  []float32 // [rows][k]
	byOne   []int32   // pairs (row*k + rank), sorted by expert
	start   []int     // by expert: where its pairs begin
	answers []float32 // [rows][k][padded hidden]
	tasks   []expertTask
}

// expertTask is up to tileRows pairs of one expert.
type expertTask struct{ expert, lo, hi int }

// expertScratch is one worker's block of rows through one expert.
type expertScratch struct {
	in       operand   // [tileRows][hidden]
	gate, up []float32 // [tileRows][padded intermediate]
	act      operand   // [tileRows][intermediate]
	down     []float32 // [tileRows][padded hidden]
	exp      []float32
}

// width is the widest intermediate and the most experts that a row visits.
func (c *compute) width() (intermediate, visits int) {
	intermediate, visits = c.cfg.IntermediateSize, 1
	if c.cfg.NumExperts > 0 {
		intermediate = max(intermediate, c.cfg.MoEIntermediateSize)
		visits = c.cfg.NumExpertsPerToken
	}
	return intermediate, visits
}

func (c *compute) newMoE(rows int) moeScratch {
	_, visits := c.width()
	return moeScratch{
		router: make([]float32, rows*pad(max(c.cfg.NumExperts, 1))),
		chosen: make([]int32, rows*visits), weight: make([]float32, rows*visits), byOne: make([]int32, rows*visits),
		start:   make([]int, c.cfg.NumExperts+2),
		answers: make([]float32, rows*visits*pad(c.cfg.HiddenSize)),
	}
}

func (c *compute) newExpert() expertScratch {
	inter, _ := c.width()
	return expertScratch{
		in: c.newOperand(tileRows, c.cfg.HiddenSize), act: c.newOperand(tileRows, inter),
		gate: make([]float32, tileRows*pad(inter)), up: make([]float32, tileRows*pad(inter)),
		down: make([]float32, tileRows*pad(c.cfg.HiddenSize)), exp: make([]float32, pad(inter)),
	}
}

// MLP implements device.Compute.
func (c *compute) MLP(w *device.MLPWeights) {
	for lo := 0; lo < len(c.rows); lo += mlpRows {
		c.mlp(w, lo, min(lo+mlpRows, len(c.rows)))
	}
}

func (c *compute) mlp(w *device.MLPWeights, lo, hi int) {
	e := w.Experts.(*experts)
	h, pitch := c.cfg.HiddenSize, c.evenHidden()
	n := hi - lo
	c.team.rows(n, 64, func(_, a, b int) {
		for r := a; r < b; r++ {
			rmsNorm(c.exact[r*pitch:][:h], c.x(lo+r), w.Norm.(vector), c.cfg.RMSNormEps)
		}
	})
	visits := 1
	if w.Router != nil {
		visits = c.cfg.NumExpertsPerToken
		c.route(w.Router.(*matrix).Packed, n)
	} else {
		clear(c.moe.chosen[:n])
		for i := range n {
			c.moe.weight[i] = 1
		}
	}
	c.group(n*visits, len(e.gate))
	c.team.run(len(c.moe.tasks), func(worker, task int) { c.expert(worker, e, c.moe.tasks[task], visits) })
	c.combine(lo, n, visits)
}

// route picks each row's experts: softmax over all in fp32, the most probable, ties to the lower number.
func (c *compute) route(router *gemm.Packed, n int) {
	pitch, ld, k := c.evenHidden(), router.Padded(), c.cfg.NumExpertsPerToken
	c.team.rows(n, 32, func(_, a, b int) {
		c.family.Wide(c.moe.router[a*ld:], ld, c.exact[a*pitch:], pitch, b-a, router, 0, router.Panels())
		for r := a; r < b; r++ {
			c.choose(c.moe.router[r*ld:r*ld+router.N], c.moe.chosen[r*k:(r+1)*k], c.moe.weight[r*k:(r+1)*k])
		}
	})
}

func (c *compute) choose(logits []float32, chosen []int32, weight []float32) {
	top := logits[0]
	for _, v := range logits {
		top = max(top, v)
	}
	var sum float32
	for i, v := range logits {
		p := float32(math.Exp(float64(v - top)))
		logits[i] = p
		sum += p
	}
	var kept float32
	for j := range chosen {
		best := 0
		for i, p := range logits {
			if p > logits[best] {
				best = i
			}
		}
		chosen[j], weight[j] = int32(best), logits[best]/sum
		kept += weight[j]
		logits[best] = -1
	}
	if c.cfg.NormTopKProb {
		for j := range weight {
			weight[j] /= kept
		}
	}
}

// group sorts the pairs by expert, keeping their order within one, and cuts them into tasks, the largest experts first.
func (c *compute) group(pairs, count int) {
	m := &c.moe
	start := m.start[:count+1]
	clear(start)
	for _, e := range m.chosen[:pairs] {
		start[e+1]++
	}
	m.tasks = m.tasks[:0]
	for e := range count {
		start[e+1] += start[e]
		for at := start[e]; at < start[e+1]; at += tileRows {
			m.tasks = append(m.tasks, expertTask{e, at, min(at+tileRows, start[e+1])})
		}
	}
	for i, e := range m.chosen[:pairs] {
		m.byOne[start[e]] = int32(i)
		start[e]++
	}
}

// expert runs some pairs through one expert: its weights are read once for all of them.
func (c *compute) expert(worker int, e *experts, t expertTask, visits int) {
	s := &c.work[worker].expert
	h := c.cfg.HiddenSize
	gate, up, down := e.gate[t.expert], e.up[t.expert], e.down[t.expert]
	pairs := c.moe.byOne[t.lo:t.hi]
	n := len(pairs)
	for i, p := range pairs {
		r := int(p) / visits
		c.put(s.in.row(i), c.exact[r*c.evenHidden():][:h])
	}
	ld := gate.Padded()
	c.family.Weight(s.gate, ld, s.in.bytes, s.in.pitch, n, gate, 0, gate.Panels())
	c.family.Weight(s.up, ld, s.in.bytes, s.in.pitch, n, up, 0, up.Panels())
	for i := range n {
		c.swiglu(s, i, ld, gate.N)
	}
	c.family.Weight(s.down, down.Padded(), s.act.bytes, s.act.pitch, n, down, 0, down.Panels())
	for i, p := range pairs {
		copy(c.moe.answers[int(p)*pad(h):][:h], s.down[i*down.Padded():][:h])
	}
}

// swiglu makes row i of the activations: silu(gate) * up, silu(g) = g / (1 + exp(-g)).
func (c *compute) swiglu(s *expertScratch, i, ld, n int) {
	gate, up, e := s.gate[i*ld:(i+1)*ld], s.up[i*ld:(i+1)*ld], s.exp[:ld]
	copy(e, gate)
	c.family.Exp(e, -1, 0)
	for j := range n {
		gate[j] = gate[j] / (1 + e[j]) * up[j]
	}
	c.put(s.act.row(i), gate[:n])
}

// combine adds each row's weighted answers to the hidden state, in the order of rank.
func (c *compute) combine(lo, n, visits int) {
	h := c.cfg.HiddenSize
	c.team.rows(n, 32, func(worker, a, b int) {
		sum := c.work[worker].row[:h]
		for r := a; r < b; r++ {
			clear(sum)
			for j := range visits {
				p := r*visits + j
				weight := c.moe.weight[p]
				for i, v := range c.moe.answers[p*pad(h):][:h] {
					sum[i] += weight * v
				}
			}
			x := c.x(lo + r)
			for i, v := range sum {
				x[i] += v
			}
		}
	})
}
