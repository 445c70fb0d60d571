package model

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
)

// Experts are used evenly: over many prompts each expert of layer 0 gets between half its share of the rows and twice
// as many. (Rows of one prompt attend to the same keys and lean the same way.) The router is worked out here, from the
// hidden state that the device shows.
func TestDummyUsesAllExperts(t *testing.T) {
	cfg, _ := arch.Builtin("tiny")
	src := Dummy(cfg, 1)
	r := newRig(t, cfg, src, cpuBF16())
	router := dummyValues(t, src, "model.layers.0.mlp.gate.weight", cfg.NumExperts, cfg.HiddenSize)
	norm := dummyValues(t, src, "model.layers.0.post_attention_layernorm.weight", cfg.HiddenSize)
	used := make([]int, cfg.NumExperts)
	rng := rand.New(rand.NewPCG(6, 6))
	const prompts, length = 64, 12
	for range prompts {
		for _, row := range r.afterAttention(t, randomPrompt(rng, cfg.VocabSize, length)) {
			for _, e := range route(row, norm, router, cfg.NumExpertsPerToken) {
				used[e]++
			}
		}
	}
	share := prompts * length * cfg.NumExpertsPerToken / cfg.NumExperts
	if slices.Min(used) < share/2 || slices.Max(used) > share*2 {
		t.Errorf("experts' rows: %v, a fair share is %d", used, share)
	}
}

// afterAttention is the hidden state of a prompt between layer 0's two halves.
func (r *rig) afterAttention(t *testing.T, ids []int32) [][]float32 {
	t.Helper()
	c := r.model.compute
	batch := &device.Batch{IDs: ids, Seqs: []device.Seq{{Blocks: r.blocks[:1], Tokens: len(ids)}}}
	if err := c.Begin(batch); err != nil {
		t.Fatal(err)
	}
	c.Embed(r.model.weights.Embed)
	c.Attention(0, &r.model.weights.Layers[0].Attention)
	return c.(device.HiddenAccess).Hidden()
}

func dummyValues(t *testing.T, src Source, name string, shape ...int) []float32 {
	t.Helper()
	x, err := src.Tensor(name, shape)
	if err != nil {
		t.Fatal(err)
	}
	n := 1
	for _, d := range shape {
		n *= d
	}
	bits := make([]uint16, n)
	x.Dummy.Values(bits, 0)
	values := make([]float32, n)
	for i, b := range bits {
		values[i] = device.Float32(b)
	}
	return values
}

// route is the k experts whose router rows fit a normalised row best.
func route(row, norm, router []float32, k int) []int {
	squares := 0.0
	for _, v := range row {
		squares += float64(v) * float64(v)
	}
	scale := 1 / math.Sqrt(squares/float64(len(row))+1e-6)
	scores := make([]float64, len(router)/len(row))
	order := make([]int, len(scores))
	for e := range scores {
		order[e] = e
		for i, v := range row {
			scores[e] += float64(v) * scale * float64(norm[i]) * float64(router[e*len(row)+i])
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		if scores[a] > scores[b] {
			return -1
		}
		return 1
	})
	return order[:k]
}
