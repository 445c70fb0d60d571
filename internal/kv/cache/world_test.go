package cache

import (
	"errors"
	"fmt"
	"strings"

	"larder/internal/arch"
	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

const bt = 4

// world is a cache next to pools whose blocks have content: the salt and all tokens that the KV of a block stands for.
// Moves copy it, so that a hit proves that the right bytes are there.
type world struct {
	c      *Cache
	tiers  [kv.NumTiers][]string
	flying []kv.Move
	live   []*runner
}

// runner is a sequence that runs.
type runner struct {
	l      *Lease
	salt   string
	tokens []int32
	seen   []kv.BlockID // full blocks as a pass that was queued before the last Commit sees them
}

func text(salt string, tokens []int32) string { return salt + fmt.Sprint(tokens) }

func newWorld(cfg Config) (*world, error) {
	cfg.Layout = kv.Layout{Layers: 1, KVHeads: 1, HeadDim: 1, BlockTokens: bt, DType: arch.BF16}
	c, err := New(cfg)
	if err != nil {
		return nil, err
	}
	w := &world{c: c}
	w.tiers[kv.Device], w.tiers[kv.Host] = make([]string, cfg.DeviceBlocks), make([]string, cfg.HostBlocks)
	return w, nil
}

// drain takes over the moves that were ordered.
func (w *world) drain() []kv.Move {
	moves := w.c.Moves()
	w.flying = append(w.flying, moves...)
	return moves
}

// land ends the i-th move that flies. A move that fails leaves garbage.
func (w *world) land(i int, err error) {
	m := w.flying[i]
	w.flying = append(w.flying[:i], w.flying[i+1:]...)
	w.tiers[m.To][m.Dst] = w.tiers[m.From][m.Src]
	if err != nil {
		w.tiers[m.To][m.Dst] = "garbage"
	}
	w.c.Done(m.ID, err)
}

// write computes r's KV up to n tokens and commits it; a pass over the blocks of before may be under way until retire.
// The lease must own the blocks.
func (w *world) write(r *runner, n int) {
	for i := r.l.Valid() / bt; i*bt < n; i++ {
		w.tiers[kv.Device][r.l.Blocks()[i]] = text(r.salt, r.tokens[:min((i+1)*bt, n)])
	}
	r.seen = append([]kv.BlockID(nil), r.l.Blocks()[:n/bt]...)
	r.l.Commit(r.tokens, n)
}

// retire says that no pass is under way.
func (w *world) retire(r *runner) {
	r.seen = nil
	r.l.Retire()
}

// check proves every invariant, and that every block that is known, and all that a sequence has computed, holds what
// it should.
func (w *world) check() error {
	if err := w.c.Check(); err != nil {
		return err
	}
	for tier, s := range w.c.Stats() {
		if s.Free+s.Leased+s.Cached != s.Total || s.Free < 0 || s.Leased < 0 || s.Cached < 0 {
			return fmt.Errorf("%v: %+v does not add up", kv.Tier(tier), s)
		}
	}
	if w.c.Pending() != len(w.flying) {
		return fmt.Errorf("%d moves pending, %d are flying", w.c.Pending(), len(w.flying))
	}
	for _, r := range w.live {
		if err := w.read(r); err != nil {
			return err
		}
	}
	return w.readIndex()
}

// read proves that a sequence finds its KV.
func (w *world) read(r *runner) error {
	h, valid := r.l.Hit(), r.l.Valid()
	if !r.l.Ready() {
		return nil
	}
	for i, b := range r.seen {
		if got, want := w.tiers[kv.Device][b], text(r.salt, r.tokens[:(i+1)*bt]); got != want {
			return fmt.Errorf("block %d of %s holds %s while a pass may read it", i, want, got)
		}
	}
	if h.Device+h.Host > valid {
		return fmt.Errorf("hit %+v, but %d tokens are valid", h, valid)
	}
	for i, b := range r.l.Blocks() {
		if i*bt >= valid {
			break
		}
		if got, want := w.tiers[kv.Device][b], text(r.salt, r.tokens[:min((i+1)*bt, valid)]); got != want {
			return fmt.Errorf("block %d of %s holds %s", i, want, got)
		}
	}
	return nil
}

// readIndex proves that what is known is written.
func (w *world) readIndex() (err error) {
	w.c.index.Each(func(e *prefix.Entry) {
		var tokens []int32
		for p := e; p != nil; p = p.Parent {
			tokens = append(append([]int32(nil), p.Tokens...), tokens...)
		}
		for t := range kv.NumTiers {
			if at := e.At[t]; at.State == prefix.Here && !strings.HasSuffix(w.tiers[t][at.Block], fmt.Sprint(tokens)) {
				err = fmt.Errorf("invariant 4: %v block %d should hold %v, holds %s", t, at.Block, tokens, w.tiers[t][at.Block])
			}
		}
	})
	return err
}

var errInjected = errors.New("injected")
