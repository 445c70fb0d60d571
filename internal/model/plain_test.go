package model

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/sample"
)

// plainDevice is the decoder's mathematics written down plainly, in float64, one row after another: what the weights
// and the fixtures are checked with where no real device enters. KV is kept by block and position, as float64.
type plainDevice struct {
	fakeDevice // for the methods that no test here calls
}

// plainMatrix is a weight with its values.
type plainMatrix struct {
	n, k int
	v    []float64
}

func (m *plainMatrix) Shape() (n, k int) { return m.n, m.k }
func (m *plainMatrix) Size() int64       { return int64(2 * len(m.v)) }
func (m *plainMatrix) Len() int          { return m.n }

// mul is y = x Wᵀ.
func (m *plainMatrix) mul(x []float64) []float64 {
	y := make([]float64, m.n)
	for r := range y {
		sum := 0.0
		for i, w := range m.v[r*m.k : (r+1)*m.k] {
			sum += w * x[i]
		}
		y[r] = sum
	}
	return y
}

type plainExperts struct{ gate, up, down []*plainMatrix }

func (e *plainExperts) Shape() (experts, hidden, intermediate int) {
	return len(e.gate), e.gate[0].k, e.gate[0].n
}
func (e *plainExperts) Size() int64 { return int64(len(e.gate)) * 3 * e.gate[0].Size() }

func plainTensor(t device.Tensor) *plainMatrix {
	m := &plainMatrix{n: t.Shape[0], k: 1}
	if len(t.Shape) == 2 {
		m.k = t.Shape[1]
	}
	m.v = make([]float64, m.n*m.k)
	bits := make([]uint16, len(m.v))
	if t.Data == nil {
		t.Dummy.Values(bits, 0)
	}
	for i := range m.v {
		switch {
		case t.Data == nil:
			m.v[i] = float64(device.Float32(bits[i]))
		case t.DType == arch.F32:
			m.v[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:])))
		default:
			m.v[i] = float64(device.Float32(binary.LittleEndian.Uint16(t.Data[2*i:])))
		}
	}
	return m
}

func (*plainDevice) Matrix(parts ...device.Tensor) (device.Matrix, error) {
	all := plainTensor(parts[0])
	for _, p := range parts[1:] {
		m := plainTensor(p)
		all.n, all.v = all.n+m.n, append(all.v, m.v...)
	}
	return all, nil
}

func (*plainDevice) Vector(t device.Tensor) (device.Vector, error) { return plainTensor(t), nil }

func (*plainDevice) Experts(gate, up, down []device.Tensor) (device.Experts, error) {
	e := &plainExperts{}
	for i := range gate {
		e.gate = append(e.gate, plainTensor(gate[i]))
		e.up = append(e.up, plainTensor(up[i]))
		e.down = append(e.down, plainTensor(down[i]))
	}
	return e, nil
}

func (*plainDevice) Alloc(bytes int64) (device.Buffer, error) { return plainBuffer(bytes), nil }
func (*plainDevice) Close() error                             { return nil }

type plainBuffer int64

func (b plainBuffer) Size() int64 { return int64(b) }
func (plainBuffer) Free() error   { return nil }

func (*plainDevice) NewCompute(spec device.ComputeSpec) (device.Compute, error) {
	return &plainCompute{cfg: spec.Config, layout: spec.Layout, kv: map[slot][2][]float64{}}, nil
}

// slot is the place of one token's K and V of one head.
type slot struct {
	block              kv.BlockID
	token, layer, head int
}

type plainCompute struct {
	cfg    *arch.Config
	layout kv.Layout
	kv     map[slot][2][]float64
	batch  *device.Batch
	x      [][]float64
	logits [][]float32
}

func (c *plainCompute) Begin(b *device.Batch) error {
	n := 0
	for _, s := range b.Seqs {
		n += s.Tokens
	}
	if n == 0 || n != len(b.IDs) {
		return errors.New("rows and sequences disagree")
	}
	c.batch, c.x, c.logits = b, nil, nil
	return nil
}

func (c *plainCompute) Embed(table device.Matrix) {
	m := table.(*plainMatrix)
	for _, id := range c.batch.IDs {
		c.x = append(c.x, slices.Clone(m.v[int(id)*m.k:(int(id)+1)*m.k]))
	}
}

func (c *plainCompute) norm(x []float64, w device.Vector) []float64 {
	squares := 0.0
	for _, v := range x {
		squares += v * v
	}
	scale := 1 / math.Sqrt(squares/float64(len(x))+float64(c.cfg.RMSNormEps))
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * scale * w.(*plainMatrix).v[i]
	}
	return y
}

func (c *plainCompute) rope(x []float64, pos int) []float64 {
	half := len(x) / 2
	y := make([]float64, len(x))
	for i := range half {
		sin, cos := math.Sincos(float64(pos) * math.Pow(c.cfg.RopeTheta, -float64(i)/float64(half)))
		y[i], y[i+half] = x[i]*cos-x[i+half]*sin, x[i+half]*cos+x[i]*sin
	}
	return y
}

func (c *plainCompute) Attention(layer int, w *device.AttentionWeights) {
	row := 0
	for i := range c.batch.Seqs {
		s := &c.batch.Seqs[i]
		for t := range s.Tokens {
			c.attend(layer, w, s, s.Context+t, c.x[row])
			row++
		}
	}
}

// attend is one row of Attention; rows of a sequence come in order, so the keys before it are there.
func (c *plainCompute) attend(layer int, w *device.AttentionWeights, s *device.Seq, pos int, x []float64) {
	heads, groups, dim := c.cfg.NumHeads, c.cfg.NumKVHeads, c.cfg.HeadDim
	at := func(p, head int) slot {
		return slot{s.Blocks[p/c.layout.BlockTokens], p % c.layout.BlockTokens, layer, head}
	}
	qkv := w.QKV.(*plainMatrix).mul(c.norm(x, w.Norm))
	piece := func(i int) []float64 { return qkv[i*dim : (i+1)*dim] }
	for g := range groups {
		c.kv[at(pos, g)] = [2][]float64{c.rope(c.norm(piece(heads+g), w.KNorm), pos), piece(heads + groups + g)}
	}
	out := make([]float64, heads*dim)
	for h := range heads {
		q, total, g := c.rope(c.norm(piece(h), w.QNorm), pos), 0.0, h/(heads/groups)
		o := out[h*dim : (h+1)*dim]
		for p := range pos + 1 {
			kv := c.kv[at(p, g)]
			score := 0.0
			for d, k := range kv[0] {
				score += q[d] * k
			}
			weight := math.Exp(score / math.Sqrt(float64(dim))) // scores are small enough to need no maximum
			total += weight
			for d, v := range kv[1] {
				o[d] += weight * v
			}
		}
		for d := range o {
			o[d] /= total
		}
	}
	add(x, w.O.(*plainMatrix).mul(out), 1)
}

func add(x, y []float64, weight float64) {
	for i, v := range y {
		x[i] += weight * v
	}
}

func (c *plainCompute) MLP(w *device.MLPWeights) {
	e := w.Experts.(*plainExperts)
	for _, x := range c.x {
		y := c.norm(x, w.Norm)
		if w.Router == nil {
			add(x, e.apply(0, y), 1)
			continue
		}
		p := w.Router.(*plainMatrix).mul(y)
		for i, weight := range c.route(p) {
			if weight > 0 {
				add(x, e.apply(i, y), weight)
			}
		}
	}
}

// route turns router logits into each expert's weight, 0 for those not chosen.
func (c *plainCompute) route(p []float64) []float64 {
	sum := 0.0
	for i := range p {
		p[i] = math.Exp(p[i])
		sum += p[i]
	}
	order := make([]int, len(p))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(math.Copysign(1, p[b]-p[a])) })
	weights, chosen := make([]float64, len(p)), 0.0
	for _, i := range order[:c.cfg.NumExpertsPerToken] {
		weights[i] = p[i] / sum
		chosen += weights[i]
	}
	if c.cfg.NormTopKProb {
		for i := range weights {
			weights[i] /= chosen
		}
	}
	return weights
}

func (e *plainExperts) apply(i int, x []float64) []float64 {
	g, u := e.gate[i].mul(x), e.up[i].mul(x)
	for j := range g {
		g[j] = g[j] / (1 + math.Exp(-g[j])) * u[j]
	}
	return e.down[i].mul(g)
}

func (c *plainCompute) Head(w *device.HeadWeights) {
	row := -1
	for i := range c.batch.Seqs {
		row += c.batch.Seqs[i].Tokens
		if c.batch.Seqs[i].Draw == nil {
			continue
		}
		wide := w.Out.(*plainMatrix).mul(c.norm(c.x[row], w.Norm))
		logits := make([]float32, len(wide))
		for j, v := range wide {
			logits[j] = float32(v)
		}
		c.logits = append(c.logits, logits)
	}
}

func (c *plainCompute) End() device.Pass { return c }

func (c *plainCompute) Wait() ([]int32, error) {
	var tokens []int32
	for i := range c.batch.Seqs {
		if d := c.batch.Seqs[i].Draw; d != nil {
			tokens = append(tokens, sample.Pick(c.logits[len(tokens)], d))
		}
	}
	return tokens, nil
}

func (c *plainCompute) Logits(i int) []float32 { return c.logits[i] }

func (c *plainCompute) Hidden() [][]float32 {
	rows := make([][]float32, len(c.x))
	for i, x := range c.x {
		for _, v := range x {
			rows[i] = append(rows[i], float32(v))
		}
	}
	return rows
}

func (c *plainCompute) SetHidden(rows [][]float32) {
	c.x = make([][]float64, len(rows))
	for i, row := range rows {
		for _, v := range row {
			c.x[i] = append(c.x[i], float64(v))
		}
	}
}
