package devicetest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/sample"
)

// shapes are batches by what they reach: edges of a block, edges of 64 keys (how many a device takes at a time), long
// and short sequences together, none.
func shapes(blockTokens int) [][]span {
	bt := blockTokens
	return [][]span{
		{},
		{{0, 1}},
		{{0, bt - 1}, {0, bt}, {0, bt + 1}, {bt - 1, 1}, {bt, 1}, {bt + 1, 1}, {bt - 1, 2}},
		{{0, 63}, {0, 64}, {0, 65}, {63, 1}, {64, 1}, {62, 1}, {127, 1}, {128, 66}},
		{{70, 1}, {0, 130}, {5, 32}, {0, 1}, {131, 33}, {1, 31}, {200, 3}},
	}
}

// checkAttention runs one layer's attention over random context and compares the rows, the K and V that it wrote, and
// every other byte of the pool.
func checkAttention(t testing.TB, open Open, rng *rand.Rand) error {
	for _, c := range configs(rng) {
		m := newModel(rng, c)
		bt := []int{16, 32, 64, 128}[rng.IntN(4)]
		for _, spans := range shapes(bt) {
			r, err := newRig(t, open, rng, m, bt, blocksFor(spans, bt)+3, rowsOf(spans)+1, len(spans)+1)
			if err == nil {
				err = r.attention(rng.IntN(c.NumLayers), spans)
			}
			if err := r.close(err); err != nil {
				return fmt.Errorf("%s, blocks of %d, sequences (context, tokens) %v: %w", c.Name, bt, spans, err)
			}
		}
	}
	return nil
}

func (r *rig) attention(l int, spans []span) error {
	b := r.batch(spans)
	r.fillNaN()
	past := make([]*history, len(spans))
	for i := range b.Seqs {
		past[i] = r.randomPast(&b.Seqs[i], l)
	}
	before := slices.Clone(r.host.Bytes())
	r.push()
	b.After = []device.Event{r.stream.Record()}
	rows, exact := randomRows(r.rng, len(b.IDs), r.m.cfg.HiddenSize)
	if err := r.comp.Begin(b); err != nil {
		return err
	}
	r.hidden.SetHidden(rows)
	r.comp.Attention(l, r.w.attention[l])
	if _, err := r.comp.End().Wait(); err != nil {
		return err
	}
	got := r.hidden.Hidden()
	if len(got) != len(rows) {
		return fmt.Errorf("%d hidden rows, want %d", len(got), len(rows))
	}
	first := 0
	for i, s := range b.Seqs {
		want := r.m.attention(r.m.layers[l], exact[first:first+s.Tokens], past[i])
		for j, w := range want {
			bound := tolerance(r.layout.DType, r.longest(s.Context+s.Tokens))
			if err := compareAdded(got[first+j], exact[first+j], w, bound, 0); err != nil {
				return fmt.Errorf("sequence %d, token %d: %w", i, s.Context+j, err)
			}
		}
		first += s.Tokens
	}
	return r.comparePool(b, l, past, before)
}

// longest is the longest sum behind one value of attention over so many keys.
func (r *rig) longest(keys int) int {
	c := r.m.cfg
	return max(keys, c.HiddenSize, c.NumHeads*c.HeadDim)
}

// randomPast writes a sequence's context of one layer into the pool's copy.
func (r *rig) randomPast(s *device.Seq, layer int) *history {
	h := &history{}
	row := func() []float64 {
		v := make([]float64, r.layout.KVHeads*r.layout.HeadDim)
		for i := range v {
			v[i] = roundTo(r.rng.NormFloat64(), 8)
		}
		return v
	}
	for token := range s.Context {
		k, v := row(), row()
		r.put(s, layer, false, token, k)
		r.put(s, layer, true, token, v)
		h.k, h.v = append(h.k, k), append(h.v, v)
	}
	return h
}

// comparePool checks what a pass wrote to the pool: K and V of the new rows, and nothing else.
func (r *rig) comparePool(b *device.Batch, layer int, h []*history, before []byte) error {
	r.pull()
	if err := r.stream.Record().Wait(); err != nil {
		return err
	}
	bound := tolerance(r.layout.DType, r.m.cfg.HiddenSize)
	for i := range b.Seqs {
		s := &b.Seqs[i]
		for token := s.Context; token < s.Context+s.Tokens; token++ {
			for value, want := range map[bool][]float64{false: h[i].k[token], true: h[i].v[token]} {
				if d := distance(r.get(s, layer, value, token), want); !(d <= bound) {
					return fmt.Errorf("sequence %d, token %d: what was written (V: %v) is off by %.3g, %.3g allowed", i, token, value, d, bound)
				}
				for head := range r.layout.KVHeads {
					slot := r.slot(s, layer, value, head, token)
					for j := range slot {
						slot[j] = 0xff // as it was before
					}
				}
			}
		}
	}
	if !bytes.Equal(r.host.Bytes(), before) {
		return fmt.Errorf("the pass wrote to the pool outside its own tokens and layer")
	}
	return nil
}

// checkEmbed compares rows of the table, which are exact.
func checkEmbed(t testing.TB, open Open, rng *rand.Rand) error {
	for _, c := range configs(rng) {
		r, err := newRig(t, open, rng, newModel(rng, c), 16, 100, 1200, 4)
		for _, spans := range [][]span{{}, {{0, 1}}, {{0, 100}, {7, 3}, {0, 600}, {103, 497}}} {
			if err == nil {
				err = r.embed(spans)
			}
		}
		if err := r.close(err); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

func (r *rig) embed(spans []span) error {
	b := r.batch(spans)
	if err := r.comp.Begin(b); err != nil {
		return err
	}
	r.comp.Embed(r.w.embed)
	if _, err := r.comp.End().Wait(); err != nil {
		return err
	}
	h := r.m.cfg.HiddenSize
	for i, row := range r.hidden.Hidden() {
		for j, v := range row {
			if want := r.m.embed.values[int(b.IDs[i])*h+j]; float64(v) != want {
				return fmt.Errorf("row %d, id %d, element %d is %v, want %v", i, b.IDs[i], j, v, want)
			}
		}
	}
	return nil
}

// checkMLP runs the dense and the routed MLP on few and many rows.
func checkMLP(t testing.TB, open Open, rng *rand.Rand) error {
	for i, c := range configs(rng) {
		sizes := []int{0, 1, 2, 13, 97, 300}
		if i == 0 {
			sizes = append(sizes, 2100)
		}
		most := slices.Max(sizes)
		r, err := newRig(t, open, rng, newModel(rng, c), 256, most/256+8, most, 8)
		for _, n := range sizes {
			for l := range c.NumLayers {
				if err == nil {
					err = r.mlp(l, n, false)
				}
			}
		}
		if err := r.close(err); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

// near is how close (as a logarithm) two experts' probabilities may be before fp32 may rank them either way.
const near = 1e-4

// mlp compares n rows. Rows whose last expert is a near tie are left out, unless tied says that ties are what is tested.
func (r *rig) mlp(l, n int, tied bool) error {
	var spans []span
	for at := 0; at < n; at += 500 {
		spans = append(spans, span{0, min(500, n-at)})
	}
	b := r.batch(spans)
	rows, exact := randomRows(r.rng, n, r.m.cfg.HiddenSize)
	if err := r.comp.Begin(b); err != nil {
		return err
	}
	r.hidden.SetHidden(rows)
	r.comp.MLP(r.w.mlp[l])
	if _, err := r.comp.End().Wait(); err != nil {
		return err
	}
	want, margins := make([][]float64, n), make([]float64, n)
	typical := 0.0 // a gate may be shut in all of a row: what little is left is as inexact as what was there
	for i := range want {
		want[i], margins[i] = r.m.mlp(r.m.layers[l], exact[i])
		typical += length(want[i]) / float64(n)
	}
	left := 0
	bound := tolerance(r.layout.DType, max(r.m.cfg.HiddenSize, r.m.cfg.IntermediateSize))
	for i, row := range r.hidden.Hidden() {
		if margins[i] < near && !tied {
			left++
			continue
		}
		if err := compareAdded(row, exact[i], want[i], bound, typical); err != nil {
			return fmt.Errorf("layer %d, row %d of %d: %w", l, i, n, err)
		}
	}
	if left > 2+n/50 {
		return fmt.Errorf("layer %d: %d of %d rows are near ties: the inputs test nothing", l, left, n)
	}
	return nil
}

// checkTies gives experts the same router row: all are equally probable, and the lowest numbers must be taken.
func checkTies(t testing.TB, open Open, rng *rand.Rand) error {
	c := configs(rng)[0].Clone()
	c.Architecture, c.NumExperts, c.NumExpertsPerToken, c.MoEIntermediateSize, c.DecoderSparseStep = arch.Qwen3MoE, 6, 2, 20, 1
	c.MLPOnlyLayers = nil
	m := newModel(rng, c)
	router := m.layers[0].router
	if router.tensor.Data == nil { // made up: write it out to be able to repeat a row
		router = newWeight(rand.New(rand.NewPCG(0, 0)), "router", 0.1, 0, router.tensor.Shape...)
	}
	h := m.cfg.HiddenSize
	width := len(router.tensor.Data) / m.cfg.NumExperts
	for e := 1; e < m.cfg.NumExperts; e++ {
		copy(router.values[e*h:(e+1)*h], router.values[:h])
		copy(router.tensor.Data[e*width:(e+1)*width], router.tensor.Data[:width])
	}
	m.layers[0].router = router
	r, err := newRig(t, open, rng, m, 16, 2, 20, 1)
	if err == nil {
		err = r.mlp(0, 20, true)
	}
	return r.close(err)
}

// checkHead compares logits, and tokens with what package sample picks from them.
func checkHead(t testing.TB, open Open, rng *rand.Rand) error {
	for _, c := range configs(rng) {
		r, err := newRig(t, open, rng, newModel(rng, c), 16, 60, 64, 24)
		for range 3 {
			if err == nil {
				err = r.head()
			}
		}
		if err := r.close(err); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

func (r *rig) head() error {
	var spans []span
	for range r.rng.IntN(25) {
		spans = append(spans, span{r.rng.IntN(20), 1 + r.rng.IntN(2)})
	}
	b := r.batch(spans)
	var last []int // rows that make logits
	row := -1
	for i := range b.Seqs {
		row += b.Seqs[i].Tokens
		if r.rng.IntN(3) > 0 {
			b.Seqs[i].Draw = r.draw(len(last))
			last = append(last, row)
		}
	}
	rows, exact := randomRows(r.rng, len(b.IDs), r.m.cfg.HiddenSize)
	if err := r.comp.Begin(b); err != nil {
		return err
	}
	r.hidden.SetHidden(rows)
	r.comp.Head(r.w.head)
	tokens, err := r.comp.End().Wait()
	if err != nil {
		return err
	}
	if len(tokens) != len(last) {
		return fmt.Errorf("%d tokens for %d draws", len(tokens), len(last))
	}
	n := 0
	for i := range b.Seqs {
		if b.Seqs[i].Draw == nil {
			continue
		}
		if err := r.compareLogits(n, tokens[n], b.Seqs[i].Draw, exact[last[n]]); err != nil {
			return fmt.Errorf("sequence %d of %d: %w", i, len(b.Seqs), err)
		}
		n++
	}
	return nil
}

// draw is greedy or not, with bans now and then.
func (r *rig) draw(position int) *sample.Draw {
	d := &sample.Draw{Params: sample.Params{TopP: 1, Seed: r.rng.Uint64()}, Position: position}
	if r.rng.IntN(2) == 0 {
		d.Temperature, d.TopK = float32(0.5+r.rng.Float64()), r.rng.IntN(20)
	}
	if r.rng.IntN(3) == 0 {
		d.Banned = []int32{0, int32(r.rng.IntN(r.m.cfg.VocabSize))}
	}
	return d
}

func (r *rig) compareLogits(i int, token int32, d *sample.Draw, x []float64) error {
	logits := r.logits.Logits(i)
	if len(logits) != r.m.cfg.VocabSize {
		return fmt.Errorf("%d logits for a vocabulary of %d", len(logits), r.m.cfg.VocabSize)
	}
	got := make([]float64, len(logits))
	for j, v := range logits {
		got[j] = float64(v)
	}
	bound := tolerance(r.layout.DType, r.m.cfg.HiddenSize)
	if e := distance(got, r.m.logits(x)); !(e <= bound) {
		return fmt.Errorf("logits are off by %.3g of their length, %.3g allowed", e, bound)
	}
	if want := sample.Pick(logits, d); token != want {
		return fmt.Errorf("token %d, but %+v of these logits is %d", token, d, want)
	}
	return nil
}

// checkPass runs whole passes of two layers, the second over the first one's context, against the reference.
func checkPass(t testing.TB, open Open, rng *rand.Rand) error {
	for _, c := range configs(rng) {
		if c.NumExperts > 0 {
			c = c.Clone()
			c.NumExpertsPerToken = c.NumExperts // no choice, so that rounding makes no other one
		}
		r, err := newRig(t, open, rng, newModel(rng, c), 32, 12, 90, 2)
		if err == nil {
			err = r.twoPasses()
		}
		if err := r.close(err); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

func (r *rig) twoPasses() error {
	first := r.batch([]span{{0, 70}, {0, 9}})
	second := &device.Batch{Seqs: slices.Clone(first.Seqs)}
	for i, n := range []int{1, 40} {
		s := &second.Seqs[i]
		s.Context, s.Tokens = s.Tokens, n
		s.Blocks = slices.Clone(s.Blocks)
		for id := range kv.BlockID(r.blocks) {
			if len(s.Blocks) < r.layout.Blocks(s.Context+n) && !holds(second.Seqs, id) {
				s.Blocks = append(s.Blocks, id)
			}
		}
		for range n {
			second.IDs = append(second.IDs, int32(r.rng.IntN(r.m.cfg.VocabSize)))
		}
	}
	past := make([][]history, 2) // [sequence][layer]
	for i := range past {
		past[i] = make([]history, len(r.m.layers))
	}
	for n, b := range []*device.Batch{first, second} {
		if err := r.pass(b, past); err != nil {
			return fmt.Errorf("pass %d: %w", n, err)
		}
	}
	return nil
}

// pass compares logits after all layers. Errors of one layer are inputs of the next, so they add up.
func (r *rig) pass(b *device.Batch, past [][]history) error {
	for i := range b.Seqs {
		b.Seqs[i].Draw = &sample.Draw{}
	}
	if err := r.comp.Begin(b); err != nil {
		return err
	}
	r.comp.Embed(r.w.embed)
	r.layersAndHead()
	if _, err := r.comp.End().Wait(); err != nil {
		return err
	}
	ids, h := b.IDs, r.m.cfg.HiddenSize
	for i, s := range b.Seqs {
		var x [][]float64
		for _, id := range ids[:s.Tokens] {
			x = append(x, slices.Clone(r.m.embed.values[int(id)*h:][:h]))
		}
		ids = ids[s.Tokens:]
		for l, w := range r.m.layers {
			for j, add := range r.m.attention(w, x, &past[i][l]) {
				addTo(x[j], add)
			}
			for j := range x {
				add, _ := r.m.mlp(w, x[j])
				addTo(x[j], add)
			}
		}
		var got []float64
		for _, v := range r.logits.Logits(i) {
			got = append(got, float64(v))
		}
		bound := tolerance(r.layout.DType, r.longest(s.Context+s.Tokens)) * math.Sqrt(float64(2*len(r.m.layers)+1))
		if e := distance(got, r.m.logits(x[len(x)-1])); !(e <= bound) {
			return fmt.Errorf("sequence %d: logits are off by %.3g of their length, %.3g allowed", i, e, bound)
		}
	}
	return nil
}

func holds(seqs []device.Seq, id kv.BlockID) bool {
	return slices.ContainsFunc(seqs, func(s device.Seq) bool { return slices.Contains(s.Blocks, id) })
}

func addTo(x, add []float64) {
	for i, v := range add {
		x[i] += v
	}
}
