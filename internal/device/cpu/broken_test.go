package cpu

import (
	"math/rand/v2"
	"testing"

	"larder/internal/device"
	"larder/internal/device/devicetest"
	"larder/internal/kv"
)

// broken is a device with one fault.
type broken struct {
	device.Device
	wrap func(device.Compute) device.Compute
}

func (b broken) NewCompute(s device.ComputeSpec) (device.Compute, error) {
	c, err := b.Device.NewCompute(s)
	if err != nil {
		return nil, err
	}
	return b.wrap(c), nil
}

// proxy is a Compute with all of its powers, some of which a fault replaces.
type proxy struct {
	*compute
	batch *device.Batch
}

func (p *proxy) Begin(b *device.Batch) error {
	p.batch = b
	return p.compute.Begin(b)
}

type (
	lateContext struct{ proxy } // attention sees one token of context too few
	roundedRow  struct{ proxy } // the MLP's last element is a little off
	company     struct{ proxy } // a row depends on how many are computed with it, in the last bit
	stray       struct{ proxy } // attention writes behind its tokens
	careless    struct{ proxy } // Begin does not look at ids
	wrongToken  struct{ proxy }
	forgetful   struct{ proxy } // takes drawn tokens from the wrong pass
	tableRow    struct{ proxy }
)

func (p *lateContext) Attention(l int, w *device.AttentionWeights) {
	b := *p.batch
	b.Seqs = append([]device.Seq(nil), b.Seqs...)
	for i := range b.Seqs {
		b.Seqs[i].Context = max(b.Seqs[i].Context-1, 0)
	}
	for i := range p.rows {
		p.rows[i].pos = max(p.rows[i].pos-1, 0)
	}
	p.compute.batch = &b
	p.compute.Attention(l, w)
	p.compute.batch = p.batch
}

func (p *roundedRow) MLP(w *device.MLPWeights) {
	p.compute.MLP(w)
	for r := range p.rows {
		p.x(r)[p.cfg.HiddenSize-1] += 0.5
	}
}

func (p *company) MLP(w *device.MLPWeights) {
	p.compute.MLP(w)
	if len(p.rows) > 20 {
		p.x(0)[0] *= 1 + 0x1p-23
	}
}

func (p *stray) Attention(l int, w *device.AttentionWeights) {
	p.compute.Attention(l, w)
	used := map[kv.BlockID]bool{}
	for _, s := range p.batch.Seqs {
		for _, id := range s.Blocks {
			used[id] = true
		}
	}
	size := p.spec.Layout.BlockBytes()
	for id := range int64(len(p.pool)) / size {
		if !used[kv.BlockID(id)] {
			p.pool[id*size] = 0
		}
	}
}

func (p *careless) Begin(b *device.Batch) error {
	same := *b
	same.IDs = make([]int32, len(b.IDs))
	return p.compute.Begin(&same)
}

func (p *wrongToken) End() device.Pass {
	end := p.compute.End().(*pass)
	for i := range end.tokens {
		end.tokens[i]++
	}
	return end
}

func (p *forgetful) Begin(b *device.Batch) error {
	p.compute.last = p.compute.other // of the pass before that
	p.compute.last.tokens = p.compute.last.tokens[:cap(p.compute.last.tokens)]
	return p.compute.Begin(b)
}

func (p *tableRow) Embed(m device.Matrix) {
	p.compute.Embed(m)
	if n := len(p.rows); n > 0 {
		p.x(n - 1)[0] += 1
	}
}

// TestSuiteCatches breaks one thing at a time and expects the case that is there for it to say so.
func TestSuiteCatches(t *testing.T) {
	seed := devicetest.Seed()
	t.Logf("seed %d", seed)
	cases := map[string]func(testing.TB, devicetest.Open, *rand.Rand) error{}
	for _, c := range devicetest.Cases() {
		cases[c.Name] = c.Check
	}
	for _, f := range []struct {
		by   string
		wrap func(p proxy) device.Compute
	}{
		{"attention", func(p proxy) device.Compute { return &lateContext{p} }},
		{"attention", func(p proxy) device.Compute { return &stray{p} }},
		{"mlp", func(p proxy) device.Compute { return &roundedRow{p} }},
		{"same-bits", func(p proxy) device.Compute { return &company{p} }},
		{"refused/batches", func(p proxy) device.Compute { return &careless{p} }},
		{"head", func(p proxy) device.Compute { return &wrongToken{p} }},
		{"drawn", func(p proxy) device.Compute { return &forgetful{p} }},
		{"embed", func(p proxy) device.Compute { return &tableRow{p} }},
	} {
		open := func(wrap func(device.Compute) device.Compute) devicetest.Open {
			return func(t testing.TB) device.Device {
				d, err := New(Config{Threads: 2})
				if err != nil {
					t.Fatal(err)
				}
				return broken{d, wrap}
			}
		}
		fault := f.wrap(proxy{})
		if err := cases[f.by](t, open(func(c device.Compute) device.Compute { return f.wrap(proxy{compute: c.(*compute)}) }), devicetest.Rand(seed, f.by)); err == nil {
			t.Errorf("%s does not see %T", f.by, fault)
		} else {
			t.Logf("%T: %v", fault, err)
		}
	}
}
