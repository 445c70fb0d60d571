package cpu

import (
	"errors"
	"fmt"
	"math"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu/gemm"
	"larder/internal/sample"
)

// subRows is how many rows go through a projection at once: enough to fill every core, few enough that scratch memory
// stays small. tileRows is how many share a block of A that stays in the second-level cache.
const (
	subRows  = 1024
	mlpRows  = 2048
	tileRows = 96
)

// compute is the forward pass. All scratch memory is taken once, here; a step takes none.
type compute struct {
	dev    *Device
	team   *team
	family *gemm.Family
	cfg    *arch.Config
	spec   device.ComputeSpec
	pool   []byte

	batch *device.Batch
	ids   []int32 // of the batch, all known
	rows  []row
	draws []draw

	hidden []float32 // [rows][hidden], the residual stream
	heads  operand   // [rows][query heads * dim]: Q, then what attention makes of it
	in     operand   // [subRows][widest input]
	out    []float32 // [subRows][widest padded output]
	exact  []float32 // [mlpRows][evenHidden] fp32, for the router
	logits []float32 // [draws][padded vocabulary]
	last   *pass     // the one before: Begin may ask for its tokens
	other  *pass     // the one before that, free for the next
	rope   ropeTable
	moe    moeScratch
	work   []workerScratch
	packed packedKV
	shorts []short
}

// draw is a row that Head makes logits for, and what is asked of them.
type draw struct {
	row int
	ask *sample.Draw
}

// pass is over when End returns: each pass runs inside the calls that make it.
type pass struct{ tokens []int32 }

// Wait implements device.Pass.
func (p *pass) Wait() ([]int32, error) { return p.tokens, nil }

// row places one row of the pass.
type row struct {
	seq, pos int
}

// operand is a matrix in the form that the kernels take on the A side: bf16 or fp32 rows, padded to whole pairs with
// zeros.
type operand struct {
	bytes []byte
	pitch int // bytes
	cols  int
}

func (o operand) row(r int) []byte { return o.bytes[r*o.pitch : (r+1)*o.pitch] }

func (c *compute) newOperand(rows, cols int) operand {
	pitch := ((cols+1)/2*2*c.family.Size() + 63) / 64 * 64
	if pitch%1024 == 0 { // a tile's dozen rows would share few sets of the first-level cache and drive each other out
		pitch += 64
	}
	return operand{bytes: make([]byte, rows*pitch), pitch: pitch, cols: cols}
}

// NewCompute implements device.Device.
func (d *Device) NewCompute(spec device.ComputeSpec) (device.Compute, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	c := &compute{dev: d, team: d.team, family: d.family, cfg: spec.Config, spec: spec}
	if err := c.checkSpec(); err != nil {
		return nil, err
	}
	cfg := spec.Config
	c.pool = spec.KV.(*buffer).bytes
	q := cfg.NumHeads * cfg.HeadDim
	sub := min(spec.MaxTokens, subRows)
	c.rows = make([]row, 0, spec.MaxTokens)
	c.hidden = make([]float32, spec.MaxTokens*cfg.HiddenSize)
	c.heads = c.newOperand(spec.MaxTokens, q)
	c.in = c.newOperand(sub, max(cfg.HiddenSize, q))
	c.out = make([]float32, sub*pad(max(cfg.QKVRows(), cfg.HiddenSize)))
	c.logits = make([]float32, 0, min(spec.MaxSeqs, 8)*pad(cfg.VocabSize))
	c.ids = make([]int32, 0, spec.MaxTokens)
	c.last, c.other = &pass{make([]int32, 0, spec.MaxSeqs)}, &pass{make([]int32, 0, spec.MaxSeqs)}
	c.draws = make([]draw, 0, spec.MaxSeqs)
	c.shorts = make([]short, 0, spec.MaxSeqs)
	c.rope = newRope(cfg)
	c.moe = c.newMoE(min(spec.MaxTokens, mlpRows))
	c.exact = make([]float32, min(spec.MaxTokens, mlpRows)*c.evenHidden())
	c.work = make([]workerScratch, d.team.size)
	for w := range c.work {
		c.work[w] = c.newWorker()
	}
	return c, nil
}

func pad(n int) int { return (n + gemm.Cols - 1) / gemm.Cols * gemm.Cols }

// evenHidden is the hidden size up to whole pairs, as the kernels read them; what it adds stays zero.
func (c *compute) evenHidden() int { return (c.cfg.HiddenSize + 1) / 2 * 2 }

func (c *compute) checkSpec() error {
	s := &c.spec
	if s.Config == nil || s.KV == nil || s.MaxTokens < 1 || s.MaxSeqs < 1 {
		return fmt.Errorf("cpu: config, KV pool, most tokens and most sequences must be set")
	}
	if err := errors.Join(s.Config.Validate(), s.Layout.Validate()); err != nil {
		return fmt.Errorf("cpu: %w", err)
	}
	if s.Layout.DType != c.dev.cfg.DType {
		return fmt.Errorf("cpu: a KV pool of %v on a device that computes in %v", s.Layout.DType, c.dev.cfg.DType)
	}
	if s.Layout.Layers != s.Config.NumLayers || s.Layout.KVHeads != s.Config.NumKVHeads || s.Layout.HeadDim != s.Config.HeadDim {
		return fmt.Errorf("cpu: the KV layout %+v is not that of %s", s.Layout, s.Config.Name)
	}
	if _, ok := s.KV.(*buffer); !ok {
		return fmt.Errorf("cpu: the KV pool is another device's memory")
	}
	return nil
}

// Begin implements device.Compute.
func (c *compute) Begin(b *device.Batch) error {
	if err := c.dev.check(); err != nil {
		return err
	}
	if err := c.validate(b); err != nil {
		return err
	}
	for _, e := range b.After {
		if err := e.Wait(); err != nil {
			return fmt.Errorf("cpu: a load that the pass waits for: %w", err)
		}
	}
	c.batch = b
	c.rows, c.draws, c.ids = c.rows[:0], c.draws[:0], c.ids[:0]
	for _, id := range b.IDs {
		if id < 0 {
			id = max(c.last.tokens[-1-id], 0)
		}
		c.ids = append(c.ids, id)
	}
	for i := range b.Seqs {
		s := &b.Seqs[i]
		for t := range s.Tokens {
			c.rows = append(c.rows, row{seq: i, pos: s.Context + t})
		}
		c.rope.reach(s.Context + s.Tokens)
		if s.Draw != nil {
			c.draws = append(c.draws, draw{len(c.rows) - 1, s.Draw})
		}
	}
	return nil
}

// validate refuses a batch before anything is done.
func (c *compute) validate(b *device.Batch) error {
	bt := c.spec.Layout.BlockTokens
	blocks := int64(len(c.pool)) / c.spec.Layout.BlockBytes()
	if len(b.IDs) > c.spec.MaxTokens || len(b.Seqs) > c.spec.MaxSeqs {
		return fmt.Errorf("cpu: %d rows and %d sequences, at most %d and %d", len(b.IDs), len(b.Seqs), c.spec.MaxTokens, c.spec.MaxSeqs)
	}
	rows := 0
	for i := range b.Seqs {
		s := &b.Seqs[i]
		if s.Tokens < 1 || s.Context < 0 {
			return fmt.Errorf("cpu: sequence %d has %d rows behind %d tokens", i, s.Tokens, s.Context)
		}
		if s.Context > c.cfg.MaxPositions-s.Tokens {
			return fmt.Errorf("cpu: sequence %d has %d tokens, the model has %d positions", i, s.Context+s.Tokens, c.cfg.MaxPositions)
		}
		need := (s.Context + s.Tokens + bt - 1) / bt
		if len(s.Blocks) < need {
			return fmt.Errorf("cpu: sequence %d has %d blocks for %d tokens", i, len(s.Blocks), s.Context+s.Tokens)
		}
		for _, id := range s.Blocks[:need] {
			if id < 0 || int64(id) >= blocks {
				return fmt.Errorf("cpu: sequence %d names block %d of %d", i, id, blocks)
			}
		}
		rows += s.Tokens
	}
	if rows != len(b.IDs) {
		return fmt.Errorf("cpu: %d ids for %d rows", len(b.IDs), rows)
	}
	for i, id := range b.IDs {
		if int(id) >= c.cfg.VocabSize || int(id) < -len(c.last.tokens) {
			return fmt.Errorf("cpu: row %d has id %d; the vocabulary has %d, and the pass before drew %d", i, id, c.cfg.VocabSize, len(c.last.tokens))
		}
	}
	return nil
}

// Embed implements device.Compute.
func (c *compute) Embed(table device.Matrix) {
	m := table.(*matrix)
	c.team.rows(len(c.rows), 64, func(_, lo, hi int) {
		for r := lo; r < hi; r++ {
			m.Row(c.x(r), int(c.ids[r]))
		}
	})
}

// x is row r of the hidden state.
func (c *compute) x(r int) []float32 {
	h := c.cfg.HiddenSize
	return c.hidden[r*h : (r+1)*h]
}

// rmsNorm writes x normalised and weighted to dst, in fp32: x / sqrt(mean(x²) + eps) * w. The sum is taken in eight
// interleaved parts.
func rmsNorm(dst, x []float32, w vector, eps float32) {
	var part [8]float32
	n := len(x) / 8 * 8
	for i := 0; i < n; i += 8 {
		v := (*[8]float32)(x[i:])
		for j := range v {
			part[j] += v[j] * v[j]
		}
	}
	for _, v := range x[n:] {
		part[0] += v * v
	}
	sum := ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]))
	scale := 1 / float32(math.Sqrt(float64(sum/float32(len(x))+eps)))
	w = w[:len(x)]
	for i, v := range x {
		dst[i] = v * scale * w[i]
	}
}

// put writes fp32 values as an operand's row, rounded as the device computes, and zeros what pads the row.
func (c *compute) put(dst []byte, src []float32) {
	if c.family.BF16 {
		row := slice[uint16](dst, 0, len(dst)/2)
		c.family.Round(row, src)
		clear(row[len(src):])
		return
	}
	row := slice[float32](dst, 0, len(dst)/4)
	copy(row, src)
	if c.dev.cfg.DType == arch.BF16 {
		for i, v := range src {
			row[i] = device.Float32(device.BF16(v))
		}
	}
	clear(row[len(src):])
}

// multiply computes rows of out = A Wᵀ over all cores: blocks of rows by groups of panels.
func (c *compute) multiply(out []float32, ldc int, a operand, rows int, w *gemm.Packed) {
	blocks := (rows + tileRows - 1) / tileRows
	group := max(min(w.Panels()*blocks/(8*c.team.size), 16), 1)
	groups := (w.Panels() + group - 1) / group
	c.team.run(blocks*groups, func(_, task int) {
		r := task % blocks * tileRows
		p := task / blocks * group
		c.family.Weight(out[r*ldc:], ldc, a.bytes[r*a.pitch:], a.pitch, min(tileRows, rows-r), w, p, min(p+group, w.Panels()))
	})
}

// Head implements device.Compute.
func (c *compute) Head(w *device.HeadWeights) {
	m := w.Out.(*matrix)
	ld := m.Padded()
	if n := len(c.draws) * ld; cap(c.logits) < n {
		c.logits = make([]float32, n)
	} else {
		c.logits = c.logits[:n]
	}
	h := c.cfg.HiddenSize
	for lo := 0; lo < len(c.draws); lo += subRows {
		part := c.draws[lo:min(lo+subRows, len(c.draws))]
		for i, d := range part {
			x := c.work[0].row[:h]
			rmsNorm(x, c.x(d.row), w.Norm.(vector), c.cfg.RMSNormEps)
			c.put(c.in.row(i), x)
		}
		c.multiply(c.logits[lo*ld:], ld, c.in, len(part), m.Packed)
	}
}

// End implements device.Compute.
func (c *compute) End() device.Pass {
	p := c.other
	p.tokens = p.tokens[:len(c.draws)]
	c.team.run(len(c.draws), func(_, i int) { p.tokens[i] = sample.Pick(c.Logits(i), c.draws[i].ask) })
	c.last, c.other = p, c.last
	return p
}

// Logits implements device.LogitReader.
func (c *compute) Logits(i int) []float32 {
	ld := pad(c.cfg.VocabSize)
	return c.logits[i*ld : i*ld+c.cfg.VocabSize]
}

// SetHidden implements device.HiddenAccess.
func (c *compute) SetHidden(rows [][]float32) {
	for r := range rows {
		copy(c.x(r), rows[r])
	}
}

// Hidden implements device.HiddenAccess.
func (c *compute) Hidden() [][]float32 {
	out := make([][]float32, len(c.rows))
	for r := range out {
		out[r] = append([]float32(nil), c.x(r)...)
	}
	return out
}
