package cuda

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"larder/internal/arch"
	"larder/internal/device"
)

// passRows is how many rows go through a projection or an MLP at once: scratch memory is for so many.
const passRows = 16384

// The most that the kernels take.
const (
	maxHeadDim = 128
	maxExperts = 256
	maxGroup   = 16 // query heads of one KV head
)

// compute is the forward pass on a stream of its own.
type compute struct {
	dev     *Device
	cfg     *arch.Config
	spec    device.ComputeSpec
	pool    *buffer
	poolMap tensorMap // where byGroups
	stream  *stream
	err     error // of this pass

	slots [2]slot // passes take turns
	turn  int     // whose turn it is: the pass that began last, or begins next
	plan  *plan   // of that slot
	count int     // rows
	draws int

	hidden  *buffer // fp32 [rows][hiddenPitch], the residual stream
	heads   *buffer // bf16 [rows][headsPitch]: Q, later delta
	delta   bool    // heads holds what attention adds to the residual stream, which nobody has added yet
	mixed   *buffer // the same shape: what attention makes of Q
	in      *buffer // bf16 [3][passRows][hidden up to 8]: a normed operand, and twice what rounding left, for the router
	out     *buffer // bf16 [passRows][outPitch]: Q, K and V
	cosine  *buffer // fp32 [position][dim/2]
	sine    *buffer
	moe     moeScratch
	last    scratch // bf16 [draws][hidden up to 8]
	logits  scratch // fp32 [draws][vocabulary up to 4]
	parts   scratch // uint64 [draws][bestParts]: the best of each part of the logits
	readers scratch // host memory for Logits, Hidden and SetHidden
	rows    []float32
}

// NewCompute implements device.Device.
func (d *Device) NewCompute(spec device.ComputeSpec) (device.Compute, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	c := &compute{dev: d, cfg: spec.Config, spec: spec}
	if err := c.checkSpec(); err != nil {
		return nil, err
	}
	var err error
	if c.stream, err = d.newStream(); err != nil {
		return nil, err
	}
	for _, s := range []*scratch{&c.last, &c.logits, &c.parts} {
		s.dev = d
	}
	c.readers.dev, c.readers.host = d, true
	err = c.allocate()
	for i := range c.slots {
		err = errors.Join(err, c.slots[i].open(c))
	}
	c.plan = &c.slots[0].plan
	if err != nil {
		return nil, fmt.Errorf("cuda: scratch memory for %d rows: %w", spec.MaxTokens, err)
	}
	if c.byGroups() {
		bt := spec.Layout.BlockTokens
		if c.poolMap, err = c.dev.mapRows(c.pool.ptr, c.pool.size/256, 128, 128, min(bt, 64)); err != nil {
			return nil, err
		}
	}
	return c, c.makeRope()
}

func (c *compute) checkSpec() error {
	s := &c.spec
	if s.Config == nil || s.KV == nil || s.MaxTokens < 1 || s.MaxSeqs < 1 {
		return fmt.Errorf("cuda: config, KV pool, most tokens and most sequences must be set")
	}
	if err := errors.Join(s.Config.Validate(), s.Layout.Validate()); err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	if s.Layout.DType != arch.BF16 {
		return fmt.Errorf("cuda: a KV pool of %v, this device computes in bfloat16", s.Layout.DType)
	}
	cfg := s.Config
	if s.Layout.Layers != cfg.NumLayers || s.Layout.KVHeads != cfg.NumKVHeads || s.Layout.HeadDim != cfg.HeadDim {
		return fmt.Errorf("cuda: the KV layout %+v is not that of %s", s.Layout, cfg.Name)
	}
	if cfg.HeadDim > maxHeadDim || cfg.NumExperts > maxExperts || cfg.NumHeads/cfg.NumKVHeads > maxGroup {
		return fmt.Errorf("cuda: %s has heads of %d, %d experts and %d query heads a KV head: at most %d, %d and %d", cfg.Name,
			cfg.HeadDim, cfg.NumExperts, cfg.NumHeads/cfg.NumKVHeads, maxHeadDim, maxExperts, maxGroup)
	}
	var err error
	c.pool, err = c.dev.own(s.KV)
	return err
}

// Pitches in elements.
func (c *compute) hiddenPitch() int64 { return int64((c.cfg.HiddenSize + 3) / 4 * 4) }
func (c *compute) headsPitch() int64 {
	return int64(pad8(max(c.cfg.NumHeads*c.cfg.HeadDim, c.cfg.HiddenSize)))
}
func (c *compute) inPitch() int64     { return int64(pad8(c.cfg.HiddenSize)) }
func (c *compute) outPitch() int64    { return int64(pad8(c.cfg.QKVRows())) }
func (c *compute) routerPitch() int64 { return int64((max(c.cfg.NumExperts, 1) + 3) / 4 * 4) }
func (c *compute) vocabPitch() int64  { return int64((c.cfg.VocabSize + 3) / 4 * 4) }

// inRows is the rows of a part of in, rest where its second begins.
func (c *compute) inRows() int64   { return int64(min(c.spec.MaxTokens, passRows)) }
func (c *compute) restSize() int64 { return c.inRows() * c.inPitch() }
func (c *compute) rest() uintptr   { return c.in.ptr + uintptr(c.restSize()*2) }

func (c *compute) allocate() error {
	all, some := int64(c.spec.MaxTokens), int64(min(c.spec.MaxTokens, passRows))
	half := int64(c.cfg.MaxPositions) * int64(c.cfg.HeadDim/2) * 4
	list := []struct {
		to *(*buffer)
		n  int64
	}{
		{&c.hidden, all * c.hiddenPitch() * 4}, {&c.heads, all * c.headsPitch() * 2}, {&c.mixed, all * c.headsPitch() * 2},
		{&c.in, 3 * c.restSize() * 2}, {&c.out, some * c.outPitch() * 2},
		{&c.cosine, half}, {&c.sine, half},
	}
	for _, a := range append(list, c.moeBuffers(some)...) {
		var err error
		if *a.to, err = c.dev.zeroed(a.n); err != nil { // what pads a row must be zero
			return err
		}
	}
	return c.dev.on(func() error {
		return c.dev.drv.call("cuStreamSynchronize", c.dev.drv.streamSync, c.dev.setup.handle)
	})
}

// makeRope uploads sines and cosines of every position: angle pos / theta^(2i/dim) for pair i, taken in float64.
func (c *compute) makeRope() error {
	half, n := c.cfg.HeadDim/2, c.cfg.MaxPositions
	cosine, sine := make([]float32, n*half), make([]float32, n*half)
	for i := range half {
		freq := 1 / math.Pow(c.cfg.RopeTheta, float64(2*i)/float64(c.cfg.HeadDim))
		for pos := range n {
			s, co := math.Sincos(float64(pos) * freq)
			cosine[pos*half+i], sine[pos*half+i] = float32(co), float32(s)
		}
	}
	return errors.Join(c.write(c.cosine, cosine), c.write(c.sine, sine))
}

// write copies values to the GPU and waits.
func (c *compute) write(dst *buffer, v []float32) error {
	if len(v) == 0 {
		return nil
	}
	n := int64(len(v)) * 4
	if err := c.readers.need(n); err != nil {
		return err
	}
	copy(unsafe.Slice((*float32)(c.readers.b.host), len(v)), v)
	return c.transfer(dst.ptr, c.readers.b.ptr, n)
}

// read copies values from the GPU and waits.
func (c *compute) read(dst []float32, src uintptr) error {
	n := int64(len(dst)) * 4
	if n == 0 {
		return nil
	}
	if err := c.readers.need(n); err != nil {
		return err
	}
	if err := c.transfer(c.readers.b.ptr, src, n); err != nil {
		return err
	}
	copy(dst, unsafe.Slice((*float32)(c.readers.b.host), len(dst)))
	return nil
}

func (c *compute) transfer(dst, src uintptr, n int64) error {
	drv := c.dev.drv
	return c.dev.on(func() error {
		return errors.Join(drv.call("cuMemcpyAsync", drv.copyAsync, dst, src, uintptr(n), c.stream.handle),
			drv.call("cuStreamSynchronize", drv.streamSync, c.stream.handle))
	})
}

// Begin implements device.Compute.
func (c *compute) Begin(b *device.Batch) error {
	if err := c.dev.check(); err != nil {
		return err
	}
	if err := c.validate(b); err != nil {
		return err
	}
	now, before := &c.slots[c.turn], &c.slots[1-c.turn]
	for _, e := range b.After {
		own, ok := e.(*event)
		if !ok || own.dev != c.dev || own.err != nil {
			if err := e.Wait(); err != nil {
				return fmt.Errorf("cuda: a load that the pass waits for: %w", err)
			}
		}
	}
	if err := now.clear(); err != nil {
		return err
	}
	ids, err := before.known(b.IDs, now.ids)
	if err != nil {
		return err
	}
	now.begin(b, ids)
	c.plan, c.err, c.count, c.draws, c.delta = &now.plan, nil, len(b.IDs), len(now.asked), false
	if err := c.plan.make(c); err != nil {
		return err
	}
	for _, e := range b.After {
		if own, ok := e.(*event); ok && own.dev == c.dev {
			c.stream.Wait(own)
		}
	}
	return c.stream.err
}

// validate refuses a batch before anything is done.
func (c *compute) validate(b *device.Batch) error {
	if len(b.IDs) > c.spec.MaxTokens || len(b.Seqs) > c.spec.MaxSeqs {
		return fmt.Errorf("cuda: %d rows and %d sequences, at most %d and %d", len(b.IDs), len(b.Seqs), c.spec.MaxTokens, c.spec.MaxSeqs)
	}
	rows := 0
	for i := range b.Seqs {
		if err := c.validateSeq(&b.Seqs[i]); err != nil {
			return fmt.Errorf("cuda: sequence %d %w", i, err)
		}
		rows += b.Seqs[i].Tokens
	}
	if rows != len(b.IDs) {
		return fmt.Errorf("cuda: %d ids for %d rows", len(b.IDs), rows)
	}
	for i, id := range b.IDs {
		if before := len(c.slots[1-c.turn].asked); int(id) >= c.cfg.VocabSize || int(id) < -before {
			return fmt.Errorf("cuda: row %d has id %d; the vocabulary has %d, and the pass before drew %d", i, id, c.cfg.VocabSize, before)
		}
	}
	return nil
}

func (c *compute) validateSeq(s *device.Seq) error {
	if s.Tokens < 1 || s.Context < 0 {
		return fmt.Errorf("has %d rows behind %d tokens", s.Tokens, s.Context)
	}
	if s.Context > c.cfg.MaxPositions-s.Tokens {
		return fmt.Errorf("has %d tokens, the model has %d positions", s.Context+s.Tokens, c.cfg.MaxPositions)
	}
	need := c.spec.Layout.Blocks(s.Context + s.Tokens)
	if len(s.Blocks) < need {
		return fmt.Errorf("has %d blocks for %d tokens", len(s.Blocks), s.Context+s.Tokens)
	}
	blocks := c.pool.size / c.spec.Layout.BlockBytes()
	for _, id := range s.Blocks[:need] {
		if id < 0 || int64(id) >= blocks {
			return fmt.Errorf("names block %d of %d", id, blocks)
		}
	}
	return nil
}

// do queues kernels of the pass unless something went wrong before.
func (c *compute) do(f func() error) {
	if c.err == nil && c.count > 0 {
		c.err = c.dev.on(f)
	}
}

type embedArgs struct {
	x     uintptr
	ldx   int64
	table uintptr
	ld    int64
	ids   uintptr
	drawn uintptr // of the pass before
	n     int32
}

// Embed implements device.Compute.
func (c *compute) Embed(table device.Matrix) {
	m := table.(*matrix)
	c.do(func() error {
		return launch(c.dev, c.stream.handle, "embed", c.count, 1, 256,
			&embedArgs{c.hidden.ptr, c.hiddenPitch(), m.b.ptr, int64(m.ld), c.plan.ids(), c.slots[1-c.turn].chosen.ptr, int32(c.cfg.HiddenSize)})
	})
}

type normArgs struct {
	out   uintptr
	ldo   int64
	rest  uintptr
	last  int64
	x     uintptr
	ldx   int64
	w     uintptr
	rows  uintptr
	delta uintptr
	ldd   int64
	n     int32
	eps   float32
}

// norm norms n rows of the hidden state from row lo on into a bf16 operand and, where rest is set, what that leaves. What
// attention left is added first.
func (c *compute) norm(out *buffer, rest uintptr, w device.Vector, lo, n int) error {
	a := normArgs{out: out.ptr, ldo: c.inPitch(), rest: rest, last: c.restSize(), x: c.hidden.ptr + uintptr(int64(lo)*c.hiddenPitch()*4),
		ldx: c.hiddenPitch(), w: w.(*vector).b.ptr, n: int32(c.cfg.HiddenSize), eps: c.cfg.RMSNormEps}
	if c.delta {
		a.delta, a.ldd = c.heads.ptr+uintptr(int64(lo)*c.headsPitch()*2), c.headsPitch()
	}
	return launch(c.dev, c.stream.handle, "rms_norm", n, 1, 256, &a)
}

type addRowsArgs struct {
	x     uintptr
	ldx   int64
	delta uintptr
	ldd   int64
	n     int32
}

// settle adds what attention left and nobody has added: the norm of an MLP does it otherwise.
func (c *compute) settle() {
	if !c.delta {
		return
	}
	c.do(func() error {
		return launch(c.dev, c.stream.handle, "add_rows", c.count, 1, 256,
			&addRowsArgs{c.hidden.ptr, c.hiddenPitch(), c.heads.ptr, c.headsPitch(), int32(c.cfg.HiddenSize)})
	})
	c.delta = false
}

type bestArgs struct {
	parts, logits uintptr
	ld            int64
	n             int32
}

type argmaxArgs struct {
	tokens, answers, parts uintptr
	count                  int32
}

// bestParts is how many parts a row of logits is searched in.
const bestParts = 32

// Head implements device.Compute.
func (c *compute) Head(w *device.HeadWeights) {
	if c.draws == 0 {
		return
	}
	c.settle()
	c.do(func() error {
		n, now := int64(c.draws), &c.slots[c.turn]
		err := errors.Join(c.grow(&c.last, n*c.inPitch()*2), c.grow(&c.logits, n*c.vocabPitch()*4), c.grow(&c.parts, n*bestParts*8))
		if err != nil {
			return err
		}
		d, s, m := c.dev, c.stream.handle, w.Out.(*matrix)
		return errors.Join(
			d.drv.call("cuMemsetD8Async", d.drv.setAsync, c.last.b.ptr, 0, uintptr(n*c.inPitch()*2), s), // what pads a row must be zero
			launch(d, s, "rms_norm", c.draws, 1, 256, &normArgs{out: c.last.b.ptr, ldo: c.inPitch(), x: c.hidden.ptr, ldx: c.hiddenPitch(),
				w: w.Norm.(*vector).b.ptr, rows: c.plan.drawRows(), n: int32(c.cfg.HiddenSize), eps: c.cfg.RMSNormEps}),
			c.multiply("store", product{a: c.last.b.ptr, lda: c.inPitch(), w: m, c: c.logits.b.ptr, ldc: c.vocabPitch(), m: c.draws}),
			launch(d, s, "best_part", bestParts, c.draws, 256, &bestArgs{c.parts.b.ptr, c.logits.b.ptr, c.vocabPitch(), int32(c.cfg.VocabSize)}),
			launch(d, s, "argmax", c.draws, 1, 32, &argmaxArgs{now.chosen.ptr, now.answer.ptr, c.parts.b.ptr, bestParts}),
			now.fetch(c))
	})
}

// grow makes scratch memory that passes share large enough. One that is under way may use what there was.
func (c *compute) grow(s *scratch, n int64) error {
	if s.b != nil && s.b.size >= n {
		return nil
	}
	if err := c.dev.drv.call("cuStreamSynchronize", c.dev.drv.streamSync, c.stream.handle); err != nil {
		return err
	}
	return s.need(n)
}

// End implements device.Compute.
func (c *compute) End() device.Pass {
	now := &c.slots[c.turn]
	now.end(c)
	c.turn = 1 - c.turn
	return now
}

func (c *compute) readLogits(i int) error {
	if c.logits.b == nil {
		return errors.New("cuda: a draw without a head")
	}
	if len(c.rows) != c.cfg.VocabSize {
		c.rows = make([]float32, c.cfg.VocabSize)
	}
	return c.read(c.rows, c.logits.b.ptr+uintptr(int64(i)*c.vocabPitch()*4))
}

// Logits implements device.LogitReader; nil where they cannot be read.
func (c *compute) Logits(i int) []float32 {
	if err := c.readLogits(i); err != nil {
		return nil
	}
	return append([]float32(nil), c.rows...)
}

// SetHidden implements device.HiddenAccess.
func (c *compute) SetHidden(rows [][]float32) {
	pitch := int(c.hiddenPitch())
	all := make([]float32, len(rows)*pitch)
	for r := range rows {
		copy(all[r*pitch:], rows[r])
	}
	if err := c.write(c.hidden, all); err != nil && c.err == nil {
		c.err = err
	}
}

// Hidden implements device.HiddenAccess; nil where it cannot be read.
func (c *compute) Hidden() [][]float32 {
	c.settle()
	pitch := int(c.hiddenPitch())
	all := make([]float32, c.count*pitch)
	if err := c.read(all, c.hidden.ptr); err != nil {
		return nil
	}
	out := make([][]float32, c.count)
	for r := range out {
		out[r] = all[r*pitch:][:c.cfg.HiddenSize:c.cfg.HiddenSize]
	}
	return out
}
