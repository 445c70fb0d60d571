package cpu_test

import (
	"math"
	"slices"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
)

// plan is one way to compute a sequence that must not matter.
type plan struct {
	name        string
	blockTokens int
	chunks      []int // the last one repeats
	reversed    bool  // block numbers go down
	company     int   // other sequences in the batch
}

// testIndependence computes one sequence in many ways: all hidden rows and the logits are the same, bit for bit.
func testIndependence(t *testing.T, c Config) {
	for name, cfg := range map[string]*arch.Config{"dense": c.dense(), "sparse": c.sparse()} {
		t.Run(name, func(t *testing.T) {
			d, rng := c.open(t), newRand(t, 11)
			m := newModel(t, d, rng, cfg)
			ids := randomIDs(rng, 203, cfg.VocabSize)
			want := m.follow(t, c, d, ids, plan{blockTokens: 256, chunks: []int{203}})
			for _, p := range []plan{
				{"one by one", 16, []int{1}, false, 0},
				{"prefill, then one by one", 64, []int{190, 1}, true, 0},
				{"odd chunks", 32, []int{63, 2, 64, 13}, true, 0},
				{"in company", 16, []int{203}, false, 5},
				{"odd chunks in company", 128, []int{33, 31, 65, 7}, true, 9},
				{"decode in company", 16, []int{200, 1}, true, 15},
			} {
				got := m.follow(t, c, d, ids, p)
				for r := range want {
					if i := differ(got[r], want[r]); i >= 0 {
						t.Fatalf("%s: row %d, value %d is %v, in one piece %v", p.name, r, i, got[r][i], want[r][i])
					}
				}
			}
		})
	}
}

// differ is the first place where the bits of two rows differ, or -1.
func differ(a, b []float32) int {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}

// follow computes ids by a plan; the result is the hidden rows and, behind them, the last row's logits.
func (m *model) follow(t *testing.T, c Config, d device.Device, ids []int32, p plan) [][]float32 {
	t.Helper()
	need := (len(ids) + p.blockTokens - 1) / p.blockTokens
	pool := newPool(t, d, m.cfg, c.DType, p.blockTokens, need+1+p.company)
	var blocks []kv.BlockID
	for i := range need {
		blocks = append(blocks, kv.BlockID(i+1))
	}
	if p.reversed {
		slices.Reverse(blocks)
	}
	var out [][]float32
	for at, step := 0, 0; at < len(ids); step++ {
		n := min(p.chunks[min(step, len(p.chunks)-1)], len(ids)-at)
		b := &device.Batch{}
		first := 0
		for s := range p.company + 1 {
			seq := device.Seq{Blocks: []kv.BlockID{kv.BlockID(need + s)}, Tokens: 1 + (s*7+step)%9, Draw: greedy()}
			if s == p.company/2 {
				seq = device.Seq{Blocks: blocks, Context: at, Tokens: n, Draw: greedy()}
				first = len(b.IDs)
				b.IDs = append(b.IDs, ids[at:at+n]...)
			} else {
				if s < p.company/2 {
					seq.Blocks[0]++
				}
				for i := range seq.Tokens {
					b.IDs = append(b.IDs, int32((s*31+i*17+step)%m.cfg.VocabSize))
				}
			}
			b.Seqs = append(b.Seqs, seq)
		}
		hidden, _ := m.pass(t, pool.compute, b)
		out = append(out, hidden[first:first+n]...)
		at += n
	}
	return append(out, slices.Clone(pool.compute.(device.LogitReader).Logits(p.company/2)))
}

// testDirtyScratch runs a pass over NaNs first: nothing of it stays behind.
func testDirtyScratch(t *testing.T, c Config) {
	d, cfg, rng := c.open(t), c.sparse(), newRand(t, 12)
	m := newModel(t, d, rng, cfg)
	b := &device.Batch{IDs: randomIDs(rng, 70, cfg.VocabSize), Seqs: []device.Seq{
		{Blocks: []kv.BlockID{1, 0}, Tokens: 67, Draw: greedy()}, {Blocks: []kv.BlockID{2}, Tokens: 3, Draw: greedy()},
	}}
	clean := newPool(t, d, cfg, c.DType, 64, 3)
	want, _ := m.pass(t, clean.compute, b)
	dirty := newPool(t, d, cfg, c.DType, 64, 3)
	long := &device.Batch{IDs: randomIDs(rng, 120, cfg.VocabSize), Seqs: []device.Seq{{Blocks: []kv.BlockID{2, 1}, Tokens: 120, Draw: greedy()}}}
	check(t, dirty.compute.Begin(long))
	dirty.compute.Embed(m.table)
	rows := make([][]float32, 120)
	for r := range rows {
		rows[r] = slices.Repeat([]float32{float32(math.NaN())}, cfg.HiddenSize)
	}
	dirty.compute.(device.HiddenAccess).SetHidden(rows)
	for i, l := range m.layers {
		dirty.compute.Attention(i, &l.attn)
		dirty.compute.MLP(&l.ff)
	}
	dirty.compute.Head(&device.HeadWeights{Norm: m.finalNorm, Out: m.head})
	_, err := dirty.compute.End()
	check(t, err)
	got, _ := m.pass(t, dirty.compute, b)
	for r := range want {
		if i := differ(got[r], want[r]); i >= 0 {
			t.Fatalf("row %d, value %d is %v after a pass of NaNs, %v without", r, i, got[r][i], want[r][i])
		}
	}
}

func testEmptyBatch(t *testing.T, c Config) {
	d, cfg, rng := c.open(t), c.sparse(), newRand(t, 13)
	m := newModel(t, d, rng, cfg)
	p := newPool(t, d, cfg, c.DType, 16, 1)
	hidden, tokens := m.pass(t, p.compute, &device.Batch{})
	if len(hidden) != 0 || len(tokens) != 0 {
		t.Errorf("an empty batch made %d rows and %d tokens", len(hidden), len(tokens))
	}
}

// testRefused begins wrong batches: each is an error, and a right one still runs after it.
func testRefused(t *testing.T, c Config) {
	d, cfg, rng := c.open(t), c.dense(), newRand(t, 14)
	m := newModel(t, d, rng, cfg)
	p := newPool(t, d, cfg, c.DType, 16, 4)
	ids := func(n int) []int32 { return make([]int32, n) }
	seq := func(context, tokens int, blocks ...kv.BlockID) []device.Seq {
		return []device.Seq{{Blocks: blocks, Context: context, Tokens: tokens}}
	}
	many := &device.Batch{}
	for range 17 {
		many.IDs, many.Seqs = append(many.IDs, 0), append(many.Seqs, seq(0, 1, 0)...)
	}
	for name, b := range map[string]*device.Batch{
		"id below 0":             {IDs: []int32{-1}, Seqs: seq(0, 1, 0)},
		"id past the end":        {IDs: []int32{int32(cfg.VocabSize)}, Seqs: seq(0, 1, 0)},
		"more ids than rows":     {IDs: ids(2), Seqs: seq(0, 1, 0)},
		"no rows":                {Seqs: seq(0, 0, 0)},
		"negative context":       {IDs: ids(1), Seqs: seq(-1, 1, 0)},
		"too few blocks":         {IDs: ids(2), Seqs: seq(15, 2, 0)},
		"block below 0":          {IDs: ids(1), Seqs: seq(0, 1, -1)},
		"block past the pool":    {IDs: ids(1), Seqs: seq(0, 1, 4)},
		"too many rows":          {IDs: ids(601), Seqs: append(seq(0, 300, slices.Repeat([]kv.BlockID{0}, 19)...), seq(0, 301, slices.Repeat([]kv.BlockID{0}, 19)...)...)},
		"too many sequences":     many,
		"past the last position": {IDs: ids(1), Seqs: seq(cfg.MaxPositions, 1, slices.Repeat([]kv.BlockID{0}, 40)...)},
	} {
		if err := p.compute.Begin(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	good := &device.Batch{IDs: ids(3), Seqs: seq(0, 3, 1)}
	good.Seqs[0].Draw = greedy()
	if _, tokens := m.pass(t, p.compute, good); len(tokens) != 1 {
		t.Errorf("%d tokens, want 1", len(tokens))
	}
	for i, b := range read(t, d, p.buf)[:p.layout.BlockBytes()] {
		if b != poison {
			t.Fatalf("byte %d of a block that only refused batches named was written", i)
		}
	}
}
