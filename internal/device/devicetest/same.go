package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/sample"
)

// text is a token sequence and what passes made of it: a hidden row each, and the logits behind the last.
type text struct {
	ids    []int32
	rows   [][]float32
	logits []float32
	blocks []kv.BlockID
}

// checkSameBits computes the same texts one by one in one piece, and then in random pieces and company, in blocks of
// other sizes and numbers. Every hidden row and every logit must be the same, bit for bit.
func checkSameBits(t testing.TB, open Open, rng *rand.Rand) error {
	for _, c := range configs(rng) {
		m := newModel(rng, c)
		ids := make([][]int32, 5)
		for j, n := range []int{1, 63 + rng.IntN(3), 130 + rng.IntN(90), 1 + rng.IntN(40), 100} {
			for range n {
				ids[j] = append(ids[j], int32(rng.IntN(c.VocabSize)))
			}
		}
		want, err := alone(t, open, rng, m, ids)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		sizes := []int{1, 16, 32, 64, 128, 256}
		for _, n := range rng.Perm(len(sizes))[:2] {
			bt := sizes[n]
			if err := again(t, open, rng, m, want, bt); err != nil {
				return fmt.Errorf("%s, blocks of %d: %w", c.Name, bt, err)
			}
		}
	}
	return nil
}

// alone computes each text by itself in one pass.
func alone(t testing.TB, open Open, rng *rand.Rand, m *model, ids [][]int32) ([]text, error) {
	longest := 0
	for _, list := range ids {
		longest = max(longest, len(list))
	}
	r, err := newRig(t, open, rng, m, 64, len(ids)+longest/64+1, longest, 1)
	var texts []text
	for _, list := range ids {
		if err != nil {
			break
		}
		b := r.batch([]span{{0, len(list)}})
		b.IDs = list
		texts = append(texts, text{ids: list})
		err = r.collect(b, []*text{&texts[len(texts)-1]})
	}
	return texts, r.close(err)
}

// collect runs a pass, every sequence's part of a text, and appends what came of it.
func (r *rig) collect(b *device.Batch, of []*text) error {
	for i := range b.Seqs {
		if s := &b.Seqs[i]; s.Context+s.Tokens == len(of[i].ids) {
			s.Draw = &sample.Draw{}
		}
	}
	if err := r.comp.Begin(b); err != nil {
		return err
	}
	r.comp.Embed(r.w.embed)
	r.layersAndHead()
	if _, err := r.comp.End().Wait(); err != nil {
		return err
	}
	rows, draws := r.hidden.Hidden(), 0
	for i := range b.Seqs {
		n := b.Seqs[i].Tokens
		of[i].rows = append(of[i].rows, rows[:n]...)
		rows = rows[n:]
		if b.Seqs[i].Draw != nil {
			of[i].logits = slices.Clone(r.logits.Logits(draws))
			draws++
		}
	}
	return nil
}

// again computes the texts in random pieces and compares.
func again(t testing.TB, open Open, rng *rand.Rand, m *model, want []text, blockTokens int) error {
	spans := make([]span, len(want))
	for i := range want {
		spans[i].tokens = len(want[i].ids)
	}
	r, err := newRig(t, open, rng, m, blockTokens, blocksFor(spans, blockTokens)+5, 120, len(want))
	if err == nil {
		err = r.pieces(want, r.batch(spans))
	}
	return r.close(err)
}

// pieces runs passes over random parts of random texts until all are done; whole has the blocks of each.
func (r *rig) pieces(want []text, whole *device.Batch) error {
	got := make([]text, len(want))
	for i := range want {
		got[i].ids, got[i].blocks = want[i].ids, whole.Seqs[i].Blocks
	}
	for {
		b, of := r.somePieces(got)
		if b == nil {
			break
		}
		if err := r.collect(b, of); err != nil {
			return err
		}
	}
	for i := range want {
		for token, row := range want[i].rows {
			if j := differ(got[i].rows[token], row); j >= 0 {
				return fmt.Errorf("text %d of %d tokens: token %d, element %d is %v, and alone %v", i, len(want[i].ids), token, j, got[i].rows[token][j], row[j])
			}
		}
		if j := differ(got[i].logits, want[i].logits); j >= 0 {
			return fmt.Errorf("text %d of %d tokens: logit %d is %v, and alone %v", i, len(want[i].ids), j, got[i].logits[j], want[i].logits[j])
		}
	}
	return nil
}

// somePieces is a pass over random parts of some texts in random order; nil when all are done.
func (r *rig) somePieces(texts []text) (*device.Batch, []*text) {
	b := &device.Batch{}
	var of []*text
	room, open := r.spec.MaxTokens, false
	for _, i := range r.rng.Perm(len(texts)) {
		x := &texts[i]
		done := len(x.rows)
		if done == len(x.ids) {
			continue
		}
		open = true
		n := min(1+r.rng.IntN(len(x.ids)), len(x.ids)-done, room)
		if n == 0 || r.rng.IntN(4) == 0 {
			continue
		}
		room -= n
		b.Seqs = append(b.Seqs, device.Seq{Blocks: x.blocks, Context: done, Tokens: n})
		b.IDs = append(b.IDs, x.ids[done:done+n]...)
		of = append(of, x)
	}
	if !open {
		return nil, nil
	}
	return b, of
}

// differ is the first place where two rows are not the same bits, or -1.
func differ(a, b []float32) int {
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}
