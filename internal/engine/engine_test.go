package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/kv/cache"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOneRequest(t *testing.T) { bothSchedules(t, testOneRequest) }

func testOneRequest(t *testing.T, s setup) {
	r := newRig(t, s, nil)
	q := newRequest("a", tokens(1, 30), 10)
	if err := r.generate(q).right(q); err != nil {
		t.Error(err)
	}
	again := r.generate(q)
	if err := again.right(q); err != nil {
		t.Error(err)
	}
	if want := (infer.Cached{Device: 28}); again.usage.Cached != want || again.usage.Computed != 2 {
		t.Errorf("second time: %+v cached, %d computed, want 28 of 30 from the device", again.usage.Cached, again.usage.Computed)
	}
	r.closed(t)
	if len(r.log.steps) != 20 || r.log.steps[0].PrefillTokens != 30 || r.log.steps[1].DecodeTokens != 1 {
		t.Errorf("steps heard: %+v", r.log.steps)
	}
}

func TestNextTurnReusesTheReply(t *testing.T) { bothSchedules(t, testNextTurnReusesTheReply) }

func testNextTurnReusesTheReply(t *testing.T, s setup) {
	r := newRig(t, s, nil)
	q := newRequest("a", tokens(1, 20), 13)
	c := r.generate(q)
	next := newRequest("b", append(append([]int32{}, q.Tokens...), c.tokens...), 3)
	c = r.generate(next)
	if err := c.right(next); err != nil {
		t.Error(err)
	}
	if c.usage.Cached.Device != 32 { // 33 tokens, of which the last was never computed
		t.Errorf("cached %+v, want 32 tokens of prompt and reply", c.usage.Cached)
	}
	r.closed(t)
}

func TestStops(t *testing.T) { bothSchedules(t, testStops) }

func testStops(t *testing.T, s setup) {
	r := newRig(t, s, nil)
	q := newRequest("a", tokens(5, 9), 60)
	said, _ := answer(q, testEOS)
	q.StopIDs = []int32{said[7]}
	first := r.generate(q)
	if err := first.right(q); err != nil {
		t.Error(err)
	}
	if first.finish != infer.FinishStop || first.stopID != said[7] {
		t.Errorf("finish %d at %d, want a stop at %d", first.finish, first.stopID, said[7])
	}
	q.MinNew = 20
	if c := r.generate(q); c.right(q) != nil || len(c.tokens) < 20 {
		t.Errorf("with min 20: %d tokens, %v", len(c.tokens), c.right(q))
	}
	r.closed(t)
}

func TestBadRequests(t *testing.T) {
	r := newRig(t, plain(), nil)
	for _, c := range []struct {
		q    *infer.Request
		want error
		says string
	}{
		{newRequest("empty", nil, 1), infer.ErrInvalid, "no tokens"},
		{newRequest("id", []int32{fakeVocab}, 1), infer.ErrInvalid, "vocabulary"},
		{newRequest("context", make([]int32, 4096), 1), infer.ErrTooLong, "context length"},
		{newRequest("pool", make([]int32, 250), 8), infer.ErrTooLong, "KV cache"},
	} {
		got := r.generate(c.q)
		if !errors.Is(got.err, c.want) || !strings.Contains(got.err.Error(), c.says) || got.finals+len(got.tokens) != 0 {
			t.Errorf("%s: %v and %d events, want %v and none", c.q.ID, got.err, got.finals, c.want)
		}
	}
	fits := newRequest("fits", tokens(2, 249), 8) // the last token needs no KV
	if err := r.generate(fits).right(fits); err != nil {
		t.Error(err)
	}
	r.closed(t)
}

func TestQueueFull(t *testing.T) { bothSchedules(t, testQueueFull) }

func testQueueFull(t *testing.T, s setup) {
	s.running, s.stepTokens = 1, 16
	gate := make(chan struct{})
	r := newRig(t, s, func(c *Config, r *rig) {
		c.MaxQueued = 2
		r.runner.onLaunch = func(int) { <-gate }
	})
	const n = 12
	results := make(chan *collector, n)
	for i := range n {
		q := newRequest(fmt.Sprint(i), tokens(i, 10), 2)
		go func() {
			c := r.generate(q)
			if c.err == nil {
				c.err = c.right(q)
			}
			results <- c
		}()
	}
	// One runs, at most three wait in the inbox and two in the queue; the others hear so while the device is busy.
	full := 0
	for full < n-6 {
		if c := <-results; !errors.Is(c.err, infer.ErrQueueFull) {
			t.Fatalf("while the queue is full: %v", c.err)
		}
		full++
	}
	close(gate)
	for range n - full {
		if c := <-results; c.err != nil && !errors.Is(c.err, infer.ErrQueueFull) {
			t.Error(c.err)
		}
	}
	r.closed(t)
}

func TestCancelAndFailingReader(t *testing.T) { bothSchedules(t, testCancelAndFailingReader) }

func testCancelAndFailingReader(t *testing.T, s setup) {
	ctx, cancel := context.WithCancel(context.Background())
	var first atomic.Bool // the request that is cancelled runs
	first.Store(true)
	r := newRig(t, s, func(_ *Config, r *rig) {
		r.runner.onLaunch = func(step int) {
			for step >= 8 && first.Load() && !r.inbox.full.Load() { // until the cancellation is there
				yieldProcessor()
			}
		}
	})
	c := &collector{}
	q := newRequest("a", tokens(1, 30), 200)
	c.usage, c.err = r.Generate(ctx, q, func(e infer.Event) error {
		err := c.emit(e)
		if len(c.tokens) >= 5 {
			cancel()
		}
		return err
	})
	first.Store(false)
	if n := len(c.tokens); !errors.Is(c.err, context.Canceled) || c.finals != 1 || c.finish != infer.FinishAbort || n < 5 || n > 8 {
		t.Errorf("cancelled: %v, %d last events, finish %d, %d tokens", c.err, c.finals, c.finish, len(c.tokens))
	}
	gone := errors.New("the reader is gone")
	calls := 0
	_, err := r.Generate(context.Background(), q, func(infer.Event) error { calls++; return gone })
	if !errors.Is(err, gone) || calls != 1 {
		t.Errorf("failing reader: %v after %d calls", err, calls)
	}
	if _, err := r.Generate(ctx, q, c.emit); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	r.closed(t)
}

func TestCancelWhileLoading(t *testing.T) { bothSchedules(t, testCancelWhileLoading) }

func testCancelWhileLoading(t *testing.T, s setup) {
	r := newRig(t, s, nil)
	q := newRequest("a", tokens(1, 60), 2)
	r.generate(q)
	if err := r.Place(context.Background(), "", q.Tokens, infer.OnlyHost); err != nil {
		t.Fatal(err)
	}
	// On the loop, between two steps, the mover stops; then the request is seen loading and cancelled.
	r.onLoop(t, func() { r.mover.stuck = true })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan *collector)
	go func() { done <- r.generateUntil(ctx, newRequest("b", q.Tokens, 2)) }()
	for loading := 0; loading == 0; {
		st, err := r.Stats(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		loading = st.Loading
	}
	other := newRequest("c", tokens(9, 40), 5) // does not wait for the loads of another
	if err := r.generate(other).right(other); err != nil {
		t.Error(err)
	}
	cancel()
	if c := <-done; !errors.Is(c.err, context.Canceled) {
		t.Errorf("cancelled while loading: %v", c.err)
	}
	r.onLoop(t, func() { r.mover.stuck = false; r.mover.ring() })
	if err := r.generate(q).right(q); err != nil {
		t.Error(err)
	}
	r.closed(t)
}

// onLoop runs f on the loop, between two steps.
func (r *rig) onLoop(t testing.TB, f func()) {
	t.Helper()
	if err := r.ask(context.Background(), func() (bool, error) { f(); return true, nil }); err != nil {
		t.Fatal(err)
	}
}

func TestCancelStorm(t *testing.T) { bothSchedules(t, testCancelStorm) }

func testCancelStorm(t *testing.T, s setup) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s.deviceBlocks, s.slowMoves, s.moveFailures, s.write = 52, true, 0.1, cache.WriteBack
	r := newRig(t, s, nil)
	requests := stream(rand.New(rand.NewPCG(seed, 1)), 60)
	var wg sync.WaitGroup
	for i, q := range requests {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			c := &collector{}
			c.usage, c.err = r.Generate(ctx, q, func(e infer.Event) error {
				if i%3 == 0 && len(c.tokens) > i%7 {
					cancel()
				}
				if i%3 == 1 && len(c.tokens) > i%5 {
					return errors.Join(c.emit(e), errMove)
				}
				return c.emit(e)
			})
			if i%3 == 2 {
				if err := c.right(q); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		})
	}
	wg.Wait()
	r.closed(t)
}

func TestDeviceFailure(t *testing.T) { bothSchedules(t, testDeviceFailure) }

func testDeviceFailure(t *testing.T, s setup) {
	broken := errors.New("it burns")
	r := newRig(t, s, func(c *Config, r *rig) {
		r.runner.fail = func(step int) error {
			if step == 5 {
				return broken
			}
			return nil
		}
	})
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() {
			c := r.generate(newRequest(fmt.Sprint(i), tokens(i, 40), 100))
			if !errors.Is(c.err, infer.ErrDevice) || !errors.Is(c.err, broken) {
				t.Errorf("request %d: %v, want the device's error", i, c.err)
			}
		})
	}
	wg.Wait()
	ctx := context.Background()
	if err := r.Health(ctx); !errors.Is(err, infer.ErrDevice) {
		t.Errorf("health: %v", err)
	}
	if c := r.generate(newRequest("late", tokens(1, 3), 1)); !errors.Is(c.err, infer.ErrDevice) || c.finals != 0 {
		t.Errorf("a request after the failure: %v", c.err)
	}
	if st, err := r.Stats(ctx); err != nil || st.Running+st.Waiting+st.Loading != 0 || st.Tiers[kv.Device].Leased != 0 {
		t.Errorf("after the failure: %v, %+v", err, st)
	}
	r.closed(t)
}

func TestNaNLogitsEndOneRequest(t *testing.T) { bothSchedules(t, testNaNLogitsEndOneRequest) }

func testNaNLogitsEndOneRequest(t *testing.T, s setup) {
	r := newRig(t, s, func(c *Config, r *rig) { c.Runner = &nanRunner{fakeRunner: r.runner} })
	if c := r.generate(newRequest("bad", []int32{66, 66, 66}, 5)); !errors.Is(c.err, infer.ErrDevice) || c.finish != infer.FinishAbort {
		t.Errorf("NaN logits: %v, finish %d", c.err, c.finish)
	}
	good := newRequest("good", tokens(1, 9), 5)
	if err := r.generate(good).right(good); err != nil {
		t.Error(err)
	}
	r.closed(t)
}

// nanRunner finds no token for a prompt that starts with 66 66.
type nanRunner struct{ *fakeRunner }

func (r *nanRunner) Wait() ([]int32, error) {
	ids := r.queue[0].IDs
	bad := len(ids) > 1 && ids[0] == 66 && ids[1] == 66
	tokens, err := r.fakeRunner.Wait()
	if bad {
		tokens[0] = -1
	}
	return tokens, err
}

func TestCloseDrains(t *testing.T) { bothSchedules(t, testCloseDrains) }

func testCloseDrains(t *testing.T, s setup) {
	gate := make(chan struct{})
	r := newRig(t, s, func(c *Config, r *rig) { r.runner.onLaunch = func(int) { <-gate } })
	done := make(chan error)
	q := newRequest("a", tokens(1, 30), 20)
	go func() { done <- r.generate(q).right(q) }()
	gate <- struct{}{}
	closed := make(chan error)
	go func() { closed <- r.Close(context.Background()) }()
	for !r.inbox.shut.Load() {
		yieldProcessor()
	}
	if c := r.generate(newRequest("late", tokens(1, 3), 1)); !errors.Is(c.err, infer.ErrClosed) {
		t.Errorf("while draining: %v", c.err)
	}
	close(gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if err := r.Health(context.Background()); !errors.Is(err, infer.ErrClosed) {
		t.Errorf("health after close: %v", err)
	}
	r.closed(t)
}

func TestCloseAborts(t *testing.T) { bothSchedules(t, testCloseAborts) }

func testCloseAborts(t *testing.T, s setup) {
	r := newRig(t, s, nil)
	r.onLoop(t, func() { r.mover.stuck = true })
	done := make(chan *collector)
	started := make(chan struct{}, 1000)
	go func() {
		c := &collector{}
		c.usage, c.err = r.Generate(context.Background(), newRequest("a", tokens(1, 30), 200), func(e infer.Event) error {
			select {
			case started <- struct{}{}:
			default:
			}
			return c.emit(e)
		})
		done <- c
	}()
	<-started
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("close: %v", err)
	}
	if c := <-done; c.err != nil && !errors.Is(c.err, infer.ErrClosed) || c.finals != 1 {
		t.Errorf("aborted: %v, %d last events", c.err, c.finals)
	}
	if n := len(r.runner.queue); n > 0 {
		t.Errorf("%d passes were left behind on the device", n)
	}
	if err := r.Flush(context.Background()); !errors.Is(err, infer.ErrClosed) {
		t.Errorf("flush after close: %v", err)
	}
}

// TestSlowReader: the loop goes on while a reader sleeps in its callback; the reader finds all tokens later.
func TestSlowReader(t *testing.T) {
	r := newRig(t, plain(), nil)
	q := newRequest("slow", tokens(1, 30), 50)
	awake, asleep := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		c := &collector{}
		c.usage, c.err = r.Generate(context.Background(), q, func(e infer.Event) error {
			if len(c.tokens) == 0 {
				close(asleep)
				<-awake
			}
			return c.emit(e)
		})
		done <- c.right(q)
	}()
	<-asleep
	for i := range 3 {
		other := newRequest(fmt.Sprint(i), tokens(i+2, 20), 60)
		if err := r.generate(other).right(other); err != nil {
			t.Error(err)
		}
	}
	close(awake)
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.closed(t)
}
