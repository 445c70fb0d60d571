package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"larder/internal/device"
	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/sample"
)

const fakeVocab = 97

// poison is what a slot holds that was never written; reading it makes every later token wrong.
const poison = 0xDEADDEADDEADDEAD

// slotBytes is what a token's "KV" takes; the test layouts say so too.
const slotBytes = 8

// fakeMemory holds real content: the "KV" of a token is a number that depends on all tokens up to it, read back through
// the block table. So any wrong, stale or early-read block changes what the model says.
type fakeMemory struct {
	blockTokens int
	tiers       [kv.NumTiers]fakeBuffer
}

func newFakeMemory(blockTokens, deviceBlocks, hostBlocks int) *fakeMemory {
	m := &fakeMemory{blockTokens: blockTokens}
	for t, n := range [kv.NumTiers]int{deviceBlocks, hostBlocks} {
		m.tiers[t] = make(fakeBuffer, n*blockTokens*slotBytes)
		m.tiers[t].poison()
	}
	return m
}

func (m *fakeMemory) block(t kv.Tier, b kv.BlockID) fakeBuffer {
	n := m.blockTokens * slotBytes
	return m.tiers[t][int(b)*n:][:n]
}

func (m *fakeMemory) slot(blocks []kv.BlockID, pos int) fakeBuffer {
	return m.block(kv.Device, blocks[pos/m.blockTokens])[pos%m.blockTokens*slotBytes:][:slotBytes]
}

func scramble(h uint64) uint64 {
	h ^= h >> 31
	h *= 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// attend folds one more position's KV into what a row has seen.
func attend(seen, kv uint64) uint64 { return scramble(seen*31 + kv) }

// write is the KV of a token that has seen all before it.
func write(seen uint64, id int32) uint64 { return scramble(seen ^ uint64(id)<<20) }

// choose is the fake's sampler.
func choose(seen uint64, d *sample.Draw) int32 {
	h := seen
	if !d.Greedy() {
		h = scramble(seen + d.Seed*77 + uint64(d.Position))
	}
	for {
		if id := int32(h % fakeVocab); !slices.Contains(d.Banned, id) {
			return id
		}
		h = scramble(h + 1)
	}
}

// fakeRunner is a model over fakeMemory.
type fakeRunner struct {
	memory   *fakeMemory
	eager    bool // passes run in Launch, as soon as they can; else in Wait, as late as they can
	depth    int  // most passes under way
	queue    []*device.Batch
	results  []fakeResult // of those of the queue that ran
	before   []int32      // tokens of the pass that ran last
	maxRows  int
	maxSeqs  int
	onLaunch func(step int) // called in Launch
	fail     func(step int) error
	launched int
	waited   int
}

type fakeResult struct {
	tokens []int32
	err    error
}

func (r *fakeRunner) Launch(b *device.Batch) error {
	r.launched++
	if r.onLaunch != nil {
		r.onLaunch(r.launched)
	}
	if len(b.IDs) > r.maxRows || len(b.Seqs) > r.maxSeqs || len(r.queue) == r.depth {
		return fmt.Errorf("%d rows of %d sequences, %d passes under way", len(b.IDs), len(b.Seqs), len(r.queue))
	}
	r.queue = append(r.queue, b)
	if r.eager {
		r.run()
	}
	return nil
}

func (r *fakeRunner) Wait() ([]int32, error) {
	r.waited++
	if len(r.queue) == 0 {
		return nil, errors.New("no pass is under way")
	}
	if r.fail != nil {
		if err := r.fail(r.waited); err != nil {
			return nil, err
		}
	}
	if !r.eager {
		r.run()
	}
	first := r.results[0]
	r.queue, r.results = slices.Delete(r.queue, 0, 1), slices.Delete(r.results, 0, 1)
	return first.tokens, first.err
}

// run computes the oldest pass that has not run.
func (r *fakeRunner) run() {
	b := r.queue[len(r.results)]
	tokens, err := r.compute(b)
	r.before = tokens
	r.results = append(r.results, fakeResult{slices.Clone(tokens), err})
	if r.eager { // nobody may need the batch any more
		for i := range b.IDs {
			b.IDs[i] = fakeVocab
		}
	}
}

func (r *fakeRunner) compute(b *device.Batch) (tokens []int32, err error) {
	ids := b.IDs
	for i := range b.Seqs {
		s := &b.Seqs[i]
		if len(s.Blocks) != (s.Context+s.Tokens+r.memory.blockTokens-1)/r.memory.blockTokens {
			return nil, fmt.Errorf("%d blocks for %d+%d tokens", len(s.Blocks), s.Context, s.Tokens)
		}
		seen := uint64(1)
		for pos := range s.Context {
			seen = attend(seen, r.memory.slot(s.Blocks, pos).number())
		}
		for n, id := range ids[:s.Tokens] {
			if id < 0 {
				id = max(r.before[-1-id], 0)
			}
			slot := r.memory.slot(s.Blocks, s.Context+n)
			slot.set(write(seen, id))
			seen = attend(seen, slot.number())
		}
		ids = ids[s.Tokens:]
		if s.Draw != nil {
			tokens = append(tokens, choose(seen, s.Draw))
		}
	}
	if len(ids) != 0 {
		return nil, errors.New("rows left over")
	}
	return tokens, nil
}

// answer is what the fake model says to a request when nothing of a cache comes between.
func answer(r *infer.Request, eos []int32) (tokens []int32, finish infer.FinishReason) {
	seen := uint64(1)
	for _, id := range r.Tokens {
		seen = attend(seen, write(seen, id))
	}
	stops := slices.Clone(r.StopIDs)
	if !r.IgnoreEOS {
		stops = append(stops, eos...)
	}
	for n := range r.MaxNew {
		d := sample.Draw{Params: r.Sampling, Position: n}
		if n < r.MinNew {
			d.Banned = stops
		}
		id := choose(seen, &d)
		tokens = append(tokens, id)
		if slices.Contains(stops, id) {
			return tokens, infer.FinishStop
		}
		seen = attend(seen, write(seen, id))
	}
	return tokens, infer.FinishLength
}

var errMove = errors.New("the move failed")

// fakeMover copies for real, some polls later: until a move is done its destination holds poison, and what is copied
// is what the source holds then. Failing moves leave poison.
type fakeMover struct {
	memory *fakeMemory
	rand   *rand.Rand
	failed float64 // share of moves that fail
	slow   bool    // a poll does but a few moves
	stuck  bool    // nothing is ever done
	queue  []kv.Move
	notify chan struct{}
	loads  int
	stores int
	fails  int
}

func newFakeMover(m *fakeMemory, seed uint64) *fakeMover {
	return &fakeMover{memory: m, rand: rand.New(rand.NewPCG(seed, 7)), notify: make(chan struct{}, 1)}
}

func (f *fakeMover) Submit(moves []kv.Move) {
	for _, m := range moves {
		f.memory.block(m.To, m.Dst).poison()
		f.queue = append(f.queue, m)
	}
	f.ring()
}

func (f *fakeMover) ring() {
	select {
	case f.notify <- struct{}{}:
	default:
	}
}

func (f *fakeMover) Poll(done func(kv.Move, error)) int {
	if f.stuck {
		return 0
	}
	n := len(f.queue)
	if f.slow && n > 0 {
		n = f.rand.IntN(n + 1)
	}
	for range n {
		i := 0
		if f.slow { // any order
			i = f.rand.IntN(len(f.queue))
		}
		m := f.queue[i]
		f.queue = slices.Delete(f.queue, i, i+1)
		done(m, f.move(m))
	}
	if len(f.queue) > 0 {
		f.ring()
	}
	return n
}

func (f *fakeMover) move(m kv.Move) error {
	if f.rand.Float64() < f.failed {
		f.fails++
		return errMove
	}
	if m.To == kv.Device {
		f.loads++
	} else {
		f.stores++
	}
	copy(f.memory.block(m.To, m.Dst), f.memory.block(m.From, m.Src))
	return nil
}

func (f *fakeMover) Notify() <-chan struct{} { return f.notify }
func (f *fakeMover) Pending() int            { return len(f.queue) }

// collector gathers one request's events.
type collector struct {
	mu     sync.Mutex
	tokens []int32
	finals int
	finish infer.FinishReason
	stopID int32
	err    error
	usage  infer.Usage
}

func (c *collector) emit(e infer.Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.finals > 0 {
		return errors.New("an event after the last")
	}
	c.tokens = append(c.tokens, e.Tokens...)
	if e.Finish != infer.NotFinished {
		c.finals++
		c.finish, c.stopID = e.Finish, e.StopID
	}
	return nil
}
