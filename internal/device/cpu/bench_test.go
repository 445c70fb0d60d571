package cpu

import (
	"fmt"
	"math"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu/gemm"
	"larder/internal/kv"
)

// bench is a device with one layer of a built-in model, of dummy weights.
type bench struct {
	*Device
	cfg  *arch.Config
	attn device.AttentionWeights
	mlp  device.MLPWeights
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(b testing.TB) T {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
}

func dummy(n ...int) device.Tensor {
	return device.Tensor{Name: "dummy", Shape: n, Dummy: device.Dummy{Seed: uint64(n[0]), Scale: 0.05}}
}

func newBench(b *testing.B, cfg Config) *bench {
	d := must(New(cfg))(b)
	b.Cleanup(func() { _ = d.Close() })
	c, ok := arch.Builtin("qwen3-30b-a3b")
	if !ok {
		b.Fatal("no such model")
	}
	c.NumLayers, c.MaxPositions = 1, 4096
	return &bench{Device: d, cfg: c}
}

// addLayer makes the weights of one layer.
func (x *bench) addLayer(b *testing.B) {
	c := x.cfg
	for to, n := range map[*device.Vector]int{&x.attn.Norm: c.HiddenSize, &x.attn.QNorm: c.HeadDim, &x.attn.KNorm: c.HeadDim, &x.mlp.Norm: c.HiddenSize} {
		t := dummy(n)
		t.Dummy.Offset = 1
		*to = must(x.Vector(t))(b)
	}
	x.attn.QKV = must(x.Matrix(dummy(c.QKVRows(), c.HiddenSize)))(b)
	x.attn.O = must(x.Matrix(dummy(c.HiddenSize, c.NumHeads*c.HeadDim)))(b)
	x.mlp.Router = must(x.Matrix(dummy(c.NumExperts, c.HiddenSize)))(b)
	gate, down := make([]device.Tensor, c.NumExperts), make([]device.Tensor, c.NumExperts)
	for e := range gate {
		gate[e], down[e] = dummy(c.MoEIntermediateSize, c.HiddenSize), dummy(c.HiddenSize, c.MoEIntermediateSize)
	}
	x.mlp.Experts = must(x.Experts(gate, gate, down))(b)
}

// begin opens a pass of seqs sequences of n rows each behind context tokens, with random hidden rows.
func (x *bench) begin(b *testing.B, seqs, context, n int) *compute {
	layout := kv.LayoutOf(x.cfg, 64, x.Device.cfg.DType)
	each := layout.Blocks(context + n)
	pool := must(x.Alloc(layout.BlockBytes() * int64(each*seqs)))(b)
	b.Cleanup(func() { _ = pool.Free() })
	spec := device.ComputeSpec{Config: x.cfg, Layout: layout, KV: pool, MaxTokens: seqs * n, MaxSeqs: seqs}
	c := must(x.NewCompute(spec))(b).(*compute)
	batch := &device.Batch{IDs: make([]int32, seqs*n)}
	for s := range seqs {
		seq := device.Seq{Context: context, Tokens: n}
		for i := range each {
			seq.Blocks = append(seq.Blocks, kv.BlockID(s*each+i))
		}
		batch.Seqs = append(batch.Seqs, seq)
	}
	if err := c.Begin(batch); err != nil {
		b.Fatal(err)
	}
	x.refill(c)
	return c
}

// refill sets the hidden rows, so that the residual stream does not grow with b.N.
func (x *bench) refill(c *compute) {
	row := make([]uint16, x.cfg.HiddenSize)
	for r := range c.rows {
		device.Dummy{Seed: uint64(r), Scale: 1}.Values(row, 0)
		for i, v := range row {
			c.x(r)[i] = device.Float32(v)
		}
	}
}

// best times each turn apart: the best is what the machine does when nobody interrupts it.
func best(b *testing.B, turn func()) time.Duration {
	least := time.Duration(math.MaxInt64)
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		turn()
		least = min(least, time.Since(began))
	}
	b.StopTimer()
	return least
}

func reportFLOPs(b *testing.B, d *Device, took time.Duration, each float64) {
	rate := each / took.Seconds()
	b.ReportMetric(rate/1e9, "GFLOP/s")
	b.ReportMetric(100*rate/d.peakRate(), "%peak")
}

func reportBytes(b *testing.B, d *Device, took time.Duration, each float64) {
	rate := each / took.Seconds()
	b.ReportMetric(rate/1e9, "GB/s")
	b.ReportMetric(100*rate/must(d.readRate())(b), "%memory")
}

// BenchmarkGEMM is the product alone on all threads, for every family: a prefill, and the shapes of experts.
func BenchmarkGEMM(b *testing.B) {
	for _, f := range gemm.Families() {
		for _, s := range [][2]int{{1024, 4096}, {64, 1536}, {32, 1536}, {8, 1536}, {64, 768}, {8, 768}} {
			b.Run(fmt.Sprintf("%s/M=%d,N=%d,K=2048", f.Name, s[0], s[1]), func(b *testing.B) {
				x := newBench(b, Config{Kernels: f.Name})
				w := must(x.Matrix(dummy(s[1], 2048)))(b).(*matrix)
				c := x.begin(b, 1, 0, s[0])
				a, out := c.newOperand(s[0], 2048), make([]float32, s[0]*s[1])
				took := best(b, func() { c.multiply(out, s[1], a, s[0], w.Packed) })
				reportFLOPs(b, x.Device, took, 2*float64(s[0])*float64(s[1])*2048)
			})
		}
	}
}

// BenchmarkGEMV reads 1 GiB of weights, more than any cache holds.
func BenchmarkGEMV(b *testing.B) {
	for _, m := range []int{1, 8} {
		b.Run(fmt.Sprintf("M=%d", m), func(b *testing.B) {
			x := newBench(b, Config{})
			const n, k = 1 << 18, 2048
			w := must(x.Matrix(dummy(n, k)))(b).(*matrix)
			c := x.begin(b, 1, 0, m)
			a, out := c.newOperand(m, k), make([]float32, m*n)
			took := best(b, func() { c.multiply(out, n, a, m, w.Packed) })
			reportBytes(b, x.Device, took, float64(w.Size()))
		})
	}
}

// BenchmarkAttention is the softmax part of 2,048 tokens; operations are counted for what the causal mask leaves.
func BenchmarkAttention(b *testing.B) {
	const n = 2048
	x := newBench(b, Config{})
	c := x.begin(b, 1, 0, n)
	took := best(b, func() { c.attend(0) })
	reportFLOPs(b, x.Device, took, 2*float64(n)*float64(n)*float64(x.cfg.NumHeads*x.cfg.HeadDim))
}

// BenchmarkLayer is one layer of Qwen3-30B-A3B: a prefill, and decode steps behind 1,024 tokens. Decode counts the bytes
// of the weights that the step reads and of the KV.
func BenchmarkLayer(b *testing.B) {
	x := newBench(b, Config{})
	x.addLayer(b)
	c := x.cfg
	dense := float64(c.HiddenSize * (c.QKVRows() + c.NumHeads*c.HeadDim + c.NumExperts))
	expert := float64(3 * c.HiddenSize * c.MoEIntermediateSize)
	b.Run("prefill=1024", func(b *testing.B) {
		const n = 1024
		p := x.begin(b, 1, 0, n)
		took := best(b, func() {
			p.Attention(0, &x.attn)
			p.MLP(&x.mlp)
		})
		reportFLOPs(b, x.Device, took, 2*n*(dense+float64(c.NumExpertsPerToken)*expert)+2*n*n*float64(c.NumHeads*c.HeadDim))
	})
	for _, seqs := range []int{1, 8} {
		b.Run(fmt.Sprintf("decode=%d", seqs), func(b *testing.B) {
			p := x.begin(b, seqs, 1024, 1)
			took := best(b, func() {
				p.Attention(0, &x.attn)
				p.MLP(&x.mlp)
			})
			used := map[int]bool{}
			for _, t := range p.moe.tasks {
				used[t.expert] = true
			}
			kvBytes := float64(int64(seqs) * 1025 * p.spec.Layout.TokenBytes())
			reportBytes(b, x.Device, took, 2*(dense+float64(len(used))*expert)+kvBytes)
		})
	}
}

// BenchmarkDummyLayer makes the weights of one layer of Qwen3-30B-A3B.
func BenchmarkDummyLayer(b *testing.B) {
	for b.Loop() {
		x := newBench(b, Config{})
		x.addLayer(b)
		b.SetBytes(x.attn.QKV.Size() + x.attn.O.Size() + x.mlp.Experts.Size())
		if err := x.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
