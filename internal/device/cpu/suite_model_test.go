package cpu_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/sample"
)

// layer is one layer's weights as values (all of them bf16 numbers) and on the device.
type layer struct {
	norm, qNorm, kNorm, mlpNorm []float32
	qkv, o, router              [][]float32
	gate, up, down              [][][]float32

	attn device.AttentionWeights
	ff   device.MLPWeights
}

// model is a small random model on a device.
type model struct {
	cfg         *arch.Config
	embed       [][]float32
	final       []float32
	layers      []*layer
	table, head device.Matrix
	finalNorm   device.Vector
}

type maker struct {
	t   testing.TB
	d   device.Device
	rng *rand.Rand
}

func (m maker) matrix(n, k int, scale float64) ([][]float32, device.Tensor) {
	rows := make([][]float32, n)
	data := make([]byte, 0, 2*n*k)
	for r := range rows {
		rows[r] = make([]float32, k)
		for i := range rows[r] {
			b := device.BF16(float32(m.rng.NormFloat64() * scale))
			rows[r][i] = device.Float32(b)
			data = binary.LittleEndian.AppendUint16(data, b)
		}
	}
	return rows, device.Tensor{Name: "matrix", Shape: []int{n, k}, DType: arch.BF16, Data: data}
}

func (m maker) put(n, k int) ([][]float32, device.Matrix) {
	rows, tensor := m.matrix(n, k, 1.5/float64(k)*8)
	w, err := m.d.Matrix(tensor)
	check(m.t, err)
	return rows, w
}

func (m maker) vector(n int) ([]float32, device.Vector) {
	rows, tensor := m.matrix(1, n, 0.3)
	for i := range rows[0] {
		b := device.BF16(rows[0][i] + 1)
		rows[0][i] = device.Float32(b)
		binary.LittleEndian.PutUint16(tensor.Data[2*i:], b)
	}
	tensor.Shape = []int{n}
	v, err := m.d.Vector(tensor)
	check(m.t, err)
	return rows[0], v
}

// newModel makes a model; one layer's QKV is uploaded in three parts.
func newModel(t testing.TB, d device.Device, rng *rand.Rand, cfg *arch.Config) *model {
	m := maker{t, d, rng}
	out := &model{cfg: cfg}
	out.embed, out.table = m.put(cfg.VocabSize, cfg.HiddenSize)
	out.head = out.table
	out.final, out.finalNorm = m.vector(cfg.HiddenSize)
	for range cfg.NumLayers {
		out.layers = append(out.layers, m.layer(cfg))
	}
	return out
}

func (m maker) layer(cfg *arch.Config) *layer {
	l := &layer{}
	l.norm, l.attn.Norm = m.vector(cfg.HiddenSize)
	l.qNorm, l.attn.QNorm = m.vector(cfg.HeadDim)
	l.kNorm, l.attn.KNorm = m.vector(cfg.HeadDim)
	l.mlpNorm, l.ff.Norm = m.vector(cfg.HiddenSize)
	var parts []device.Tensor
	for _, heads := range []int{cfg.NumHeads, cfg.NumKVHeads, cfg.NumKVHeads} {
		rows, tensor := m.matrix(heads*cfg.HeadDim, cfg.HiddenSize, 0.2)
		l.qkv, parts = append(l.qkv, rows...), append(parts, tensor)
	}
	var err error
	l.attn.QKV, err = m.d.Matrix(parts...)
	check(m.t, err)
	l.o, l.attn.O = m.put(cfg.HiddenSize, cfg.NumHeads*cfg.HeadDim)
	n, width := 1, cfg.IntermediateSize
	if cfg.NumExperts > 0 {
		n, width = cfg.NumExperts, cfg.MoEIntermediateSize
		l.router, l.ff.Router = m.put(n, cfg.HiddenSize)
	}
	var gate, up, down []device.Tensor
	for range n {
		g, gt := m.matrix(width, cfg.HiddenSize, 0.2)
		u, ut := m.matrix(width, cfg.HiddenSize, 0.2)
		w, wt := m.matrix(cfg.HiddenSize, width, 0.2)
		l.gate, l.up, l.down = append(l.gate, g), append(l.up, u), append(l.down, w)
		gate, up, down = append(gate, gt), append(up, ut), append(down, wt)
	}
	l.ff.Experts, err = m.d.Experts(gate, up, down)
	check(m.t, err)
	return l
}

// pool is a KV pool full of NaNs, and a compute over it.
type pool struct {
	layout  kv.Layout
	blocks  int
	buf     device.Buffer
	compute device.Compute
}

const poison = 0xff // as bf16 and as fp32 a NaN

func newPool(t testing.TB, d device.Device, cfg *arch.Config, dtype arch.DType, blockTokens, blocks int) *pool {
	p := &pool{layout: kv.LayoutOf(cfg, blockTokens, dtype), blocks: blocks}
	size := p.layout.BlockBytes() * int64(blocks)
	var err error
	p.buf, err = d.Alloc(size)
	check(t, err)
	t.Cleanup(func() { check(t, p.buf.Free()) })
	bytes := make([]byte, size)
	for i := range bytes {
		bytes[i] = poison
	}
	write(t, d, p.buf, bytes)
	p.compute, err = d.NewCompute(device.ComputeSpec{Config: cfg, Layout: p.layout, KV: p.buf, MaxTokens: 600, MaxSeqs: 16})
	check(t, err)
	return p
}

// write and read move bytes by way of host memory, as kv/xfer does.
func write(t testing.TB, d device.Device, dst device.Buffer, bytes []byte) {
	t.Helper()
	move(t, d, int64(len(bytes)), func(host device.Buffer, s device.Stream) {
		copy(host.(device.Mapped).Bytes(), bytes)
		s.Copy(dst, 0, host, 0, int64(len(bytes)))
	}, nil)
}

func read(t testing.TB, d device.Device, src device.Buffer) []byte {
	t.Helper()
	out := make([]byte, src.Size())
	move(t, d, src.Size(), func(host device.Buffer, s device.Stream) { s.Copy(host, 0, src, 0, src.Size()) }, out)
	return out
}

func move(t testing.TB, d device.Device, n int64, queue func(device.Buffer, device.Stream), out []byte) {
	t.Helper()
	host, err := d.AllocHost(n)
	check(t, err)
	s, err := d.NewStream("devicetest")
	check(t, err)
	queue(host, s)
	check(t, s.Record().Wait())
	copy(out, host.(device.Mapped).Bytes())
	check(t, s.Close())
	check(t, host.Free())
}

func greedy() *sample.Draw { return &sample.Draw{Params: sample.Params{TopP: 1}} }

// pass runs a whole batch and returns the hidden rows behind the last layer, and the tokens.
func (m *model) pass(t testing.TB, c device.Compute, b *device.Batch) ([][]float32, []int32) {
	t.Helper()
	check(t, c.Begin(b))
	c.Embed(m.table)
	for i, l := range m.layers {
		c.Attention(i, &l.attn)
		c.MLP(&l.ff)
	}
	hidden := c.(device.HiddenAccess).Hidden()
	c.Head(&device.HeadWeights{Norm: m.finalNorm, Out: m.head})
	tokens, err := c.End()
	check(t, err)
	return hidden, tokens
}

func randomIDs(rng *rand.Rand, n, vocab int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = rng.Int32N(int32(vocab))
	}
	return ids
}
