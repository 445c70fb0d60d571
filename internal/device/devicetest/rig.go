package devicetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/sample"
)

// rig is a device with one model, a KV pool and a copy of that pool on the host to write and read it through.
type rig struct {
	dev    device.Device
	rng    *rand.Rand
	m      *model
	w      *uploaded
	layout kv.Layout
	blocks int

	pool   device.Buffer
	host   device.Mapped
	stream device.Stream

	spec   device.ComputeSpec
	comp   device.Compute
	hidden device.HiddenAccess
	logits device.LogitReader
}

// newRig opens a device and makes a pool of blocks for passes of up to rows rows and seqs sequences.
func newRig(t testing.TB, open Open, rng *rand.Rand, m *model, blockTokens, blocks, rows, seqs int) (*rig, error) {
	r := &rig{dev: open(t), rng: rng, m: m, blocks: blocks}
	var err error
	if r.w, err = m.upload(r.dev); err != nil {
		return r, err
	}
	if err := r.openPool(blockTokens); err != nil {
		return r, err
	}
	r.spec = device.ComputeSpec{Config: m.cfg, Layout: r.layout, KV: r.pool, MaxTokens: rows, MaxSeqs: seqs}
	if r.comp, err = r.dev.NewCompute(r.spec); err != nil {
		return r, err
	}
	var ok bool
	if r.hidden, ok = r.comp.(device.HiddenAccess); !ok {
		return r, fmt.Errorf("%T is no device.HiddenAccess: its operations cannot be tested", r.comp)
	}
	if r.logits, ok = r.comp.(device.LogitReader); !ok {
		return r, fmt.Errorf("%T is no device.LogitReader: its head cannot be tested", r.comp)
	}
	return r, r.poison()
}

func (r *rig) openPool(blockTokens int) error {
	dtype, err := r.dtype()
	if err != nil {
		return err
	}
	r.layout = kv.LayoutOf(r.m.cfg, blockTokens, dtype)
	if r.pool, err = r.dev.Alloc(r.layout.BlockBytes() * int64(r.blocks)); err != nil {
		return err
	}
	b, err := r.dev.AllocHost(r.pool.Size())
	if err != nil {
		return err
	}
	var ok bool
	if r.host, ok = b.(device.Mapped); !ok {
		return fmt.Errorf("AllocHost gave %T, which is not Mapped", b)
	}
	r.stream, err = r.dev.NewStream("test")
	return err
}

// dtype is what the device computes in: it takes a pool of that type and no other.
func (r *rig) dtype() (arch.DType, error) {
	pool, err := r.dev.Alloc(kv.LayoutOf(r.m.cfg, 1, arch.F32).BlockBytes())
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, t := range []arch.DType{arch.BF16, arch.F32} {
		spec := device.ComputeSpec{Config: r.m.cfg, Layout: kv.LayoutOf(r.m.cfg, 1, t), KV: pool, MaxTokens: 1, MaxSeqs: 1}
		if _, err := r.dev.NewCompute(spec); err == nil {
			return t, pool.Free()
		} else {
			errs = append(errs, err)
		}
	}
	return 0, errors.Join(append(errs, pool.Free())...)
}

// close ends the device; the first thing that went wrong is err, or else what closing says.
func (r *rig) close(err error) error {
	if r.stream != nil {
		err = errors.Join(err, r.stream.Close())
	}
	return errors.Join(err, r.dev.Close())
}

// poison fills the pool with NaN, and the device's scratch memory by a pass of NaNs that is as large as can be.
func (r *rig) poison() error {
	r.fillNaN()
	r.push()
	seqs := min(r.spec.MaxSeqs, r.blocks)
	b := &device.Batch{After: []device.Event{r.stream.Record()}}
	for i := range seqs {
		n := min(r.spec.MaxTokens/seqs, r.layout.BlockTokens)
		if n == 0 {
			break
		}
		b.Seqs = append(b.Seqs, device.Seq{Blocks: []kv.BlockID{kv.BlockID(i)}, Tokens: n, Draw: &sample.Draw{}})
		b.IDs = append(b.IDs, make([]int32, n)...)
	}
	rows := make([][]float32, len(b.IDs))
	for i := range rows {
		rows[i] = make([]float32, r.m.cfg.HiddenSize)
		for j := range rows[i] {
			rows[i][j] = float32(math.NaN())
		}
	}
	if err := r.comp.Begin(b); err != nil {
		return err
	}
	r.comp.Embed(r.w.embed)
	r.hidden.SetHidden(rows)
	r.layersAndHead()
	_, err := r.comp.End().Wait()
	return err
}

func (r *rig) layersAndHead() {
	for l := range r.m.layers {
		r.comp.Attention(l, r.w.attention[l])
		r.comp.MLP(r.w.mlp[l])
	}
	r.comp.Head(r.w.head)
}

// fillNaN fills the pool's copy: all ones are a NaN in every type.
func (r *rig) fillNaN() {
	b := r.host.Bytes()
	for n := copy(b, []byte{0xff, 0xff, 0xff, 0xff}); n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// push and pull queue copies of the whole pool.
func (r *rig) push() { r.stream.Copy(r.pool, 0, r.host, 0, r.pool.Size()) }
func (r *rig) pull() { r.stream.Copy(r.host, 0, r.pool, 0, r.pool.Size()) }

// slot is a token's K or V of one KV head in the pool's copy.
func (r *rig) slot(s *device.Seq, layer int, value bool, head, token int) []byte {
	off := r.layout.HeadOffset(s.Blocks[token/r.layout.BlockTokens], layer, value, head)
	n := r.layout.HeadDim * r.layout.DType.Size()
	off += int64(token % r.layout.BlockTokens * n)
	return r.host.Bytes()[off:][:n]
}

// put writes one token's K or V of all heads; the values are bf16 already.
func (r *rig) put(s *device.Seq, layer int, value bool, token int, v []float64) {
	for h := range r.layout.KVHeads {
		b := r.slot(s, layer, value, h, token)
		for i, x := range v[h*r.layout.HeadDim : (h+1)*r.layout.HeadDim] {
			bits := math.Float32bits(float32(x))
			if r.layout.DType == arch.BF16 {
				binary.LittleEndian.PutUint16(b[2*i:], uint16(bits>>16))
			} else {
				binary.LittleEndian.PutUint32(b[4*i:], bits)
			}
		}
	}
}

func (r *rig) get(s *device.Seq, layer int, value bool, token int) []float64 {
	var out []float64
	for h := range r.layout.KVHeads {
		b := r.slot(s, layer, value, h, token)
		for i := range r.layout.HeadDim {
			if r.layout.DType == arch.BF16 {
				out = append(out, fromBF16(binary.LittleEndian.Uint16(b[2*i:])))
			} else {
				out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))))
			}
		}
	}
	return out
}

// span is one sequence's part of a batch.
type span struct{ context, tokens int }

// batch places spans on random free blocks, with random ids and no draws.
func (r *rig) batch(spans []span) *device.Batch {
	b := &device.Batch{}
	free := r.rng.Perm(r.blocks)
	for _, p := range spans {
		s := device.Seq{Context: p.context, Tokens: p.tokens}
		for range r.layout.Blocks(p.context + p.tokens) {
			s.Blocks = append(s.Blocks, kv.BlockID(free[0]))
			free = free[1:]
		}
		b.Seqs = append(b.Seqs, s)
		for range p.tokens {
			b.IDs = append(b.IDs, int32(r.rng.IntN(r.m.cfg.VocabSize)))
		}
	}
	return b
}

// blocksFor is how many blocks spans take.
func blocksFor(spans []span, blockTokens int) int {
	n := 0
	for _, p := range spans {
		n += (p.context + p.tokens + blockTokens - 1) / blockTokens
	}
	return n
}

func rowsOf(spans []span) int {
	n := 0
	for _, p := range spans {
		n += p.tokens
	}
	return n
}

// randomRows are hidden rows, as the device takes them and as the reference does.
func randomRows(rng *rand.Rand, n, width int) (rows [][]float32, exact [][]float64) {
	for range n {
		row, same := make([]float32, width), make([]float64, width)
		for i := range row {
			row[i] = float32(rng.NormFloat64())
			same[i] = float64(row[i])
		}
		rows, exact = append(rows, row), append(exact, same)
	}
	return rows, exact
}

// compareAdded compares what a pass added to a hidden row with what it should have added. typical is a length below
// which errors count by it and not by the row's own.
func compareAdded(got []float32, before, want []float64, bound, typical float64) error {
	added := make([]float64, len(want))
	for i := range added {
		added[i] = float64(got[i]) - before[i]
	}
	if size := length(want); size < typical {
		bound *= typical / size
	}
	if d := distance(added, want); !(d <= bound) {
		return fmt.Errorf("off by %.3g of its length, %.3g allowed", d, bound)
	}
	return nil
}
