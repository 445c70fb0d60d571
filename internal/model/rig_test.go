package model

import (
	"math"
	"math/rand/v2"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/sample"
)

// rig runs one sequence through a model on the CPU device.
type rig struct {
	model   *Model
	blocks  []kv.BlockID
	context int
	vocab   int
	bound   float64 // of logitError
}

const (
	rigBlock  = 16
	rigTokens = 2048
)

// newRig loads a model.
func newRig(t testing.TB, cfg *arch.Config, src Source, p precision) *rig {
	t.Helper()
	dev := p.open(t)
	w, err := Load(t.Context(), dev, cfg, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	layout := kv.LayoutOf(cfg, rigBlock, p.kv)
	const blocks = rigTokens / rigBlock
	pool, err := dev.Alloc(blocks * layout.BlockBytes())
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(dev, w, device.ComputeSpec{Layout: layout, KV: pool, MaxTokens: 256, MaxSeqs: 4})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		dev.Close()
	})
	r := &rig{model: m, vocab: cfg.VocabSize, bound: p.relative}
	for _, b := range rand.New(rand.NewPCG(1, 1)).Perm(blocks) { // a page table that is not the identity
		r.blocks = append(r.blocks, kv.BlockID(b))
	}
	return r
}

// reset starts a new sequence.
func (r *rig) reset() { r.context = 0 }

// feed runs tokens and returns the greedy next one; its logits are r.model.Logits(0).
func (r *rig) feed(t testing.TB, tokens []int32) int32 {
	t.Helper()
	end := r.context + len(tokens)
	got, err := r.model.Forward(&device.Batch{IDs: tokens, Seqs: []device.Seq{{
		Blocks: r.blocks[:(end+rigBlock-1)/rigBlock], Context: r.context, Tokens: len(tokens),
		Draw: &sample.Draw{Params: sample.Params{TopP: 1}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] < 0 || int(got[0]) >= r.vocab {
		t.Fatalf("tokens %v of a vocabulary of %d", got, r.vocab)
	}
	r.context = end
	return got[0]
}

// check feeds tokens and compares logits and the greedy token with the reference's. Where the reference's best two
// logits are closer than both may be off, the token is free.
func (r *rig) check(t *testing.T, tokens []int32, want []float32, what string) float64 {
	t.Helper()
	token := r.feed(t, tokens)
	err := logitError(r.model.Logits(0), want)
	if !(err <= r.bound) {
		t.Errorf("%s, %d tokens of context: logits are off by %.3g of their standard deviation, %.3g allowed", what, r.context, err, r.bound)
	}
	best := argmax(want)
	if gap := float64(want[best]-want[token]) / deviation(want); token != best && gap > 2*r.bound {
		t.Errorf("%s, %d tokens of context: token %d, want %d, which is %.3g standard deviations above", what, r.context, token, best, gap)
	}
	return err
}

func deviation(x []float32) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	n := float64(len(x))
	return math.Sqrt(squares/n - sum*sum/(n*n))
}
