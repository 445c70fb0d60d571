package study

import (
	"context"
	"net/http/httptest"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/engine"
	"larder/internal/kv"
	"larder/internal/kv/cache"
	"larder/internal/loadgen"
	"larder/internal/record"
	"larder/internal/server"
)

// hashes is a device whose KV is one hash a token, chained over all tokens before it: the next token depends on the
// whole prefix, so blocks that were loaded wrongly change the answer. It is the engine's Runner and Mover.
type hashes struct {
	layout kv.Layout
	pools  [kv.NumTiers][]uint64
	batch  *device.Batch
	moved  []kv.Move
	notify chan struct{}
	spoil  bool // break every load
}

func newHashes(l kv.Layout, blocks int) *hashes {
	h := &hashes{layout: l, notify: make(chan struct{}, 1)}
	for t := range h.pools {
		h.pools[t] = make([]uint64, blocks*l.BlockTokens)
	}
	return h
}

func (h *hashes) Launch(b *device.Batch) error { h.batch = b; return nil }

func (h *hashes) Wait() ([]int32, error) {
	var out []int32
	row := 0
	for _, s := range h.batch.Seqs {
		last := uint64(0)
		for pos := s.Context; pos < s.Context+s.Tokens; pos++ {
			if pos > 0 {
				last = *h.slot(s.Blocks, pos-1)
			}
			last = (last ^ uint64(h.batch.IDs[row])) * 0x9E3779B97F4A7C15
			last ^= last >> 29
			*h.slot(s.Blocks, pos) = last
			row++
		}
		if s.Draw != nil {
			out = append(out, int32(last%4000))
		}
	}
	return out, nil
}

func (h *hashes) slot(blocks []kv.BlockID, pos int) *uint64 {
	n := h.layout.BlockTokens
	return &h.pools[kv.Device][int(blocks[pos/n])*n+pos%n]
}

func (h *hashes) Submit(moves []kv.Move) {
	n := h.layout.BlockTokens
	for _, m := range moves {
		dst := h.pools[m.To][int(m.Dst)*n : int(m.Dst+1)*n]
		copy(dst, h.pools[m.From][int(m.Src)*n:int(m.Src+1)*n])
		if h.spoil && m.To == kv.Device {
			dst[n-1]++
		}
	}
	h.moved = append(h.moved, moves...)
	select {
	case h.notify <- struct{}{}:
	default:
	}
}

func (h *hashes) Poll(done func(kv.Move, error)) int {
	moves := h.moved
	h.moved = nil
	for _, m := range moves {
		done(m, nil)
	}
	return len(moves)
}

func (h *hashes) Notify() <-chan struct{} { return h.notify }
func (h *hashes) Pending() int            { return len(h.moved) }

// overEngine runs a study over the real engine, cache, server and load generator.
func overEngine(t *testing.T, c Config, write cache.WritePolicy, spoil bool) (*record.Study, error) {
	t.Helper()
	layout := kv.Layout{Layers: 1, KVHeads: 4, HeadDim: 128, BlockTokens: 16, DType: arch.BF16}
	blocks := c.NeedBlocks(layout)
	h := newHashes(layout, blocks)
	h.spoil = spoil
	e, err := engine.New(engine.Config{
		Runner: h, Mover: h, Vocab: 5000, ContextLen: c.ContextLen(), EOS: []int32{4990},
		Cache:      cache.Config{Layout: layout, Fingerprint: "hashes", DeviceBlocks: blocks, HostBlocks: blocks, Write: write},
		MaxRunning: 64, MaxQueued: 100, StepTokens: 512, CheckSteps: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	tap := NewTap(e)
	srv, err := server.New(server.Config{ServedModelName: "hashes", Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Attach(server.Backend{Generator: tap, Control: e, Model: server.Model{Path: "hashes", VocabSize: 5000, ContextLength: c.ContextLen(), MaxTotal: 1 << 20}}); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(srv.HTTPServer().Handler)
	defer web.Close()
	env := newWorld(16).env()
	env.BaseURL, env.Driver, env.Placer, env.Control, env.Tap, env.Roofline = web.URL, DriverFunc(loadgen.Run), e, e, tap, nil
	s, err := Run(context.Background(), c, env)
	if cerr := e.Close(context.Background()); cerr != nil {
		t.Errorf("close: %v", cerr)
	}
	return s, err
}

// With the pools just as large as NeedBlocks says, the real engine passes every check, however prefixes are shared
// and whenever KV is written to the host.
func TestOverEngine(t *testing.T) {
	for _, x := range []struct {
		prefixes string
		write    cache.WritePolicy
	}{{"own", cache.WriteThrough}, {"one", cache.WriteThrough}, {"2", cache.WriteThrough}, {"own", cache.WriteThroughSelective}, {"own", cache.WriteBack}} {
		c := small()
		c.Repeats, c.Prefixes = 2, x.prefixes
		if x.write == cache.WriteThrough {
			c.Interleave = "batch"
		}
		s, err := overEngine(t, c, x.write, false)
		if err != nil {
			t.Errorf("prefixes %s, write policy %d: %v", x.prefixes, x.write, err)
			if s != nil {
				t.Logf("%+v", s.Checks)
			}
			continue
		}
		for _, r := range s.Rows {
			if !r.Split.Load.OK() || r.Unproven > 0 {
				t.Errorf("%s batch %d: split %+v, %d unproven", r.Arm, r.Batch, r.Split, r.Unproven)
			}
		}
	}
}

// A load that brings wrong KV changes tokens, and the study says so.
func TestSpoiledLoadIsFound(t *testing.T) {
	c := small()
	c.Repeats = 2
	s, err := overEngine(t, c, cache.WriteThrough, true)
	if s == nil || failedCheck(s, checkTokens) == nil {
		t.Fatalf("%v", err)
	}
}
