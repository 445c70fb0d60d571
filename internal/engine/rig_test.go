package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"larder/internal/arch"
	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/kv/cache"
	"larder/internal/sample"
	"larder/internal/sched"
)

var testEOS = []int32{3}

// setup is one configuration of engine and fakes.
type setup struct {
	blockTokens, deviceBlocks, hostBlocks int
	stepTokens, running                   int
	write                                 cache.WritePolicy
	policy                                sched.Policy
	noPrefix                              bool
	minLoad                               int
	moveFailures                          float64
	slowMoves                             bool
	realMover                             bool // kv/xfer instead of the fake
	overlap                               bool
	eager                                 bool // the device runs a pass as soon, not as late, as it can
}

func (s setup) String() string {
	return fmt.Sprintf("block %d, device %d, host %d, chunk %d, running %d, write %d, policy %d, noPrefix %t, minLoad %d, failing %.2f, slow %t, xfer %t, overlap %t, eager %t",
		s.blockTokens, s.deviceBlocks, s.hostBlocks, s.stepTokens, s.running, s.write, s.policy, s.noPrefix, s.minLoad, s.moveFailures, s.slowMoves, s.realMover, s.overlap, s.eager)
}

func plain() setup {
	return setup{blockTokens: 4, deviceBlocks: 64, hostBlocks: 64, stepTokens: 64, running: 8}
}

// bothSchedules runs a test with one step under way at a time, and with the next prepared meanwhile.
func bothSchedules(t *testing.T, test func(*testing.T, setup)) {
	for _, overlap := range []bool{false, true} {
		t.Run(fmt.Sprint("overlap=", overlap), func(t *testing.T) {
			s := plain()
			s.overlap = overlap
			test(t, s)
		})
	}
}

// rig is an engine over fakes, started.
type rig struct {
	*Engine
	runner *fakeRunner
	mover  *fakeMover
	log    *listened
}

// listened is what a listener heard; the loop writes it, tests read it after Close.
type listened struct {
	requests []RequestInfo
	steps    []StepInfo
	moves    []MovesInfo
}

func (s setup) config(seed uint64) (Config, *fakeRunner, *fakeMover, *listened) {
	memory := newFakeMemory(s.blockTokens, s.deviceBlocks, s.hostBlocks)
	runner := &fakeRunner{memory: memory, eager: s.eager, depth: 1, maxRows: s.stepTokens, maxSeqs: s.running}
	if s.overlap {
		runner.depth = 2
	}
	mover := newFakeMover(memory, seed)
	mover.failed, mover.slow = s.moveFailures, s.slowMoves
	log := &listened{}
	return Config{
		Runner: runner, Mover: mover, Vocab: fakeVocab, ContextLen: 4096, EOS: testEOS,
		Cache: cache.Config{
			Layout:       kv.Layout{Layers: 1, KVHeads: 1, HeadDim: 2, BlockTokens: s.blockTokens, DType: arch.BF16},
			Fingerprint:  "fake",
			DeviceBlocks: s.deviceBlocks, HostBlocks: s.hostBlocks, Write: s.write, NoPrefix: s.noPrefix,
		},
		MaxRunning: s.running, MaxQueued: 1000, StepTokens: s.stepTokens, MinLoadTokens: s.minLoad, Policy: s.policy, Overlap: s.overlap,
		CheckSteps: true,
		Listener: Listener{
			RequestDone: func(i RequestInfo) { log.requests = append(log.requests, i) },
			StepDone:    func(i StepInfo) { log.steps = append(log.steps, i) },
			MovesDone:   func(i MovesInfo) { log.moves = append(log.moves, i) },
		},
	}, runner, mover, log
}

// newRig makes a rig that change may adjust before it starts.
func newRig(t testing.TB, s setup, change func(*Config, *rig)) *rig {
	t.Helper()
	cfg, runner, mover, log := s.config(1)
	r := &rig{runner: runner, mover: mover, log: log}
	if change != nil {
		change(&cfg, r)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Engine = e
	e.Start()
	return r
}

// closed ends the rig and checks that nothing was left behind.
func (r *rig) closed(t testing.TB) {
	t.Helper()
	if err := r.Close(context.Background()); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
	for tier, st := range r.cache.Stats() {
		if st.Leased != 0 || st.Free+st.Cached != st.Total {
			t.Errorf("%v tier after the end: %+v", kv.Tier(tier), st)
		}
	}
	if uint64(len(r.log.requests)) != r.stats.Requests {
		t.Errorf("%d requests accepted, %d ends heard", r.stats.Requests, len(r.log.requests))
	}
}

func (r *rig) generate(req *infer.Request) *collector {
	return r.generateUntil(context.Background(), req)
}

func (r *rig) generateUntil(ctx context.Context, req *infer.Request) *collector {
	c := &collector{}
	c.usage, c.err = r.Generate(ctx, req, c.emit)
	return c
}

// right compares with what the model says without any cache, and the accounts.
func (c *collector) right(req *infer.Request) error {
	want, finish := answer(req, testEOS)
	switch {
	case c.err != nil:
		return fmt.Errorf("request %s: %w", req.ID, c.err)
	case c.finals != 1 || c.finish != finish:
		return fmt.Errorf("request %s: %d last events, finish %d, want %d", req.ID, c.finals, c.finish, finish)
	case !slices.Equal(c.tokens, want):
		return fmt.Errorf("request %s: tokens %v, want %v", req.ID, c.tokens, want)
	case c.usage.CompletionTokens != len(want) || c.usage.PromptTokens != len(req.Tokens):
		return fmt.Errorf("request %s: usage %+v", req.ID, c.usage)
	case c.usage.Cached.Total()+c.usage.Computed != len(req.Tokens):
		return fmt.Errorf("request %s: cached %+v and computed %d of %d tokens", req.ID, c.usage.Cached, c.usage.Computed, len(req.Tokens))
	}
	return c.ordered()
}

func (c *collector) ordered() error {
	t := c.usage.Timing
	if t.Admitted.Before(t.Queued) || t.Loaded.Before(t.Admitted) || t.Computing.Before(t.Loaded) ||
		t.FirstToken.Before(t.Computing) || t.Finished.Before(t.FirstToken) || t.Queued.IsZero() {
		return fmt.Errorf("times out of order: %+v", t)
	}
	return nil
}

func tokens(from, n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32((from + i*i*7 + i) % fakeVocab)
	}
	return list
}

func newRequest(id string, prompt []int32, maxNew int) *infer.Request {
	return &infer.Request{ID: id, Tokens: prompt, MaxNew: maxNew, IgnoreEOS: true, Sampling: sample.Params{TopP: 1}}
}

// stream is a random list of requests, many of which share prefixes.
func stream(r *rand.Rand, n int) []*infer.Request {
	var roots [][]int32
	for range 4 {
		roots = append(roots, randomTokens(r, 8+r.IntN(90)))
	}
	list := make([]*infer.Request, n)
	for i := range list {
		root := roots[r.IntN(len(roots))]
		prompt := append(slices.Clone(root[:1+r.IntN(len(root))]), randomTokens(r, r.IntN(30))...)
		if i > 0 && r.IntN(4) == 0 { // a next turn, or the same again
			last := list[r.IntN(i)]
			said, _ := answer(last, testEOS)
			prompt = append(slices.Clone(last.Tokens), said[:r.IntN(len(said)+1)]...)
		}
		prompt = prompt[:min(len(prompt), 150)]
		q := newRequest(fmt.Sprint("r", i), prompt, 1+r.IntN(40))
		q.IgnoreEOS = r.IntN(2) == 0
		q.MinNew = r.IntN(q.MaxNew + 1)
		if r.IntN(3) == 0 {
			q.StopIDs = randomTokens(r, 3)
		}
		if r.IntN(2) == 0 {
			q.Sampling = sample.Params{Temperature: 1, TopP: 0.9, Seed: r.Uint64()}
		}
		if r.IntN(6) == 0 {
			q.Salt = "other"
		}
		list[i] = q
	}
	return list
}

func randomTokens(r *rand.Rand, n int) []int32 {
	list := make([]int32, n)
	for i := range list {
		list[i] = int32(r.IntN(fakeVocab))
	}
	return list
}

// inboxed counts the requests that wait in the inbox.
func (e *Engine) inboxed() int {
	e.inbox.mu.Lock()
	defer e.inbox.mu.Unlock()
	return len(e.inbox.next.requests)
}

func yieldProcessor() { runtime.Gosched() }
