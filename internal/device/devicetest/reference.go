package devicetest

import (
	"cmp"
	"math"
	"slices"
)

// The forward pass in float64, one row or one sequence at a time, written for reading.

// times is W x. The race detector, which has nothing to find in sums, would make it fifty times slower.
//
//go:norace
func (w *weight) times(x []float64) []float64 {
	out := make([]float64, len(w.values)/len(x))
	for i := range out {
		for j, v := range w.values[i*len(x) : (i+1)*len(x)] {
			out[i] += v * x[j]
		}
	}
	return out
}

func rmsNorm(x, w []float64, eps float64) []float64 {
	var squares float64
	for _, v := range x {
		squares += v * v
	}
	scale := 1 / math.Sqrt(squares/float64(len(x))+eps)
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * scale * w[i]
	}
	return out
}

// turn is rotary embedding in the rotate-half form: element i pairs with element i + dim/2.
func turn(head []float64, pos int, theta float64) {
	half := len(head) / 2
	for i := range half {
		sin, cos := math.Sincos(float64(pos) * math.Pow(theta, -2*float64(i)/float64(len(head))))
		a, b := head[i], head[i+half]
		head[i], head[i+half] = a*cos-b*sin, b*cos+a*sin
	}
}

// history is one sequence's keys and values of one layer: [token][kv head * dim].
type history struct{ k, v [][]float64 }

// attention is what one layer's attention adds to rows x, which follow the tokens of h. It appends their K and V to h.
func (m *model) attention(l *layer, x [][]float64, h *history) [][]float64 {
	c := m.cfg
	d := c.HeadDim
	var queries [][]float64
	for _, row := range x {
		pos := len(h.k)
		in := rmsNorm(row, l.norm.values, float64(c.RMSNormEps))
		q, k := l.q.times(in), l.k.times(in)
		m.place(q, l.qNorm.values, pos)
		m.place(k, l.kNorm.values, pos)
		queries = append(queries, q)
		h.k, h.v = append(h.k, k), append(h.v, l.v.times(in))
	}
	before := len(h.k) - len(x)
	out := make([][]float64, len(x))
	for i, q := range queries {
		mix := make([]float64, len(q))
		for head := range c.NumHeads {
			at := head / (c.NumHeads / c.NumKVHeads) * d
			look(mix[head*d:(head+1)*d], q[head*d:(head+1)*d], h, at, before+i+1)
		}
		out[i] = l.o.times(mix)
	}
	return out
}

// place norms heads one by one and turns them by their position.
func (m *model) place(heads, norm []float64, pos int) {
	d := m.cfg.HeadDim
	for at := 0; at < len(heads); at += d {
		copy(heads[at:], rmsNorm(heads[at:at+d], norm, float64(m.cfg.RMSNormEps)))
		turn(heads[at:at+d], pos, m.cfg.RopeTheta)
	}
}

// look is one head of one row: the softmax over the first n tokens' keys, at being where its KV head starts.
//
//go:norace
func look(out, q []float64, h *history, at, n int) {
	d := len(q)
	weights := make([]float64, n)
	for t := range weights {
		for i, v := range h.k[t][at : at+d] {
			weights[t] += v * q[i] / math.Sqrt(float64(d))
		}
	}
	softmax(weights)
	for t, p := range weights {
		for i, v := range h.v[t][at : at+d] {
			out[i] += p * v
		}
	}
}

func softmax(x []float64) {
	top := slices.Max(x)
	var sum float64
	for i, v := range x {
		x[i] = math.Exp(v - top)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}

// mlp is what one layer's MLP adds to a row. margin is how much more probable the last expert chosen is than the next,
// as a logarithm; infinite where there is no choice.
func (m *model) mlp(l *layer, x []float64) (out []float64, margin float64) {
	in := rmsNorm(x, l.mlpNorm.values, float64(m.cfg.RMSNormEps))
	if l.router == nil {
		return l.expert(0, in), math.Inf(1)
	}
	p := l.router.times(in)
	softmax(p)
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p[b], p[a]) })
	k := m.cfg.NumExpertsPerToken
	margin = math.Inf(1)
	if k < len(p) {
		margin = math.Log(p[order[k-1]] / p[order[k]])
	}
	kept := 1.0
	if m.cfg.NormTopKProb {
		kept = 0
		for _, e := range order[:k] {
			kept += p[e]
		}
	}
	out = make([]float64, len(x))
	for _, e := range order[:k] {
		for i, v := range l.expert(e, in) {
			out[i] += p[e] / kept * v
		}
	}
	return out, margin
}

func (l *layer) expert(e int, in []float64) []float64 {
	gate, up := l.gate[e].times(in), l.up[e].times(in)
	for i, g := range gate {
		gate[i] = g / (1 + math.Exp(-g)) * up[i]
	}
	return l.down[e].times(gate)
}

func (m *model) logits(x []float64) []float64 {
	return m.head.times(rmsNorm(x, m.norm.values, float64(m.cfg.RMSNormEps)))
}
