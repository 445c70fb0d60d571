package devicetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
)

// checkBadBatches gives Begin what is wrong. It must say so, and a good pass must go on as if nothing had been.
func checkBadBatches(t testing.TB, open Open, rng *rand.Rand) error {
	r, err := newRig(t, open, rng, newModel(rng, configs(rng)[0]), 16, 12, 64, 4)
	if err == nil {
		err = r.badBatches()
	}
	return r.close(err)
}

func (r *rig) badBatches() error {
	good := r.batch([]span{{20, 30}, {0, 7}})
	want, err := r.whole(good)
	if err != nil {
		return err
	}
	r.pull()
	if err := r.stream.Record().Wait(); err != nil {
		return err
	}
	before := slices.Clone(r.host.Bytes())
	for name, spoil := range spoilt(r) {
		b := &device.Batch{IDs: slices.Clone(good.IDs), Seqs: slices.Clone(good.Seqs)}
		for i := range b.Seqs {
			b.Seqs[i].Blocks = slices.Clone(b.Seqs[i].Blocks)
		}
		spoil(b)
		if err := r.comp.Begin(b); err == nil {
			return fmt.Errorf("%s: Begin accepts it", name)
		}
	}
	r.pull()
	if err := r.stream.Record().Wait(); err != nil {
		return err
	}
	if !bytes.Equal(before, r.host.Bytes()) {
		return errors.New("refused batches changed the pool")
	}
	got, err := r.whole(good)
	if err != nil {
		return err
	}
	for i := range want {
		if differ(got[i], want[i]) >= 0 {
			return fmt.Errorf("row %d differs after refused batches", i)
		}
	}
	return nil
}

// whole runs all layers over zeroed context and returns the hidden rows.
func (r *rig) whole(b *device.Batch) ([][]float32, error) {
	clear(r.host.Bytes())
	r.push()
	b.After = []device.Event{r.stream.Record()}
	if err := r.comp.Begin(b); err != nil {
		return nil, err
	}
	r.comp.Embed(r.w.embed)
	r.layersAndHead()
	_, err := r.comp.End().Wait()
	return r.hidden.Hidden(), err
}

func spoilt(r *rig) map[string]func(b *device.Batch) {
	long := func(b *device.Batch, context, tokens int) {
		b.Seqs = []device.Seq{{Context: context, Tokens: tokens, Blocks: make([]kv.BlockID, r.layout.Blocks(context+tokens))}}
		b.IDs = make([]int32, tokens)
	}
	return map[string]func(b *device.Batch){
		"more rows than MaxTokens":  func(b *device.Batch) { long(b, 0, r.spec.MaxTokens+1) },
		"behind the last position":  func(b *device.Batch) { long(b, r.m.cfg.MaxPositions, 1) },
		"more sequences than fit":   func(b *device.Batch) { b.Seqs, b.IDs = slices.Repeat(b.Seqs[1:], 5), make([]int32, 35) },
		"a sequence without rows":   func(b *device.Batch) { b.Seqs[1].Tokens, b.IDs = 0, b.IDs[:30] },
		"negative rows":             func(b *device.Batch) { b.Seqs[1].Tokens, b.IDs = -1, b.IDs[:29] },
		"negative context":          func(b *device.Batch) { b.Seqs[1].Context = -1 },
		"too few blocks":            func(b *device.Batch) { b.Seqs[0].Blocks = b.Seqs[0].Blocks[:3] },
		"a block below the pool":    func(b *device.Batch) { b.Seqs[0].Blocks[1] = -1 },
		"a block behind the pool":   func(b *device.Batch) { b.Seqs[0].Blocks[1] = kv.BlockID(r.blocks) },
		"fewer ids than rows":       func(b *device.Batch) { b.IDs = b.IDs[:36] },
		"more ids than rows":        func(b *device.Batch) { b.IDs = append(b.IDs, 0) },
		"a negative id":             func(b *device.Batch) { b.IDs[7] = -1 },
		"a draw that was not made":  func(b *device.Batch) { b.IDs[7] = device.Drawn(2) },
		"an id behind the words":    func(b *device.Batch) { b.IDs[36] = int32(r.m.cfg.VocabSize) },
		"rows without a sequence":   func(b *device.Batch) { b.Seqs = nil },
		"the load before it failed": func(b *device.Batch) { b.After = []device.Event{failed{}} },
	}
}

// failed is a load that went wrong.
type failed struct{ device.Event }

func (failed) Done() bool  { return true }
func (failed) Wait() error { return errors.New("the load failed") }

// checkBadSpecs asks for passes that cannot be.
func checkBadSpecs(t testing.TB, open Open, rng *rand.Rand) error {
	r, err := newRig(t, open, rng, newModel(rng, configs(rng)[0]), 16, 4, 8, 2)
	if err == nil {
		for name, spoil := range map[string]func(s *device.ComputeSpec){
			"no config":           func(s *device.ComputeSpec) { s.Config = nil },
			"no pool":             func(s *device.ComputeSpec) { s.KV = nil },
			"no rows":             func(s *device.ComputeSpec) { s.MaxTokens = 0 },
			"no sequences":        func(s *device.ComputeSpec) { s.MaxSeqs = 0 },
			"other layers":        func(s *device.ComputeSpec) { s.Layout.Layers++ },
			"other heads":         func(s *device.ComputeSpec) { s.Layout.KVHeads++ },
			"other head dim":      func(s *device.ComputeSpec) { s.Layout.HeadDim *= 2 },
			"blocks of 48":        func(s *device.ComputeSpec) { s.Layout.BlockTokens = 48 },
			"another dtype":       func(s *device.ComputeSpec) { s.Layout.DType = arch.F16 },
			"a foreign pool":      func(s *device.ComputeSpec) { s.KV = foreign{} },
			"a config that lies":  func(s *device.ComputeSpec) { s.Config = s.Config.Clone(); s.Config.NumHeads = 0 },
			"no positions at all": func(s *device.ComputeSpec) { s.Config = s.Config.Clone(); s.Config.MaxPositions = 0 },
		} {
			spec := r.spec
			spoil(&spec)
			if _, bad := r.dev.NewCompute(spec); bad == nil {
				err = errors.Join(err, fmt.Errorf("%s: NewCompute accepts it", name))
			}
		}
	}
	return r.close(err)
}

// foreign is memory of no device.
type foreign struct{}

func (foreign) Size() int64 { return 1 << 20 }
func (foreign) Free() error { return nil }

// checkBadWeights uploads what has the wrong shape.
func checkBadWeights(t testing.TB, open Open, rng *rand.Rand) error {
	dev := open(t)
	w := func(shape ...int) device.Tensor { return newWeight(rng, "w", 1, 0, shape...).tensor }
	short := newWeight(rng, "short", 1, 0, 4, 6).tensor
	short.Data, short.DType = make([]byte, 47), arch.BF16
	list := func(n int, shape ...int) (out []device.Tensor) {
		for range n {
			out = append(out, w(shape...))
		}
		return out
	}
	var errs []error
	refused := func(name string, err error) {
		if err == nil {
			errs = append(errs, fmt.Errorf("%s: accepted", name))
		}
	}
	matrix := func(name string, parts ...device.Tensor) {
		_, err := dev.Matrix(parts...)
		refused(name, err)
	}
	experts := func(name string, gate, up, down []device.Tensor) {
		_, err := dev.Experts(gate, up, down)
		refused(name, err)
	}
	matrix("a matrix of nothing")
	matrix("a vector as a matrix", w(8))
	matrix("parts of other widths", w(4, 6), w(4, 7))
	matrix("a side of 0", device.Tensor{Name: "w", Shape: []int{0, 4}, DType: arch.BF16})
	matrix("too few bytes", short)
	matrix("bytes of no type", device.Tensor{Name: "w", Shape: []int{1, 2}, Data: make([]byte, 4)})
	_, err := dev.Vector(w(4, 6))
	refused("a matrix as a vector", err)
	_, err = dev.Vector(device.Tensor{Name: "w", Shape: []int{4}, DType: arch.F32, Data: make([]byte, 15)})
	refused("a short vector", err)
	experts("no experts", nil, nil, nil)
	experts("one up too few", list(2, 8, 6), list(1, 8, 6), list(2, 6, 8))
	experts("an odd up", list(2, 8, 6), append(list(1, 8, 6), w(9, 6)), list(2, 6, 8))
	experts("a down the wrong way", list(2, 8, 6), list(2, 8, 6), list(2, 8, 6))
	for _, shape := range [][]int{{1, 1}, {37, 33}} {
		m, err := dev.Matrix(w(shape...))
		if err != nil {
			errs = append(errs, err)
		} else if n, k := m.Shape(); n != shape[0] || k != shape[1] || m.Size() < int64(2*n*k) {
			errs = append(errs, fmt.Errorf("a matrix %v says that it is [%d, %d] of %d bytes", shape, n, k, m.Size()))
		}
	}
	if e, err := dev.Experts(list(2, 8, 6), list(2, 8, 6), list(2, 6, 8)); err != nil {
		errs = append(errs, err)
	} else if n, h, i := e.Shape(); n != 2 || h != 6 || i != 8 {
		errs = append(errs, fmt.Errorf("2 experts of 6 x 8 say that they are %d of %d x %d", n, h, i))
	}
	return errors.Join(append(errs, dev.Close())...)
}

// checkClosed uses a device that is closed.
func checkClosed(t testing.TB, open Open, rng *rand.Rand) error {
	r, err := newRig(t, open, rng, newModel(rng, configs(rng)[0]), 16, 4, 8, 2)
	if err != nil {
		return r.close(err)
	}
	b := r.batch([]span{{0, 3}})
	err = r.close(nil)
	refused := func(what string, bad error) {
		if bad == nil {
			err = errors.Join(err, fmt.Errorf("%s works on a closed device", what))
		}
	}
	v := newWeight(rng, "v", 1, 0, 8).tensor
	w := []device.Tensor{newWeight(rng, "w", 1, 0, 8, 8).tensor}
	_, bad := r.dev.Alloc(1)
	refused("Alloc", bad)
	_, bad = r.dev.AllocHost(1)
	refused("AllocHost", bad)
	_, bad = r.dev.NewStream("late")
	refused("NewStream", bad)
	_, bad = r.dev.Matrix(w...)
	refused("Matrix", bad)
	_, bad = r.dev.Vector(v)
	refused("Vector", bad)
	_, bad = r.dev.Experts(w, w, w)
	refused("Experts", bad)
	_, bad = r.dev.NewCompute(r.spec)
	refused("NewCompute", bad)
	_, bad = r.dev.Ceilings()
	refused("Ceilings", bad)
	refused("Begin", r.comp.Begin(b))
	return errors.Join(err, r.dev.Close())
}
