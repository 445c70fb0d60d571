package model

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/model/modeltest"
)

// A checkpoint in shards is the same model as in one file, bit for bit, and so is one that is rewritten in float32.
func TestShardsAndTypesAreTheSameModel(t *testing.T) {
	for _, cfg := range []*arch.Config{modeltest.MoE(), modeltest.Dense()} {
		single, sharded, wide := t.TempDir(), t.TempDir(), t.TempDir()
		if err := modeltest.WriteTiny(single, cfg, 5); err != nil {
			t.Fatal(err)
		}
		if err := modeltest.WriteSharded(sharded, cfg, 5, 4); err != nil {
			t.Fatal(err)
		}
		if err := modeltest.WriteWide(wide, cfg, 5); err != nil {
			t.Fatal(err)
		}
		want := logitsOf(t, single)
		for _, dir := range []string{sharded, wide} {
			if got := logitsOf(t, dir); !slices.Equal(got, want) {
				t.Errorf("%s: %s differs by up to %g standard deviations", cfg.Name, dir, logitError(got, want))
			}
		}
	}
}

// logitsOf loads the checkpoint in dir as a user does and gives the logits after a prompt in two chunks.
func logitsOf(t *testing.T, dir string) []float32 {
	t.Helper()
	cfg, err := arch.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	src, err := OpenCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, cfg, src, cpuBF16())
	if err := src.Close(); err != nil { // what a device needs it has copied
		t.Fatal(err)
	}
	prompt := randomPrompt(rand.New(rand.NewPCG(3, 3)), cfg.VocabSize, 40)
	r.feed(t, prompt[:23])
	r.feed(t, prompt[23:])
	return slices.Clone(r.model.Logits(0))
}

func randomPrompt(rng *rand.Rand, vocab, n int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32(rng.IntN(vocab))
	}
	return p
}

// Dummy text differs between prompts, is neither constant nor an echo, and depends on every token of the prompt.
func TestDummyText(t *testing.T) {
	cfg, _ := arch.Builtin("tiny")
	r := newRig(t, cfg, Dummy(cfg, 1), cpuBF16())
	rng := rand.New(rand.NewPCG(7, 7))
	const prompts, length, steps = 64, 12, 6
	firsts, echoes, repeats := map[int32]bool{}, 0, 0
	for range prompts {
		r.reset()
		prompt := randomPrompt(rng, cfg.VocabSize, length)
		last, token := prompt[length-1], r.feed(t, prompt)
		firsts[token] = true
		seen := map[int32]bool{}
		for range steps {
			if token == last {
				echoes++
			}
			if seen[token] {
				repeats++
			}
			seen[token] = true
			last, token = token, r.feed(t, []int32{token})
		}
	}
	t.Logf("%d distinct first tokens of %d, %d echoes and %d repeats in %d tokens", len(firsts), prompts, echoes, repeats, prompts*steps)
	if len(firsts) < prompts*3/4 {
		t.Errorf("%d prompts have only %d distinct first tokens", prompts, len(firsts))
	}
	if echoes > prompts*steps/10 || repeats > prompts*steps/10 {
		t.Errorf("of %d tokens %d echo the one before and %d come twice", prompts*steps, echoes, repeats)
	}
}

// A long prompt's logits depend on its first token: attention does not average a prefix away, so a wrong block of KV
// is seen.
func TestDummyAttentionReachesFarBack(t *testing.T) {
	cfg := modeltest.MoE()
	r := newRig(t, cfg, Dummy(cfg, 1), cpuBF16())
	prompt := randomPrompt(rand.New(rand.NewPCG(9, 9)), cfg.VocabSize, 200)
	r.feed(t, prompt)
	want := slices.Clone(r.model.Logits(0))
	moved := 0
	const trials = 8
	for i := range trials {
		r.reset()
		other := slices.Clone(prompt)
		for j := range rigBlock { // one block of KV is another's
			other[i*rigBlock+j] = int32((int(other[i*rigBlock+j]) + 77) % cfg.VocabSize)
		}
		r.feed(t, other)
		if logitError(r.model.Logits(0), want) > 0.5 {
			moved++
		}
	}
	if moved < trials/2 {
		t.Errorf("only %d of %d changed blocks move the logits by half a standard deviation", moved, trials)
	}
}

// The hidden state keeps its size at any depth, and logits their spread.
func TestDummyStaysInRange(t *testing.T) {
	for _, depth := range []int{1, 4, 24} {
		for _, cfg := range []*arch.Config{modeltest.MoE(), modeltest.Dense()} {
			cfg.NumLayers, cfg.MLPOnlyLayers = depth, nil
			r := newRig(t, cfg, Dummy(cfg, 2), cpuBF16())
			r.feed(t, randomPrompt(rand.New(rand.NewPCG(4, 4)), cfg.VocabSize, 24))
			if s := deviation(r.model.Logits(0)); !(s > 0.5 && s < 6) {
				t.Errorf("%s, %d layers: logits spread by %g", cfg.Name, depth, s)
			}
			rows := r.model.compute.(device.HiddenAccess).Hidden()
			for i, row := range rows {
				squares := 0.0
				for _, v := range row {
					squares += float64(v) * float64(v)
				}
				if rms := math.Sqrt(squares / float64(len(row))); !(rms > 0.2 && rms < 5) {
					t.Errorf("%s, %d layers: row %d has an rms of %g", cfg.Name, depth, i, rms)
				}
			}
			if len(rows) != 24 {
				t.Errorf("%d hidden rows", len(rows))
			}
		}
	}
}
