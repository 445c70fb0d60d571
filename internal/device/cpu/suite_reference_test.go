package cpu_test

import (
	"math"

	"larder/internal/arch"
)

// The reference is the forward pass in float64 by its definition: one row, one head, one key at a time. Its operations
// take the device's own hidden rows, so that a comparison sees one operation's error and not the sum of all before.

// past is what the reference knows of one sequence in one layer: K and V by token, [kv head * dim].
type past struct{ k, v [][]float64 }

func rms(x []float32, w []float32, eps float32) []float64 {
	wide := make([]float64, len(x))
	for i, v := range x {
		wide[i] = float64(v)
	}
	return rmsWide(wide, w, eps)
}

func rmsWide(x []float64, w []float32, eps float32) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	scale := 1 / math.Sqrt(sum/float64(len(x))+float64(eps))
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * scale * float64(w[i])
	}
	return out
}

// times is x Wᵀ.
func times(x []float64, w [][]float32) []float64 {
	out := make([]float64, len(w))
	for n, row := range w {
		for k, v := range row {
			out[n] += x[k] * float64(v)
		}
	}
	return out
}

func rotate(head []float64, pos int, theta float64) {
	half := len(head) / 2
	for i := range half {
		s, c := math.Sincos(float64(pos) / math.Pow(theta, float64(2*i)/float64(len(head))))
		a, b := head[i], head[half+i]
		head[i], head[half+i] = a*c-b*s, b*c+a*s
	}
}

// attention is what one row adds to the hidden state; it appends the row's K and V to p.
func (l *layer) attention(cfg *arch.Config, x []float32, p *past) []float64 {
	qkv := times(rms(x, l.norm, cfg.RMSNormEps), l.qkv)
	d, q, kvh := cfg.HeadDim, cfg.NumHeads, cfg.NumKVHeads
	pos := len(p.k)
	for h := range q + kvh {
		w := l.qNorm
		if h >= q {
			w = l.kNorm
		}
		head := qkv[h*d : (h+1)*d]
		copy(head, rmsWide(head, w, cfg.RMSNormEps))
		rotate(head, pos, cfg.RopeTheta)
	}
	p.k = append(p.k, qkv[q*d:(q+kvh)*d])
	p.v = append(p.v, qkv[(q+kvh)*d:])
	out := make([]float64, q*d)
	for h := range q {
		from := h / (q / kvh) * d
		weights := make([]float64, len(p.k))
		for j, k := range p.k {
			for i := range d {
				weights[j] += qkv[h*d+i] * k[from+i]
			}
			weights[j] /= math.Sqrt(float64(d))
		}
		for j, w := range softmax(weights) {
			for i := range d {
				out[h*d+i] += w * p.v[j][from+i]
			}
		}
	}
	return times(out, l.o)
}

func softmax(x []float64) []float64 {
	top := math.Inf(-1)
	for _, v := range x {
		top = max(top, v)
	}
	out, sum := make([]float64, len(x)), 0.0
	for i, v := range x {
		out[i] = math.Exp(v - top)
		sum += out[i]
	}
	for i := range out {
		out[i] /= sum
	}
	return out
}

// mlp is what one row adds. sure is false where two experts are so nearly equal that rounding may choose either.
func (l *layer) mlp(cfg *arch.Config, x []float32) (out []float64, sure bool) {
	y := rms(x, l.mlpNorm, cfg.RMSNormEps)
	if l.router == nil {
		return l.expert(0, y), true
	}
	p := softmax(times(y, l.router))
	var chosen []int
	kept, last := 0.0, 0.0
	left := append([]float64(nil), p...)
	next := func() int {
		best := 0
		for i, v := range left {
			if v > left[best] {
				best = i
			}
		}
		return best
	}
	for range cfg.NumExpertsPerToken {
		e := next()
		chosen, kept, last = append(chosen, e), kept+p[e], p[e]
		left[e] = -1
	}
	gap := last - left[next()]
	out = make([]float64, cfg.HiddenSize)
	for _, e := range chosen {
		w := p[e]
		if cfg.NormTopKProb {
			w /= kept
		}
		for i, v := range l.expert(e, y) {
			out[i] += w * v
		}
	}
	return out, gap == 0 || gap > 1e-5*last
}

func (l *layer) expert(e int, y []float64) []float64 {
	gate, up := times(y, l.gate[e]), times(y, l.up[e])
	for i, g := range gate {
		gate[i] = g / (1 + math.Exp(-g)) * up[i]
	}
	return times(gate, l.down[e])
}

// near says whether got - before is want, by norms: the share of want's norm that an operation may lose in the dtype.
//
// In bf16 every product's left side is rounded (2^-9 of each value at most); attention does so five times (input, Q, K
// or V, weights, output), and a score's error counts by the score's size, some units here. Errors of many terms mostly
// cancel, so 2^-6 of the norm holds for all. In fp32 the sums of up to 256 terms lose 256 * 2^-24 at most, thrice; the
// hidden value itself rounds by 2^-24 when the sum is added to it.
func near(before, got []float32, want []float64, dtype arch.DType) (lost, allowed float64) {
	share := 0x1p-6
	if dtype == arch.F32 {
		share = 3 * 256 * 0x1p-24
	}
	var size, base float64
	for i, w := range want {
		b := 0.0
		if before != nil {
			b = float64(before[i])
		}
		e := float64(got[i]) - b - w
		lost, size, base = lost+e*e, size+w*w, base+b*b
	}
	return math.Sqrt(lost), share*math.Sqrt(size) + 0x1p-22*math.Sqrt(base)
}
