package cache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/kv"
)

const bt = 4

func layout() kv.Layout {
	return kv.Layout{Layers: 1, KVHeads: 1, HeadDim: 1, BlockTokens: bt, DType: arch.BF16}
}

// world is a cache whose blocks have content: the tokens of the whole prefix that each slot of a block stands for.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	c      *Cache
	tiers  [kv.NumTiers][]string
	flying []kv.Move
	live   []*runner
}

// runner is a sequence that runs.
type runner struct {
	l      *Lease
	tokens []int32
	done   int
}

func text(tokens []int32) string { return fmt.Sprint(tokens) }

func newWorld(t *testing.T, rng *rand.Rand, cfg Config) *world {
	cfg.Layout = layout()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, rng: rng, c: c}
	w.tiers[kv.Device], w.tiers[kv.Host] = make([]string, cfg.DeviceBlocks), make([]string, cfg.HostBlocks)
	return w
}

func (w *world) check() {
	w.t.Helper()
	w.flying = append(w.flying, w.c.Moves()...)
	if err := w.c.Check(); err != nil {
		w.t.Fatal(err)
	}
	for tier, s := range w.c.Stats() {
		if s.Free+s.Leased+s.Cached != s.Total || s.Free < 0 || s.Leased < 0 || s.Cached < 0 {
			w.t.Fatalf("%v: %+v does not add up", kv.Tier(tier), s)
		}
	}
	if w.c.Pending() != len(w.flying) {
		w.t.Fatalf("%d moves pending, %d are flying", w.c.Pending(), len(w.flying))
	}
}

// land ends a random move.
func (w *world) land(failures float64) {
	if len(w.flying) == 0 {
		return
	}
	i := w.rng.IntN(len(w.flying))
	m := w.flying[i]
	w.flying = append(w.flying[:i], w.flying[i+1:]...)
	if w.rng.Float64() < failures {
		w.tiers[m.To][m.Dst] = "garbage"
		w.c.Done(m.ID, errors.New("injected"))
		return
	}
	w.tiers[m.To][m.Dst] = w.tiers[m.From][m.Src]
	w.c.Done(m.ID, nil)
}

// prompt shares prefixes with others: a short alphabet, and a walk along what was asked before.
func (w *world) prompt() []int32 {
	n := 1 + w.rng.IntN(10*bt)
	p := make([]int32, n)
	for i := range p {
		if i%bt == 0 {
			p[i] = int32(w.rng.IntN(2))
		}
	}
	return p
}

func (w *world) open() {
	p := w.prompt()
	maxLoad := 1 << 20
	if w.rng.IntN(4) == 0 {
		maxLoad = w.rng.IntN(4 * bt)
	}
	before := w.c.Lookup("", p)
	l, err := w.c.Open("", p, maxLoad)
	if err != nil {
		if !errors.Is(err, ErrNoRoom) {
			w.t.Fatal(err)
		}
		return
	}
	h := l.Hit()
	if h.Device+h.Host >= len(p) || h.Device > before.Device || h.Host > before.Host || h.Host > maxLoad || (h.Device+h.Host)%bt != 0 {
		w.t.Fatalf("prompt of %d: hit %+v, looked up %+v, at most %d to load", len(p), h, before, maxLoad)
	}
	w.live = append(w.live, &runner{l: l, tokens: p})
}

// step computes some tokens of a ready sequence and commits them.
func (w *world) step(r *runner) {
	if !r.l.Ready() {
		return
	}
	valid := r.l.Valid()
	if valid < r.done {
		w.t.Fatalf("%d tokens were valid, %d are", r.done, valid)
	}
	for i, b := range r.l.Blocks()[:valid/bt] {
		if got, want := w.tiers[kv.Device][b], text(r.tokens[:(i+1)*bt]); got != want {
			w.t.Fatalf("block %d of %v holds %s", i, r.tokens, got)
		}
	}
	if valid == len(r.tokens) {
		r.tokens = append(r.tokens, int32(w.rng.IntN(2)))
	}
	n := valid + 1 + w.rng.IntN(len(r.tokens)-valid)
	if err := r.l.Extend(n); err != nil {
		if !errors.Is(err, ErrNoRoom) {
			w.t.Fatal(err)
		}
		return
	}
	for i := valid / bt; i*bt < n; i++ {
		w.tiers[kv.Device][r.l.Blocks()[i]] = text(r.tokens[:min((i+1)*bt, n)])
	}
	r.l.Commit(r.tokens, n)
	r.done = n
}

func (w *world) close(i int) {
	w.live[i].l.Close()
	w.live[i].l.Close()
	w.live = append(w.live[:i], w.live[i+1:]...)
}

func (w *world) place() {
	p := w.prompt()
	to := Placement(w.rng.IntN(3))
	if err := w.c.Place("", p, to); err != nil {
		for _, known := range []error{ErrNoRoom, ErrNotCached, ErrInUse, ErrMoving} {
			if errors.Is(err, known) {
				return
			}
		}
		w.t.Fatal(err)
	}
	device, host, both, missing := w.c.Residency("", p)
	want := [...]int{Nowhere: missing, OnlyDevice: device, OnlyHost: host}[to]
	if want != len(p)/bt || device+host+both+missing != len(p)/bt {
		w.t.Fatalf("placed %d blocks: %d on the device, %d on the host, %d in both, %d in none", len(p)/bt, device, host, both, missing)
	}
}

func (w *world) act(failures float64) {
	switch n := w.rng.IntN(20); {
	case n < 4:
		w.open()
	case n < 12:
		if len(w.live) > 0 {
			w.step(w.live[w.rng.IntN(len(w.live))])
		}
	case n < 14:
		if len(w.live) > 0 {
			w.close(w.rng.IntN(len(w.live)))
		}
	case n < 18:
		w.land(failures)
	case n < 19:
		w.place()
	default:
		if err := w.c.Flush(); err == nil {
			for tier, s := range w.c.Stats() {
				if s.Free != s.Total {
					w.t.Fatalf("flushed, but the %v tier has %+v", kv.Tier(tier), s)
				}
			}
		} else if !errors.Is(err, ErrInUse) {
			w.t.Fatal(err)
		}
	}
	w.check()
}

// TestContent runs random sequences on tiny pools: what a hit names must be there, whatever was evicted, moved, failed
// or closed meanwhile, and every invariant holds after every act.
func TestContent(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("LARDER_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for i := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, i))
		cfg := Config{
			DeviceBlocks: 4 + rng.IntN(30), HostBlocks: rng.IntN(3) * rng.IntN(30), Write: WritePolicy(rng.IntN(3)),
			Eviction: []string{"", "lru", "lfu", "slru"}[rng.IntN(4)], NoPrefix: rng.IntN(10) == 0,
		}
		failures := float64(rng.IntN(2)) * 0.2
		t.Run(fmt.Sprintf("seed=%d/%d", seed, i), func(t *testing.T) {
			w := newWorld(t, rng, cfg)
			for range 1500 {
				w.act(failures)
			}
			for len(w.live) > 0 {
				w.close(0)
				w.check()
			}
			for len(w.flying) > 0 {
				w.land(failures)
				w.check()
			}
			if err := w.c.Flush(); err != nil {
				t.Fatal(err)
			}
			w.check()
		})
	}
}
