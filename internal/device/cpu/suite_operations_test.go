package cpu_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
)

// testUpload reads weights back through Embed: bf16 values, whatever the source's type, and dummies by their definition.
func testUpload(t *testing.T, c Config) {
	d, cfg, rng := c.open(t), c.dense(), newRand(t, 1)
	p := newPool(t, d, cfg, c.DType, 16, 2)
	n, k := cfg.VocabSize, cfg.HiddenSize
	dummy := device.Dummy{Seed: 99, Scale: 0.7, Offset: 0.25}
	for _, dtype := range []arch.DType{arch.BF16, arch.F16, arch.F32, 0} {
		want := make([]uint16, n*k)
		tensor := device.Tensor{Name: "table", Shape: []int{n, k}, DType: dtype, Dummy: dummy}
		dummy.Values(want, 0)
		for i := 0; dtype != 0 && i < len(want); i++ {
			small := rng.IntN(2000) - 1000 // a number that every type holds exactly, over 1024
			f := float32(small) / 1024
			want[i] = device.BF16(f)
			switch dtype {
			case arch.BF16:
				tensor.Data = binary.LittleEndian.AppendUint16(tensor.Data, want[i])
			case arch.F16:
				tensor.Data = binary.LittleEndian.AppendUint16(tensor.Data, half(small))
			case arch.F32:
				tensor.Data = binary.LittleEndian.AppendUint32(tensor.Data, math.Float32bits(f))
			}
		}
		table, err := d.Matrix(tensor)
		check(t, err)
		ids := []int32{0, int32(n - 1), 33, 31, 32, 5, 64}
		check(t, p.compute.Begin(&device.Batch{IDs: ids, Seqs: []device.Seq{{Blocks: []kv.BlockID{0}, Tokens: len(ids)}}}))
		p.compute.Embed(table)
		for r, row := range p.compute.(device.HiddenAccess).Hidden() {
			for i, v := range row {
				if w := device.Float32(want[int(ids[r])*k+i]); v != w {
					t.Fatalf("%v: row %d, column %d is %v, want %v", dtype, ids[r], i, v, w)
				}
			}
		}
	}
}

// half is n/1024 as binary16, |n| < 1024: n * 2^-10 has at most ten bits and is normal from 2^-10 on.
func half(n int) uint16 {
	sign := uint16(0)
	if n < 0 {
		sign, n = 1<<15, -n
	}
	if n == 0 {
		return sign
	}
	exp := 0
	for n>>(exp+1) != 0 {
		exp++
	}
	return sign | uint16(exp-10+15)<<10 | uint16(n<<(10-exp))&1023
}

func testShapes(t *testing.T, c Config) {
	d := c.open(t)
	ok := device.Tensor{Name: "ok", Shape: []int{8, 8}, Dummy: device.Dummy{Scale: 1}}
	bad := device.Tensor{Name: "bad", Shape: []int{8, 9}, Dummy: device.Dummy{Scale: 1}}
	short := device.Tensor{Name: "short", Shape: []int{8, 8}, DType: arch.BF16, Data: make([]byte, 100)}
	m, err := d.Matrix(ok, ok)
	check(t, err)
	if n, k := m.Shape(); n != 16 || k != 8 || m.Size() < 2*16*8 {
		t.Errorf("two parts of [8, 8] make [%d, %d] of %d bytes", n, k, m.Size())
	}
	for name, parts := range map[string][]device.Tensor{"none": nil, "unlike": {ok, bad}, "short": {short}} {
		if _, err := d.Matrix(parts...); err == nil {
			t.Errorf("matrix of parts %q: no error", name)
		}
	}
	if _, err := d.Vector(ok); err == nil {
		t.Error("a matrix made a vector")
	}
	one := []device.Tensor{ok}
	if _, err := d.Experts(one, nil, one); err == nil {
		t.Error("experts without up: no error")
	}
	if _, err := d.Experts(one, one, []device.Tensor{bad}); err == nil {
		t.Error("an expert whose down does not fit: no error")
	}
}

// job is one sequence that a test feeds in parts.
type job struct {
	ids    []int32
	blocks []kv.BlockID
	past   []past // by layer
	done   int
}

// testOperations feeds several sequences in ragged steps and compares each operation's rows with the reference, the
// KV pool with the reference's K and V, and what was not written with the poison.
func testOperations(t *testing.T, c Config) {
	for name, cfg := range map[string]*arch.Config{"dense": c.dense(), "sparse": c.sparse()} {
		for _, bt := range []int{16, 128} {
			t.Run(fmt.Sprintf("%s/%d", name, bt), func(t *testing.T) { feed(t, c, cfg, bt) })
		}
	}
}

func feed(t *testing.T, c Config, cfg *arch.Config, bt int) {
	d, rng := c.open(t), newRand(t, uint64(bt))
	m := newModel(t, d, rng, cfg)
	lengths := []int{1, bt - 1, bt, bt + 1, 150}
	var jobs []*job
	blocks := 2 // two stay free
	for _, n := range lengths {
		jobs = append(jobs, &job{ids: randomIDs(rng, n, cfg.VocabSize), past: make([]past, cfg.NumLayers)})
		blocks += (n + bt - 1) / bt
	}
	p := newPool(t, d, cfg, c.DType, bt, blocks)
	free := rng.Perm(blocks)
	for _, j := range jobs {
		for range (len(j.ids) + bt - 1) / bt {
			j.blocks, free = append(j.blocks, kv.BlockID(free[0])), free[1:]
		}
	}
	for {
		b, part := nextBatch(jobs, []int{1, 7, 61, 110}[rng.IntN(4)])
		if len(part) == 0 {
			break
		}
		m.compare(t, c, p, b, part)
	}
	checkPool(t, c, d, p, jobs)
}

// nextBatch takes up to n tokens of each unfinished job.
func nextBatch(jobs []*job, n int) (*device.Batch, []*job) {
	b := &device.Batch{}
	var part []*job
	for _, j := range jobs {
		take := min(n, len(j.ids)-j.done)
		if take == 0 {
			continue
		}
		b.IDs = append(b.IDs, j.ids[j.done:j.done+take]...)
		b.Seqs = append(b.Seqs, device.Seq{Blocks: j.blocks, Context: j.done, Tokens: take})
		j.done += take
		part = append(part, j)
	}
	return b, part
}

// compare runs one pass and checks the hidden state behind each operation.
func (m *model) compare(t *testing.T, c Config, p *pool, b *device.Batch, part []*job) {
	t.Helper()
	access := p.compute.(device.HiddenAccess)
	check(t, p.compute.Begin(b))
	p.compute.Embed(m.table)
	unsure := 0
	for i, l := range m.layers {
		before := access.Hidden()
		p.compute.Attention(i, &l.attn)
		after := access.Hidden()
		r := 0
		for s, j := range part {
			for range b.Seqs[s].Tokens {
				m.row(t, c, "attention", i, r, before[r], after[r], l.attention(m.cfg, before[r], &j.past[i]))
				r++
			}
		}
		p.compute.MLP(&l.ff)
		for r, got := range access.Hidden() {
			want, sure := l.mlp(m.cfg, after[r])
			if !sure {
				unsure++
				continue
			}
			m.row(t, c, "mlp", i, r, after[r], got, want)
		}
	}
	if unsure > 1+len(b.IDs)/50 {
		t.Errorf("%d of %d rows were too near a tie to compare", unsure, len(b.IDs))
	}
	_, err := p.compute.End()
	check(t, err)
}

func (m *model) row(t *testing.T, c Config, op string, layer, r int, before, got []float32, want []float64) {
	t.Helper()
	if lost, allowed := near(before, got, want, c.DType); !(lost <= allowed) {
		t.Fatalf("%s of layer %d, row %d: off by %.3g, at most %.3g allowed", op, layer, r, lost, allowed)
	}
}

// checkPool compares all K and V, and sees that no other slot was written.
func checkPool(t *testing.T, c Config, d device.Device, p *pool, jobs []*job) {
	t.Helper()
	bytes := read(t, d, p.buf)
	l := p.layout
	written := 0
	row := l.HeadDim * l.DType.Size()
	for _, j := range jobs {
		for layer := range l.Layers {
			for pos := range j.ids {
				for h := range l.KVHeads {
					for v, want := range [][]float64{j.past[layer].k[pos], j.past[layer].v[pos]} {
						off := int(l.HeadOffset(j.blocks[pos/l.BlockTokens], layer, v == 1, h)) + pos%l.BlockTokens*row
						got := values(bytes[off:off+row], l.DType)
						if lost, allowed := near(nil, got, want[h*l.HeadDim:(h+1)*l.HeadDim], c.DType); !(lost <= allowed) {
							t.Fatalf("layer %d, position %d, head %d, value %t: off by %.3g, at most %.3g allowed", layer, pos, h, v == 1, lost, allowed)
						}
						for i := range row {
							bytes[off+i] = poison
						}
						written++
					}
				}
			}
		}
	}
	for i, b := range bytes {
		if b != poison {
			t.Fatalf("byte %d of the pool belongs to no token and was written (%d slots were due)", i, written)
		}
	}
}

func values(b []byte, dtype arch.DType) []float32 {
	out := make([]float32, len(b)/dtype.Size())
	for i := range out {
		if dtype == arch.F32 {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		} else {
			out[i] = device.Float32(binary.LittleEndian.Uint16(b[2*i:]))
		}
	}
	return out
}

// testRouterTies makes all experts equally probable: the lowest numbers are chosen.
func testRouterTies(t *testing.T, c Config) {
	d, cfg, rng := c.open(t), c.sparse(), newRand(t, 3)
	m := newModel(t, d, rng, cfg)
	l := m.layers[0]
	for _, row := range l.router {
		clear(row)
	}
	zero := device.Tensor{Name: "zero", Shape: []int{cfg.NumExperts, cfg.HiddenSize}, DType: arch.BF16, Data: make([]byte, 2*cfg.NumExperts*cfg.HiddenSize)}
	var err error
	l.ff.Router, err = d.Matrix(zero)
	check(t, err)
	p := newPool(t, d, cfg, c.DType, 16, 1)
	check(t, p.compute.Begin(&device.Batch{IDs: []int32{1, 2, 3}, Seqs: []device.Seq{{Blocks: []kv.BlockID{0}, Tokens: 3}}}))
	p.compute.Embed(m.table)
	access := p.compute.(device.HiddenAccess)
	before := access.Hidden()
	p.compute.MLP(&l.ff)
	for r, got := range access.Hidden() {
		want, _ := l.mlp(cfg, before[r])
		m.row(t, c, "mlp", 0, r, before[r], got, want)
	}
}

// testHead compares logits of the rows that draw, and the greedy token with the logits.
func testHead(t *testing.T, c Config) {
	d, cfg, rng := c.open(t), c.dense(), newRand(t, 4)
	m := newModel(t, d, rng, cfg)
	p := newPool(t, d, cfg, c.DType, 16, 8)
	b := &device.Batch{IDs: randomIDs(rng, 20, cfg.VocabSize)}
	for i, n := range []int{3, 1, 16} {
		b.Seqs = append(b.Seqs, device.Seq{Blocks: []kv.BlockID{kv.BlockID(2 * i)}, Tokens: n, Draw: greedy()})
	}
	b.Seqs[1].Draw = nil
	hidden, tokens := m.pass(t, p.compute, b)
	if len(tokens) != 2 {
		t.Fatalf("%d tokens for 2 draws", len(tokens))
	}
	for i, r := range []int{2, 19} {
		got := p.compute.(device.LogitReader).Logits(i)
		want := times(rms(hidden[r], m.final, cfg.RMSNormEps), m.embed)
		if len(got) != cfg.VocabSize {
			t.Fatalf("%d logits, want %d", len(got), cfg.VocabSize)
		}
		m.row(t, c, "head", 0, r, nil, got, want)
		best := 0
		for id, v := range got {
			if v > got[best] {
				best = id
			}
		}
		if tokens[i] != int32(best) {
			t.Errorf("draw %d gave %d, its largest logit is %d's", i, tokens[i], best)
		}
	}
}
