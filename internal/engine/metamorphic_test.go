package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"larder/internal/infer"
	"larder/internal/kv/cache"
	"larder/internal/sched"
)

// variants are configurations that must not change a token. 190 tokens (150 and 40 new) are the longest request.
func variants(r *rand.Rand) []setup {
	base := plain()
	list := []setup{base}
	vary := func(change func(*setup)) {
		s := base
		change(&s)
		list = append(list, s)
	}
	vary(func(s *setup) { s.noPrefix = true })
	vary(func(s *setup) { s.hostBlocks = 0 })
	vary(func(s *setup) { s.blockTokens, s.deviceBlocks, s.hostBlocks = 1, 256, 256 })
	vary(func(s *setup) { s.blockTokens, s.deviceBlocks, s.hostBlocks = 64, 8, 4 })
	vary(func(s *setup) { s.stepTokens, s.running = 3, 3 })
	vary(func(s *setup) { s.policy, s.running, s.stepTokens = sched.LPM, 2, 50 })
	vary(func(s *setup) { s.running = 1 })
	vary(func(s *setup) { s.deviceBlocks, s.hostBlocks = 50, 0 }) // just the longest request: retraction
	vary(func(s *setup) { s.deviceBlocks, s.write, s.hostBlocks = 50, cache.WriteBack, 200 })
	vary(func(s *setup) { s.deviceBlocks, s.write, s.hostBlocks, s.slowMoves = 50, cache.WriteBack, 20, true })
	vary(func(s *setup) { s.deviceBlocks, s.write, s.slowMoves = 60, cache.WriteThroughSelective, true })
	vary(func(s *setup) { s.deviceBlocks, s.hostBlocks, s.slowMoves, s.moveFailures = 52, 100, true, 0.3 })
	vary(func(s *setup) { s.deviceBlocks, s.hostBlocks, s.realMover = 50, 100, true })
	vary(func(s *setup) { s.overlap = true })
	vary(func(s *setup) { s.overlap, s.eager, s.deviceBlocks, s.hostBlocks = true, true, 50, 0 })
	vary(func(s *setup) { s.overlap, s.deviceBlocks, s.hostBlocks, s.slowMoves = true, 50, 100, true })
	vary(func(s *setup) { s.overlap, s.deviceBlocks, s.hostBlocks, s.realMover = true, 50, 100, true })
	vary(func(s *setup) { s.deviceBlocks, s.hostBlocks, s.write, s.realMover = 50, 30, cache.WriteBack, true })
	for range 6 {
		list = append(list, randomSetup(r))
	}
	return list
}

func randomSetup(r *rand.Rand) setup {
	s := setup{blockTokens: 1 << r.IntN(6)}
	least := (190 + s.blockTokens - 1) / s.blockTokens
	s.deviceBlocks = least + r.IntN(2*least)
	s.hostBlocks = []int{0, least / 2, 3 * least}[r.IntN(3)]
	s.running = 1 + r.IntN(10)
	s.stepTokens = s.running + r.IntN(100)
	s.write = cache.WritePolicy(r.IntN(3))
	s.policy = sched.Policy(r.IntN(2))
	s.noPrefix = r.IntN(5) == 0
	s.minLoad = []int{0, 0, 16}[r.IntN(3)]
	s.slowMoves = r.IntN(2) == 0
	s.realMover = r.IntN(3) == 0
	s.overlap, s.eager = r.IntN(2) == 0, r.IntN(2) == 0
	s.moveFailures = []float64{0, 0, 0.1, 1}[r.IntN(4)]
	return s
}

// seen is what a run exercised, so that the test can tell when it tests nothing.
type seen struct {
	retracted, hostHits, deviceHits, failedMoves, steps uint64
	evicted                                             uint64
}

// play runs all requests at once under s and says what was wrong.
func play(s setup, seed uint64, requests []*infer.Request) (got seen, err error) {
	cfg, runner, mover, log := s.config(seed)
	if s.realMover {
		counted, err := newCountedMover(runner.memory, cfg.Cache.Layout, mover)
		if err != nil {
			return got, err
		}
		defer counted.Close()
		cfg.Mover = counted
	}
	e, err := New(cfg)
	if err != nil {
		return got, err
	}
	r := &rig{Engine: e, runner: runner, mover: mover, log: log}
	var wg sync.WaitGroup
	problems := make([]error, len(requests))
	for i, q := range requests { // all are in the inbox before the loop starts, so that a seed repeats
		inside := make(chan struct{})
		wg.Go(func() {
			c := &collector{}
			close(inside)
			c.usage, c.err = r.Generate(context.Background(), q, c.emit)
			problems[i] = c.right(q)
		})
		<-inside
		for e.inboxed() <= i {
			yieldProcessor()
		}
	}
	e.Start()
	wg.Wait()
	err = errors.Join(problems...)
	if e := r.Close(context.Background()); e != nil {
		err = errors.Join(err, e)
	}
	if e := r.check(); e != nil {
		err = errors.Join(err, e)
	}
	st := r.snapshot()
	for t, tier := range st.Tiers {
		if tier.Leased != 0 || tier.Free+tier.Cached != tier.Total {
			err = errors.Join(err, fmt.Errorf("tier %d after the end: %+v", t, tier))
		}
	}
	got = seen{st.Retracted, st.Tiers[1].HitTokens, st.Tiers[0].HitTokens, uint64(mover.fails), st.Steps, st.Tiers[0].EvictedBlocks}
	return got, err
}

// shrink drops requests while what is left still fails.
func shrink(s setup, seed uint64, requests []*infer.Request) []*infer.Request {
	for tries, i := 0, 0; i < len(requests) && tries < 300; tries++ {
		fewer := slices.Delete(slices.Clone(requests), i, i+1)
		if _, err := play(s, seed, fewer); err != nil {
			requests, i = fewer, 0
		} else {
			i++
		}
	}
	return requests
}

// TestMetamorphic is invariant 6: one random stream of requests under many configurations says the same, and what the
// model would say without a cache at all.
func TestMetamorphic(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var all seen
	for range 3 {
		requests := stream(r, 24)
		for _, s := range variants(r) {
			got, err := play(s, seed, requests)
			if err != nil {
				left := shrink(s, seed, requests)
				_, again := play(s, seed, left)
				t.Fatalf("seed %d, setup {%v}:\n%v\nshrunk to %d requests: %s\n%v", seed, s, err, len(left), describe(left), again)
			}
			all.retracted += got.retracted
			all.hostHits += got.hostHits
			all.deviceHits += got.deviceHits
			all.failedMoves += got.failedMoves
			all.steps += got.steps
			all.evicted += got.evicted
		}
	}
	if all.retracted == 0 || all.hostHits == 0 || all.deviceHits == 0 || all.failedMoves == 0 || all.evicted == 0 {
		t.Errorf("seed %d: the stream exercised too little: %+v", seed, all)
	}
	t.Logf("exercised %+v", all)
}

func describe(requests []*infer.Request) string {
	var b strings.Builder
	for _, q := range requests {
		fmt.Fprintf(&b, "\n  %s salt %q max %d min %d stops %v ignore %t seed %d: %v", q.ID, q.Salt, q.MaxNew, q.MinNew, q.StopIDs, q.IgnoreEOS, q.Sampling.Seed, q.Tokens)
	}
	return b.String()
}
