package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu"
	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/kv/cache"
	"larder/internal/kv/xfer"
	"larder/internal/model"
	"larder/internal/model/modeltest"
	"larder/internal/sample"
	"larder/internal/sched"
)

var _ Mover = (*xfer.Mover)(nil)

// drawn names one token of one request: requests carry their number as seed, which greedy draws ignore.
type drawn struct {
	request  uint64
	position int
}

// logitRecorder remembers a hash of the logits of every draw, but for passes behind which another was launched already:
// theirs are gone.
type logitRecorder struct {
	*model.Model
	queue  []*device.Batch
	logits map[drawn]uint64
}

func (l *logitRecorder) Launch(b *device.Batch) error {
	l.queue = append(l.queue, b)
	return l.Model.Launch(b)
}

func (l *logitRecorder) Wait() ([]int32, error) {
	tokens, err := l.Model.Wait()
	if err != nil {
		return nil, err
	}
	batch := l.queue[0]
	if l.queue = l.queue[1:]; len(l.queue) > 0 {
		return tokens, nil
	}
	i := 0
	for _, s := range batch.Seqs {
		if s.Draw == nil {
			continue
		}
		h := uint64(1)
		for _, v := range l.Logits(i) {
			h = scramble(h*31 + uint64(math.Float32bits(v)))
		}
		l.logits[drawn{s.Draw.Seed, s.Draw.Position}] = h
		i++
	}
	return tokens, nil
}

// machine is a real device with a real model's weights.
type machine struct {
	dev     device.Device
	cfg     *arch.Config
	weights *model.Weights
}

func newMachine(t *testing.T, cfg *arch.Config) *machine {
	dev, err := cpu.New(cpu.Config{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	w, err := model.Load(context.Background(), dev, cfg, model.Dummy(cfg, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return &machine{dev, cfg, w}
}

// result is what a run said.
type result struct {
	tokens    [][]int32
	logits    map[drawn]uint64
	retracted uint64
	hostHits  uint64
	partial   bool // some logits were not seen
}

// play runs all requests at once under s.
func (m *machine) play(t *testing.T, s setup, requests []*infer.Request) result {
	t.Helper()
	layout := kv.LayoutOf(m.cfg, s.blockTokens, arch.BF16)
	pool, err := m.dev.Alloc(layout.BlockBytes() * int64(s.deviceBlocks))
	host, err2 := m.dev.AllocHost(layout.BlockBytes() * int64(max(s.hostBlocks, 1)))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	mover, err := xfer.New(xfer.Config{Layout: layout, Memory: m.dev, DevicePool: pool, HostPool: host})
	if err != nil {
		t.Fatal(err)
	}
	runner, err := model.New(m.dev, m.weights, device.ComputeSpec{Layout: layout, KV: pool, MaxTokens: s.stepTokens, MaxSeqs: s.running})
	if err != nil {
		t.Fatal(err)
	}
	recorder := &logitRecorder{Model: runner, logits: map[drawn]uint64{}}
	cfg, _, _, _ := s.config(1)
	cfg.Runner, cfg.Mover, cfg.Vocab, cfg.EOS, cfg.Listener = recorder, mover, m.cfg.VocabSize, m.cfg.EOSTokenIDs, Listener{}
	cfg.Cache.Layout = layout
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	r := result{tokens: make([][]int32, len(requests)), logits: recorder.logits, partial: s.overlap}
	var wg sync.WaitGroup
	for i, q := range requests {
		wg.Go(func() {
			if _, err := e.Generate(context.Background(), q, func(ev infer.Event) error {
				r.tokens[i] = append(r.tokens[i], ev.Tokens...)
				return nil
			}); err != nil {
				t.Errorf("setup {%v}: request %d: %v", s, i, err)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(e.Close(context.Background()), mover.Close(), runner.Close(), pool.Free(), host.Free()); err != nil {
		t.Error(err)
	}
	r.retracted, r.hostHits = e.sched.Retracted(), e.stats.Tiers[kv.Host].HitTokens
	return r
}

// TestRealModel is invariant 6 on the CPU device: the same greedy tokens and bit-equal logits for any block size,
// chunk, company, tier, write policy and number of retractions.
func TestRealModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var retracted, hostHits uint64
	for _, cfg := range []*arch.Config{modeltest.MoE(), modeltest.Dense()} {
		m := newMachine(t, cfg)
		r := rand.New(rand.NewPCG(seed, 2))
		requests := stream(r, 12)
		for i, q := range requests {
			q.Tokens, q.MinNew = q.Tokens[:min(len(q.Tokens), 60)], 0
			q.Sampling = sample.Params{TopP: 1, Seed: uint64(i)}
			if i%2 == 0 { // short prompts that make much: they outgrow a small pool together
				q.Tokens, q.MaxNew, q.IgnoreEOS, q.StopIDs = q.Tokens[:min(len(q.Tokens), 6)], 24, true, nil
			}
		}
		alone := setup{blockTokens: 128, deviceBlocks: 64, stepTokens: 256, running: 1, noPrefix: true}
		want := m.play(t, alone, requests)
		for _, s := range []setup{
			{blockTokens: 16, deviceBlocks: 64, hostBlocks: 64, stepTokens: 256, running: 12},
			{blockTokens: 4, deviceBlocks: 25, hostBlocks: 100, stepTokens: 13, running: 8},
			{blockTokens: 1, deviceBlocks: 100, stepTokens: 7, running: 4, policy: sched.LPM},
			{blockTokens: 2, deviceBlocks: 50, stepTokens: 64, running: 12, noPrefix: true},
			{blockTokens: 2, deviceBlocks: 50, hostBlocks: 200, stepTokens: 64, running: 10, write: cache.WriteBack},
			{blockTokens: 64, deviceBlocks: 9, hostBlocks: 4, stepTokens: 40, running: 6, write: cache.WriteThroughSelective},
			{blockTokens: 8, deviceBlocks: 13, stepTokens: 30, running: 6, noPrefix: true},
			{blockTokens: 16, deviceBlocks: 64, hostBlocks: 64, stepTokens: 256, running: 12, overlap: true},
			{blockTokens: 2, deviceBlocks: 50, hostBlocks: 200, stepTokens: 64, running: 10, write: cache.WriteBack, overlap: true},
		} {
			got := m.play(t, s, requests)
			retracted, hostHits = retracted+got.retracted, hostHits+got.hostHits
			if err := want.same(got); err != nil {
				t.Errorf("%s, seed %d, setup {%v}: %v", cfg.Name, seed, s, err)
			}
		}
	}
	if retracted == 0 || hostHits == 0 {
		t.Errorf("seed %d: %d retractions and %d tokens from the host: nothing was exercised", seed, retracted, hostHits)
	}
}

func (r result) same(other result) error {
	for i := range r.tokens {
		if !slices.Equal(r.tokens[i], other.tokens[i]) {
			return fmt.Errorf("request %d said %v alone and %v now", i, r.tokens[i], other.tokens[i])
		}
	}
	for d, h := range r.logits {
		if got, ok := other.logits[d]; got != h && (ok || !other.partial) {
			return fmt.Errorf("request %d, token %d: other logits, same token", d.request, d.position)
		}
	}
	return nil
}
