package cuda

import (
	"fmt"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/sample"
)

// bench is one layer of Qwen3-30B-A3B with made-up weights and a pool.
type bench struct {
	c         *compute
	attention device.AttentionWeights
	mlp       device.MLPWeights
	head      device.HeadWeights
	embed     device.Matrix
	blocks    int
}

func newBench(b *testing.B, tokens, seqs, blocks int) *bench {
	b.Helper()
	d := openTest(b)
	b.Cleanup(func() {
		if err := d.Close(); err != nil {
			b.Error(err)
		}
	})
	cfg, _ := arch.Builtin("qwen3-30b-a3b")
	cfg.NumLayers = 1
	layout := kv.LayoutOf(cfg, 64, arch.BF16)
	pool, err := d.zeroed(int64(blocks) * layout.BlockBytes())
	if err != nil {
		b.Fatal(err)
	}
	comp, err := d.NewCompute(device.ComputeSpec{Config: cfg, Layout: layout, KV: pool, MaxTokens: tokens, MaxSeqs: seqs})
	if err != nil {
		b.Fatal(err)
	}
	n := &bench{c: comp.(*compute), blocks: blocks}
	seed := uint64(0)
	tensor := func(offset float32, shape ...int) device.Tensor {
		seed++
		return device.Tensor{Name: "w", Shape: shape, Dummy: device.Dummy{Seed: seed, Scale: 0.04, Offset: offset}}
	}
	matrix := func(rows, k int) device.Matrix {
		m, err := d.Matrix(tensor(0, rows, k))
		if err != nil {
			b.Fatal(err)
		}
		return m
	}
	vector := func(n int) device.Vector {
		v, err := d.Vector(tensor(1, n))
		if err != nil {
			b.Fatal(err)
		}
		return v
	}
	h := cfg.HiddenSize
	n.attention = device.AttentionWeights{Norm: vector(h), QKV: matrix(cfg.QKVRows(), h), QNorm: vector(128), KNorm: vector(128), O: matrix(h, cfg.NumHeads*128)}
	var gate, up, down []device.Tensor
	for range cfg.NumExperts {
		gate, up, down = append(gate, tensor(0, 768, h)), append(up, tensor(0, 768, h)), append(down, tensor(0, h, 768))
	}
	e, err := d.Experts(gate, up, down)
	if err != nil {
		b.Fatal(err)
	}
	n.mlp = device.MLPWeights{Norm: vector(h), Router: matrix(cfg.NumExperts, h), Experts: e}
	n.embed = matrix(cfg.VocabSize, h)
	n.head = device.HeadWeights{Norm: vector(h), Out: matrix(cfg.VocabSize, h)}
	return n
}

// batch is seqs sequences of tokens new ones behind context, whose blocks may be the same.
func (n *bench) batch(seqs, context, tokens int) *device.Batch {
	b := &device.Batch{}
	next := 0
	for i := range seqs {
		s := device.Seq{Context: context, Tokens: tokens, Draw: &sample.Draw{Params: sample.Params{TopP: 1}}}
		for range (context + tokens + 63) / 64 {
			s.Blocks = append(s.Blocks, kv.BlockID(next%n.blocks))
			next++
		}
		for j := range tokens {
			b.IDs = append(b.IDs, int32((i*7919+j*104729)%151936))
		}
		b.Seqs = append(b.Seqs, s)
	}
	return b
}

func (n *bench) start(b *testing.B, batch *device.Batch) {
	b.Helper()
	if err := n.c.Begin(batch); err != nil {
		b.Fatal(err)
	}
	n.c.Embed(n.embed)
	n.c.Attention(0, &n.attention)
}

// measure times f on the GPU, between events, and reports floating-point operations and bytes a second.
func (n *bench) measure(b *testing.B, flops, bytes float64, f func() error) {
	b.Helper()
	s := n.c.stream
	s.do(f)
	from := s.Record()
	for range b.N {
		s.do(f)
	}
	to := s.Record()
	if err := to.Wait(); err != nil {
		b.Fatal(err)
	}
	sec := (to.Time() - from.Time()).Seconds() / float64(b.N)
	b.ReportMetric(sec*1e6, "gpu-us/op")
	if flops > 0 {
		b.ReportMetric(flops/sec/1e12, "TFLOP/s")
	}
	if bytes > 0 {
		b.ReportMetric(bytes/sec/1e9, "GB/s")
	}
}

func BenchmarkGEMM(b *testing.B) {
	n := newBench(b, 16384, 1, 256)
	w := n.attention.QKV.(*matrix)
	o := n.attention.O.(*matrix)
	b.Run("cube", n.cube)
	for _, rows := range []int{16, 64, 1024, 8192, 16384} {
		n.start(b, n.batch(1, 0, rows))
		b.Run(fmt.Sprintf("qkv/%d", rows), func(b *testing.B) {
			n.measure(b, 2*float64(rows*w.n*w.k), float64(w.n*w.k*2), func() error {
				return n.c.multiply("store16", product{a: n.c.in.ptr, lda: n.c.inPitch(), w: w, c: n.c.out.ptr, ldc: n.c.outPitch(), m: rows})
			})
		})
		b.Run(fmt.Sprintf("o/%d", rows), func(b *testing.B) {
			n.measure(b, 2*float64(rows*o.n*o.k), float64(o.n*o.k*2), func() error {
				return n.c.multiply("store16", product{a: n.c.mixed.ptr, lda: n.c.headsPitch(), w: o, c: n.c.heads.ptr, ldc: n.c.headsPitch(), m: rows})
			})
		})
	}
}

// cube is a product as large as libraries are measured at.
func (n *bench) cube(b *testing.B) {
	const side = 8192
	d := n.c.dev
	m, err := d.Matrix(device.Tensor{Name: "cube", Shape: []int{side, side}, Dummy: device.Dummy{Seed: 1, Scale: 1}})
	if err != nil {
		b.Fatal(err)
	}
	to, err := d.alloc(side*side*2, false)
	if err != nil {
		b.Fatal(err)
	}
	w := m.(*matrix)
	n.measure(b, 2*side*side*side, 0, func() error {
		return n.c.multiply("store16", product{a: w.b.ptr, lda: side, w: w, c: to.ptr, ldc: side, m: side})
	})
	if err := freeAll(to, w.b); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkHead(b *testing.B) {
	n := newBench(b, 64, 64, 64)
	for _, rows := range []int{1, 16, 64} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			n.start(b, n.batch(rows, 0, 1))
			n.measure(b, 0, 151936*2048*2, func() error {
				n.c.Head(&n.head)
				return n.c.err
			})
		})
	}
}

func BenchmarkAttention(b *testing.B) {
	n := newBench(b, 16384, 64, 64*170)
	for _, c := range []struct{ seqs, context, tokens int }{{1, 0, 10240}, {8, 9216, 1024}, {16, 9216, 1024}, {64, 10240, 1}, {32, 10240, 1}, {16, 10240, 1}, {1, 10240, 1}} {
		b.Run(fmt.Sprintf("%dx%d+%d", c.seqs, c.context, c.tokens), func(b *testing.B) {
			n.start(b, n.batch(c.seqs, c.context, c.tokens))
			keys := float64(c.tokens*c.context) + float64(c.tokens)*float64(c.tokens+1)/2
			n.measure(b, float64(c.seqs)*keys*4*32*128, float64(c.seqs*(c.context+c.tokens)*2048), func() error { return n.c.attend(0) })
		})
	}
}

func BenchmarkMLP(b *testing.B) {
	n := newBench(b, 65536, 64, 1024)
	for _, rows := range []int{16, 64, 1024, 8192, 16384, 65536} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			n.start(b, n.batch(max(rows/16384, 1), 0, min(rows, 16384)))
			n.measure(b, float64(rows)*8*3*2*2048*768, 0, func() error {
				n.c.delta = true // what attention left is added in every turn
				n.c.MLP(&n.mlp)
				return n.c.err
			})
		})
	}
	n.start(b, n.batch(1, 0, 16384))
	e := n.mlp.Experts.(*experts)
	b.Run("experts-only/16384", func(b *testing.B) {
		if err := n.c.mlp(&n.mlp, 0, 16384); err != nil {
			b.Fatal(err)
		}
		n.measure(b, 16384*8*3*2*2048*768, 0, func() error { return n.c.runExperts(e, 16384*8, 8, n.c.dev.tileRows(1024)) })
	})
	b.Run("route/16384", func(b *testing.B) { n.measure(b, 0, 0, func() error { return n.c.route(&n.mlp, 16384) }) })
	b.Run("sort/16384", func(b *testing.B) {
		n.measure(b, 0, 0, func() error { return n.c.sortPairs(16384*8, 128, n.c.dev.tileRows(1024)) })
	})
	b.Run("project-all/16384", func(b *testing.B) {
		n.measure(b, 0, 0, func() error { return n.c.project(0, &n.attention, 0, 16384) })
	})
}

// BenchmarkPass is whole passes: wall time, with planning and waiting.
func BenchmarkPass(b *testing.B) {
	n := newBench(b, 8*10240, 64, 64*170)
	for _, c := range []struct{ seqs, context, tokens int }{{1, 0, 10240}, {8, 0, 10240}, {8, 9216, 1024}, {64, 9216, 1024}, {64, 10240, 1}, {32, 10240, 1}, {16, 10240, 1}, {1, 10240, 1}} {
		b.Run(fmt.Sprintf("%dx%d+%d", c.seqs, c.context, c.tokens), func(b *testing.B) {
			batch := n.batch(c.seqs, c.context, c.tokens)
			for b.Loop() {
				n.start(b, batch)
				n.c.MLP(&n.mlp)
				n.c.Head(&n.head)
				if _, err := n.c.End().Wait(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(c.seqs*(c.context+c.tokens))*float64(b.N)/b.Elapsed().Seconds(), "input-tok/s")
		})
	}
}

// BenchmarkRested is a pass after the GPU has rested: its clocks are low then, as in a server that was idle.
func BenchmarkRested(b *testing.B) {
	n := newBench(b, 16384, 16, 16*170)
	for _, rest := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
		b.Run(rest.String(), func(b *testing.B) {
			batch := n.batch(16, 9216, 1024)
			var busy time.Duration
			for b.Loop() {
				time.Sleep(rest)
				began := time.Now()
				n.start(b, batch)
				n.c.MLP(&n.mlp)
				n.c.Head(&n.head)
				if _, err := n.c.End().Wait(); err != nil {
					b.Fatal(err)
				}
				busy += time.Since(began)
			}
			b.ReportMetric(float64(busy.Microseconds())/float64(b.N), "busy-us/op")
		})
	}
}

func BenchmarkCeilings(b *testing.B) {
	d := openTest(b)
	list, err := d.Ceilings()
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range list {
		b.Logf("%s %.4g %s (%s)", c.Name, c.Value, c.Unit, c.How)
	}
	if err := d.Close(); err != nil {
		b.Fatal(err)
	}
}
