package cache

import (
	"strings"
	"testing"

	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

// busyWorld is a world in which everything is going on: a lease that waits for a load, one that has computed, a store
// under way, cached blocks in both tiers.
func busyWorld(t *testing.T) *world {
	w, err := newWorld(Config{DeviceBlocks: 12, HostBlocks: 12})
	if err != nil {
		t.Fatal(err)
	}
	open := func(tokens string) *runner {
		r := &runner{tokens: numbers(tokens)}
		if r.l, err = w.c.Open("", r.tokens, 100); err != nil {
			t.Fatal(err)
		}
		w.live = append(w.live, r)
		return r
	}
	compute := func(r *runner) {
		if err := r.l.Extend(len(r.tokens)); err != nil {
			t.Fatal(err)
		}
		w.write(r, len(r.tokens))
	}
	compute(open("1-13"))
	w.live[0].l.Close()
	w.live = nil
	w.drain()
	for len(w.flying) > 0 {
		w.land(0, nil)
	}
	if err := w.c.Place("", numbers("1-12"), OnlyHost); err != nil {
		t.Fatal(err)
	}
	open("1-9") // waits for two loads
	compute(open("21-30"))
	w.drain()
	if err := w.check(); err != nil || w.c.Pending() != 4 {
		t.Fatalf("%v; %d moves", err, w.c.Pending())
	}
	return w
}

func (w *world) anyFlight(why purpose) (kv.MoveID, *flight) {
	for id, f := range w.c.flights {
		if f.why == why {
			return id, f
		}
	}
	panic("no such flight")
}

// TestCheckFires breaks each invariant on purpose.
func TestCheckFires(t *testing.T) {
	for name, breakIt := range map[string]func(*world){
		"invariant 1: device block": func(w *world) { w.c.pools[kv.Device].Take(nil, 1) },
		"invariant 1: host block":   func(w *world) { w.c.pools[kv.Host].Take(nil, 1) },
		"has two holders":           func(w *world) { w.live[1].l.blocks = append(w.live[1].l.blocks, w.live[0].l.blocks[0]) },
		"is pinned":                 func(w *world) { w.c.pin(w.live[1].l.shared[0], kv.Device) },
		"has lost its source":       func(w *world) { _, f := w.anyFlight(loading); w.c.unpin(f.entry, kv.Host) },
		"invariant 4: by tier":      func(w *world) { w.c.saving++ },
		"but written in no tier":    func(w *world) { _, f := w.anyFlight(storing); w.c.set(f.entry, kv.Device, prefix.Place{}) },
		"is not in the list":        func(w *world) { _, f := w.anyFlight(loading); delete(w.c.loads, f.entry); w.live[0].l.loads-- },
		"that does not want it":     func(w *world) { _, f := w.anyFlight(storing); f.waiters = append(f.waiters, w.live[0].l) },
		"does not wait":             func(w *world) { _, f := w.anyFlight(loading); f.waiters = nil },
		"counts 3 loads":            func(w *world) { w.live[0].l.loads++ },
		"a closed lease":            func(w *world) { w.live[0].l.closed = true },
		"valid tokens":              func(w *world) { w.live[1].l.valid = 0 },
		"are named":                 func(w *world) { w.live[1].l.named = 9 },
		"does not continue":         func(w *world) { s := w.live[1].l.shared; s[0], s[1] = s[1], s[0] },
		"but its content":           func(w *world) { w.live[1].l.blocks[0]++ },
		"in no tier":                func(w *world) { w.c.index.Add(kv.Key{1}, nil, []int32{1, 2, 3, 4}) },
		"a block of 1 tokens":       func(w *world) { w.c.index.Add(kv.Key{1}, nil, []int32{1}) },
		"invariant 4: host block":   func(w *world) { w.tiers[kv.Host][w.cachedHost()] = "rubbish" },
		"kv/prefix: block":          func(w *world) { w.live[1].l.shared[0].At[kv.Device].State = prefix.Absent },
		"leased, should be cached":  func(w *world) { w.c.pools[kv.Host].Use(w.cachedHost(), true) },
	} {
		w := busyWorld(t)
		breakIt(w)
		if err := w.check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s broken: check says %v", name, err)
		}
	}
}

// cachedHost is a host block that nobody uses.
func (w *world) cachedHost() (b kv.BlockID) {
	w.c.index.Each(func(e *prefix.Entry) {
		if e.At[kv.Host].State == prefix.Here && e.Pins(kv.Host) == 0 {
			b = e.At[kv.Host].Block
		}
	})
	return b
}

func TestMisuse(t *testing.T) {
	for name, f := range map[string]func(*world){
		"commit of 8 tokens: 10 were valid": func(w *world) { r := w.live[1]; r.l.Commit(r.tokens, 8) },
		"commit of 11 tokens":               func(w *world) { r := w.live[1]; r.l.Commit(r.tokens, 11) },
		"2 on their way":                    func(w *world) { r := w.live[0]; r.l.Commit(r.tokens, 8) },
		"closed true":                       func(w *world) { r := w.live[1]; r.l.Close(); r.l.Commit(r.tokens, 10) },
		"a closed lease is extended":        func(w *world) { r := w.live[1]; r.l.Close(); _ = r.l.Extend(1) },
		"is done but not under way":         func(w *world) { id := w.flying[0].ID; w.c.Done(id, nil); w.c.Done(id, nil) },
		"move 9999 is done":                 func(w *world) { w.c.Done(9999, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			w := busyWorld(t)
			defer func() {
				if got, ok := recover().(string); !ok || !strings.Contains(got, name) {
					t.Fatalf("panicked with %q", got)
				}
			}()
			f(w)
		})
	}
}

func TestConfig(t *testing.T) {
	good := Config{Layout: kv.Layout{Layers: 1, KVHeads: 1, HeadDim: 8, BlockTokens: 16, DType: 1}, DeviceBlocks: 1}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"power of two":    func(c *Config) { c.Layout.BlockTokens = 3 },
		"0 device blocks": func(c *Config) { c.DeviceBlocks = 0 },
		"-1 host blocks":  func(c *Config) { c.HostBlocks = -1 },
		`"oldest"`:        func(c *Config) { c.Eviction = "oldest" },
		"write policy 3":  func(c *Config) { c.Write = 3 },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
