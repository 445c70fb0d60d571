package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"larder/internal/infer"
	"larder/internal/kv"
)

func TestPlacement(t *testing.T) { bothSchedules(t, testPlacement) }

func testPlacement(t *testing.T, s setup) {
	r := newRig(t, s, nil)
	ctx := context.Background()
	q := newRequest("a", tokens(1, 42), 1)
	if err := r.Place(ctx, "", q.Tokens, infer.OnlyHost); !errors.Is(err, infer.ErrNotCached) {
		t.Errorf("placing what is not there: %v", err)
	}
	r.generate(q)
	for _, c := range []struct {
		to   infer.Placement
		want infer.Residency
		hit  infer.Cached
	}{
		{infer.OnlyHost, infer.Residency{Blocks: 10, Host: 10}, infer.Cached{Host: 40}},
		{infer.OnlyDevice, infer.Residency{Blocks: 10, Device: 10}, infer.Cached{Device: 40}},
		{infer.Nowhere, infer.Residency{Blocks: 10, Missing: 10}, infer.Cached{}},
	} {
		if err := r.Place(ctx, "", q.Tokens, c.to); err != nil {
			t.Fatalf("place %d: %v", c.to, err)
		}
		c.want.BlockBytes = r.cfg.Cache.Layout.BlockBytes()
		if got, err := r.Residency(ctx, "", q.Tokens); err != nil || got != c.want {
			t.Errorf("after place %d: %+v, %v, want %+v", c.to, got, err, c.want)
		}
		got := r.generate(q)
		if err := got.right(q); err != nil || got.usage.Cached != c.hit {
			t.Errorf("after place %d: cached %+v, want %+v; %v", c.to, got.usage.Cached, c.hit, err)
		}
	}
	if err := r.Place(ctx, "", q.Tokens, 9); !errors.Is(err, infer.ErrInvalid) {
		t.Errorf("unknown placement: %v", err)
	}
	r.closed(t)
}

func TestFlush(t *testing.T) { bothSchedules(t, testFlush) }

func testFlush(t *testing.T, s setup) {
	gate := make(chan struct{})
	r := newRig(t, s, func(_ *Config, r *rig) {
		r.runner.onLaunch = func(step int) {
			if step == 3 {
				<-gate
			}
		}
	})
	ctx := context.Background()
	q := newRequest("a", tokens(1, 42), 10)
	done := make(chan error)
	first := make(chan struct{}, 100)
	go func() {
		_, err := r.Generate(ctx, q, func(infer.Event) error { first <- struct{}{}; return nil })
		done <- err
	}()
	<-first
	impatient := make(chan error)
	go func() { impatient <- r.Flush(ctx) }()
	limited, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	patient := make(chan error)
	go func() { patient <- r.Flush(limited) }()
	for len(r.queuedOrders()) < 2 {
		yieldProcessor()
	}
	close(gate)
	if err := <-impatient; !errors.Is(err, infer.ErrInUse) {
		t.Errorf("flush with a request running: %v", err)
	}
	if err := errors.Join(<-done, <-patient); err != nil {
		t.Error(err)
	}
	res, err := r.Residency(ctx, "", q.Tokens)
	if err != nil || res.Missing != res.Blocks {
		t.Errorf("after the flush: %+v, %v", res, err)
	}
	r.closed(t)
}

// TestOrdersAtOnce: who has got the last token may place or flush what it used, though a step that was launched with it
// is still under way.
func TestOrdersAtOnce(t *testing.T) {
	s := plain()
	s.overlap = true
	q := newRequest("a", tokens(5, 30), 60)
	said, _ := answer(q, testEOS)
	q.StopIDs = []int32{said[7]}
	for name, order := range map[string]func(*rig) error{
		"place": func(r *rig) error { return r.Place(context.Background(), "", q.Tokens, infer.OnlyHost) },
		"flush": func(r *rig) error { return r.Flush(context.Background()) },
	} {
		done := make(chan error)
		under := 0
		var ordering *rig
		r := newRig(t, s, func(c *Config, r *rig) {
			heard := c.Listener.RequestDone
			c.Listener.RequestDone = func(i RequestInfo) {
				heard(i)
				under = ordering.sched.Leaving()
				go func() { done <- order(ordering) }()
				for len(ordering.queuedOrders()) == 0 {
					yieldProcessor()
				}
			}
			ordering = r
		})
		if err := r.generate(q).right(q); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		r.closed(t)
		if under != 1 {
			t.Errorf("%s: %d requests were leaving, want 1", name, under)
		}
	}
}

func (e *Engine) queuedOrders() []*order {
	e.inbox.mu.Lock()
	defer e.inbox.mu.Unlock()
	return e.inbox.next.orders
}

func TestStatsAddUp(t *testing.T) { bothSchedules(t, testStatsAddUp) }

func testStatsAddUp(t *testing.T, s setup) {
	r := newRig(t, s, nil)
	var prompt, made uint64
	for i := range 4 {
		q := newRequest(fmt.Sprint(i), tokens(i/2, 33), 4)
		if err := r.generate(q).right(q); err != nil {
			t.Error(err)
		}
		prompt, made = prompt+33, made+4
	}
	st, err := r.Stats(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	hits := st.Tiers[kv.Device].HitTokens + st.Tiers[kv.Host].HitTokens
	if st.PromptTokens != prompt || st.GeneratedTokens != made || st.ComputedTokens+hits != prompt || hits != 64 || st.Requests != 4 {
		t.Errorf("stats %+v", st)
	}
	if st.InvariantChecks != st.Steps || st.Steps != 16 {
		t.Errorf("%d checks in %d steps, want 16", st.InvariantChecks, st.Steps)
	}
	if err := r.Check(context.Background()); err != nil {
		t.Error(err)
	}
	r.closed(t)
	stored := 0
	for _, m := range r.log.moves {
		stored += m.Done[kv.Device][kv.Host]
	}
	if uint64(stored) != st.Tiers[kv.Host].StoredBlocks {
		t.Errorf("%d stores heard, %d counted", stored, st.Tiers[kv.Host].StoredBlocks)
	}
}

func TestConfigValidate(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no runner":    func(c *Config) { c.Runner = nil },
		"no mover":     func(c *Config) { c.Mover = nil },
		"vocab":        func(c *Config) { c.Vocab = 0 },
		"chunk":        func(c *Config) { c.StepTokens = c.MaxRunning - 1 },
		"queue":        func(c *Config) { c.MaxQueued = 0 },
		"running":      func(c *Config) { c.MaxRunning = 0 },
		"blocks":       func(c *Config) { c.Cache.DeviceBlocks = 0 },
		"block tokens": func(c *Config) { c.Cache.Layout.BlockTokens = 3 },
		"policy":       func(c *Config) { c.Policy = 9 },
		"least load":   func(c *Config) { c.MinLoadTokens = -1 },
	} {
		cfg, _, _, _ := plain().config(1)
		change(&cfg)
		if _, err := New(cfg); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
