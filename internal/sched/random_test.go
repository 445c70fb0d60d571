package sched

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/kv/cache"
	"larder/internal/sample"

	"pgregory.net/rapid"
)

const eos = 9999

// random drives a scheduler and a cache with random events and keeps its own account of every sequence.
type random struct {
	s       *Scheduler
	cache   *cache.Cache
	moves   []kv.Move
	under   []*Step // under way
	live    []*Seq
	ended   map[*Seq]int
	added   int
	clock   int
	pool    int // tokens
	failing bool
}

func newRandom(t *rapid.T) *random {
	block := 1 << rapid.IntRange(0, 3).Draw(t, "block")
	blocks := rapid.IntRange(4, 24).Draw(t, "device")
	layout := kv.Layout{Layers: 1, KVHeads: 1, HeadDim: 1, BlockTokens: block, DType: arch.BF16}
	c, err := cache.New(cache.Config{
		Layout: layout, Fingerprint: "random", DeviceBlocks: blocks,
		HostBlocks: rapid.SampledFrom([]int{0, 5, 40}).Draw(t, "host"),
		Write:      cache.WritePolicy(rapid.IntRange(0, 2).Draw(t, "write")),
		NoPrefix:   rapid.IntRange(0, 4).Draw(t, "noprefix") == 0,
	})
	if err != nil {
		t.Fatal(err)
	}
	running := rapid.IntRange(1, 5).Draw(t, "running")
	s, err := New(Config{
		MaxRunning: running, MaxQueued: 6, StepTokens: running + rapid.IntRange(0, 40).Draw(t, "chunk"),
		MinLoadTokens: rapid.SampledFrom([]int{0, 0, 8}).Draw(t, "minload"),
		Overlap:       rapid.Bool().Draw(t, "overlap"),
		Policy:        Policy(rapid.IntRange(0, 1).Draw(t, "policy")), Layout: layout, DeviceBlocks: blocks,
	}, c)
	if err != nil {
		t.Fatal(err)
	}
	return &random{s: s, cache: c, ended: map[*Seq]int{}, pool: blocks * block, failing: rapid.IntRange(0, 3).Draw(t, "failing") == 0}
}

func (r *random) now() time.Time {
	r.clock++
	return time.Unix(1000, int64(r.clock))
}

func (r *random) add(t *rapid.T) {
	n := rapid.IntRange(1, max(r.pool*2/3, 1)).Draw(t, "prompt")
	q := &infer.Request{ID: fmt.Sprint(r.added), MaxNew: rapid.IntRange(1, 12).Draw(t, "max"), Sampling: sample.Params{TopP: 1}}
	family := rapid.IntRange(0, 2).Draw(t, "family")
	for i := range n {
		q.Tokens = append(q.Tokens, int32(family*100+i))
	}
	if rapid.Bool().Draw(t, "own tail") {
		q.Tokens[n-1] = int32(1000 + r.added)
	}
	seq := NewSeq(q, []int32{eos}, r.now())
	err := r.s.Add(seq)
	tooLong := n+q.MaxNew-1 > r.pool
	if tooLong != errors.Is(err, infer.ErrTooLong) && !errors.Is(err, infer.ErrQueueFull) {
		t.Fatalf("prompt %d, max %d, pool %d: %v", n, q.MaxNew, r.pool, err)
	}
	if err == nil {
		r.added++
		r.live = append(r.live, seq)
	}
}

func (r *random) cancel(t *rapid.T) {
	if len(r.live) > 0 {
		r.s.Cancel(rapid.SampledFrom(r.live).Draw(t, "whom"), errors.New("cancelled"), r.now())
	}
}

// move takes the cache's orders and ends some of them.
func (r *random) move(t *rapid.T) {
	r.moves = append(r.moves, r.cache.Moves()...)
	for range rapid.IntRange(0, len(r.moves)).Draw(t, "moves") {
		r.moveOne(rapid.IntRange(0, len(r.moves)-1).Draw(t, "which"), r.failing && rapid.Bool().Draw(t, "fails"))
	}
}

func (r *random) moveOne(i int, fails bool) {
	var err error
	if fails {
		err = errors.New("lost")
	}
	id := r.moves[i].ID
	r.moves = slices.Delete(r.moves, i, i+1)
	r.cache.Done(id, err)
	r.s.Moved()
}

// step plans a step if one may be, lets things happen meanwhile, and ends the oldest if it must or by chance.
func (r *random) step(t *rapid.T) {
	must := r.s.Under() == r.s.depth()
	if !must {
		must = !r.plan(t)
	}
	if r.s.Under() == 0 || !r.meanwhile(t) {
		return
	}
	if must || r.s.Under() == r.s.depth() || rapid.Bool().Draw(t, "done") {
		r.done(t)
	}
}

// plan asks for a step, and says whether there is one.
func (r *random) plan(t *rapid.T) bool {
	step := r.s.Next(r.now())
	r.take(t)
	if step == nil {
		if len(r.live) > 0 && r.cache.Pending() == 0 && r.s.Under() == 0 {
			t.Fatalf("nothing to compute and no move under way, but %d requests live", len(r.live))
		}
		return false
	}
	rows := 0
	for _, row := range step.Rows {
		rows += row.Tokens
		if n := len(row.Seq.lease.Blocks()); n < r.s.blocks(row.Context+row.Tokens) {
			t.Fatalf("%d blocks for %d tokens", n, row.Context+row.Tokens)
		}
		if row.Seq.ended || row.Made >= row.Seq.req.MaxNew {
			t.Fatalf("%+v is computed after its end", row)
		}
		r.comesFrom(t, row)
	}
	if rows > r.s.cfg.StepTokens || rows != step.DecodeTokens+step.PrefillTokens || len(step.Rows) > r.s.cfg.MaxRunning {
		t.Fatalf("a step of %d rows, %+v", rows, step)
	}
	r.under = append(r.under, step)
	return true
}

// comesFrom checks that a row continues what is known, and takes a token that is not from the step before.
func (r *random) comesFrom(t *rapid.T, row Row) {
	if row.From < 0 {
		if row.Context+row.Tokens > len(row.Seq.tokens) {
			t.Fatalf("%+v: %d tokens are known", row, len(row.Seq.tokens))
		}
		return
	}
	if len(r.under) == 0 {
		t.Fatalf("%+v takes a token from a step that is not under way", row)
	}
	draws := slices.DeleteFunc(slices.Clone(r.under[len(r.under)-1].Rows), func(r Row) bool { return !r.Draw })
	if row.From >= len(draws) || draws[row.From].Seq != row.Seq || row.Tokens != 1 || row.Context != len(row.Seq.tokens) {
		t.Fatalf("%+v takes its token from %+v", row, draws)
	}
}

// meanwhile is what may happen while steps are under way; false when none is any more.
func (r *random) meanwhile(t *rapid.T) bool {
	switch rapid.IntRange(0, 9).Draw(t, "meanwhile") {
	case 0:
		r.cancel(t)
	case 1:
		r.add(t)
	case 2:
		r.move(t)
	case 3:
		r.s.Admit(r.now())
	case 4:
		if rapid.IntRange(0, 9).Draw(t, "device") == 0 {
			r.s.Fail(errors.New("device gone"), r.now())
			r.under = nil
			return false
		}
	}
	return true
}

func (r *random) done(t *rapid.T) {
	step := r.under[0]
	r.under = r.under[1:]
	tokens := make([]int32, step.DrawnSequences)
	for i := range tokens {
		tokens[i] = int32(rapid.IntRange(200, 220).Draw(t, "token"))
		if tokens[i] == 220 {
			tokens[i] = eos
		}
	}
	if err := r.s.Done(tokens, r.now()); err != nil {
		t.Fatal(err)
	}
}

// take reads the news and checks the accounts.
func (r *random) take(t *rapid.T) {
	for _, o := range r.s.Outputs() {
		if r.ended[o.Seq] > 0 {
			t.Fatalf("request %s: news after its end", o.Seq.req.ID)
		}
		if o.Finish == infer.NotFinished {
			continue
		}
		r.ended[o.Seq]++
		r.live = slices.DeleteFunc(r.live, func(q *Seq) bool { return q == o.Seq })
		u := o.Seq.Usage()
		if u.CompletionTokens != len(o.Seq.tokens)-len(o.Seq.req.Tokens) || u.CompletionTokens > o.Seq.req.MaxNew {
			t.Fatalf("usage %+v of %d tokens", u, len(o.Seq.tokens))
		}
		if sum := u.Cached.Total() + u.Computed; sum > u.PromptTokens || o.Finish != infer.FinishAbort && sum != u.PromptTokens {
			t.Fatalf("usage %+v", u)
		}
		if errors.Is(o.Err, infer.ErrNoRoom) && !r.failing {
			t.Fatalf("request %s ended for want of room in a pool that holds it: %v", o.Seq.req.ID, o.Err)
		}
	}
}

func (r *random) check(t *rapid.T) {
	r.take(t)
	if err := r.s.Check(); err != nil {
		t.Fatal(err)
	}
	if err := r.cache.Check(); err != nil {
		t.Fatal(err)
	}
	running, loading, waiting := r.s.Counts()
	if running+loading+waiting != len(r.live) {
		t.Fatalf("%d running, %d loading, %d waiting, but %d live", running, loading, waiting, len(r.live))
	}
}

// TestRandom: whatever happens in whatever order, the invariants hold, and all ends when moves end.
func TestRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRandom(t)
		t.Repeat(map[string]func(*rapid.T){
			"add":    r.add,
			"cancel": r.cancel,
			"move":   r.move,
			"step":   r.step,
			"step2":  r.step, // twice as often
			"":       r.check,
		})
		r.drain(t)
	})
}

// drain lets everything end, within a bound that a scheduler that starves somebody would break.
func (r *random) drain(t *rapid.T) {
	for turns := 0; len(r.live) > 0 || r.cache.Pending() > 0 || r.s.Under() > 0; turns++ {
		if turns > 5000 {
			t.Fatalf("%d requests still live after %d turns", len(r.live), turns)
		}
		r.moves = append(r.moves, r.cache.Moves()...)
		for len(r.moves) > 0 {
			r.moveOne(0, false)
		}
		r.step(t)
		r.check(t)
	}
	if len(r.ended) != r.added || !r.s.Idle() {
		t.Fatalf("%d requests added, %d ended", r.added, len(r.ended))
	}
	for tier, st := range r.cache.Stats() {
		if st.Leased != 0 {
			t.Fatalf("tier %d: %d blocks leased by nobody", tier, st.Leased)
		}
	}
}
