package devicetest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/sample"
)

// drawnPasses is how many passes each run of checkDrawn takes.
const drawnPasses = 6

// checkDrawn decodes twice: pass by pass with known tokens, and with each pass begun before the one before it was waited
// for, its tokens named by their draws. Both must draw the same, from the same logits at the end.
func checkDrawn(t testing.TB, open Open, rng *rand.Rand) error {
	for _, c := range configs(rng) {
		r, err := newRig(t, open, rng, newModel(rng, c), 16, 12, 64, 4)
		if err == nil {
			err = r.drawn()
		}
		if err := r.close(err); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

func (r *rig) drawn() error {
	first := r.batch([]span{{0, 20}, {0, 7}, {0, 1}})
	r.reach(first, drawnPasses)
	draws := make([][]*sample.Draw, drawnPasses) // greedy and not, the same for both
	for n := range draws {
		for range first.Seqs {
			draws[n] = append(draws[n], r.draw(n))
		}
	}
	want, logits, err := r.decode(first, draws, false)
	if err != nil {
		return err
	}
	got, again, err := r.decode(first, draws, true)
	if err != nil {
		return err
	}
	for n := range want {
		if !slices.Equal(got[n], want[n]) {
			return fmt.Errorf("pass %d draws %v behind tokens that the pass before drew, and %v behind known ones", n, got[n], want[n])
		}
	}
	for i := range logits {
		if j := differ(again[i], logits[i]); j >= 0 {
			return fmt.Errorf("draw %d: logit %d is %v, and %v behind known tokens", i, j, again[i][j], logits[i][j])
		}
	}
	return nil
}

// reach gives the sequences blocks for so many more tokens.
func (r *rig) reach(b *device.Batch, more int) {
	for i := range b.Seqs {
		s := &b.Seqs[i]
		for id := kv.BlockID(0); len(s.Blocks) < r.layout.Blocks(s.Tokens+more); id++ {
			if !holds(b.Seqs, id) {
				s.Blocks = append(s.Blocks, id)
			}
		}
	}
}

// decode runs the first batch and then passes of one token for each sequence, and returns what each drew and the logits
// of the last. With ahead set, a pass is waited for only when the next is queued.
func (r *rig) decode(first *device.Batch, draws [][]*sample.Draw, ahead bool) (tokens [][]int32, logits [][]float32, err error) {
	var before device.Pass
	land := func() error {
		got, err := before.Wait()
		tokens = append(tokens, slices.Clone(got))
		return err
	}
	for n := range drawnPasses {
		var known []int32
		if n > 0 && !ahead {
			known = tokens[n-1]
		}
		if err := r.comp.Begin(nthPass(first, draws[n], n, known)); err != nil {
			return nil, nil, err
		}
		r.comp.Embed(r.w.embed)
		r.layersAndHead()
		pass := r.comp.End()
		if ahead && n > 0 {
			if err := land(); err != nil {
				return nil, nil, err
			}
		}
		if before = pass; !ahead {
			if err := land(); err != nil {
				return nil, nil, err
			}
		}
	}
	if ahead {
		err = land()
	}
	for i := range first.Seqs {
		logits = append(logits, slices.Clone(r.logits.Logits(i)))
	}
	return tokens, logits, err
}

// orderOf is the order of the three sequences in a pass: another one than in the pass before.
func orderOf(n int) []int { return [][]int{{0, 1, 2}, {2, 0, 1}, {1, 0, 2}}[n%3] }

// nthPass is the batch of pass n. Tokens that are not known are named by their draws.
func nthPass(first *device.Batch, draws []*sample.Draw, n int, known []int32) *device.Batch {
	b := &device.Batch{}
	if n == 0 {
		b.IDs = first.IDs
	}
	for _, i := range orderOf(n) {
		s := first.Seqs[i]
		s.Draw = draws[i]
		if n > 0 {
			s.Context, s.Tokens = s.Tokens+n-1, 1
			id := slices.Index(orderOf(n-1), i)
			if known == nil {
				b.IDs = append(b.IDs, device.Drawn(id))
			} else {
				b.IDs = append(b.IDs, known[id])
			}
		}
		b.Seqs = append(b.Seqs, s)
	}
	return b
}
