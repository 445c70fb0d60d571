package echo

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"larder/internal/infer"
)

// collect runs r and gathers its tokens and events; it checks what every engine promises about events.
func collect(t *testing.T, e *Engine, ctx context.Context, r *infer.Request) ([]int32, []infer.Event, infer.Usage, error) {
	t.Helper()
	var ids []int32
	var all []infer.Event
	u, err := e.Generate(ctx, r, func(ev infer.Event) error {
		if len(all) > 0 && all[len(all)-1].Finish != infer.NotFinished {
			t.Errorf("an event after the last one: %+v", ev)
		}
		ids = append(ids, ev.Tokens...)
		all = append(all, ev)
		if ev.Usage.CompletionTokens != len(ids) {
			t.Errorf("usage says %d tokens after %d", ev.Usage.CompletionTokens, len(ids))
		}
		return nil
	})
	if err == nil && (len(all) == 0 || all[len(all)-1].Finish == infer.NotFinished) {
		t.Error("no last event")
	}
	if st, _ := e.Stats(ctx); st.Running != 0 || st.Waiting != 0 {
		t.Errorf("left behind: %+v", st)
	}
	return ids, all, u, err
}

func TestGenerate(t *testing.T) {
	for name, c := range map[string]struct {
		cfg    Config
		req    infer.Request
		want   []int32
		finish infer.FinishReason
		stop   int32
		events int
	}{
		"circle":       {Config{}, infer.Request{Tokens: []int32{1, 2}, MaxNew: 5}, []int32{1, 2, 1, 2, 1}, infer.FinishLength, -1, 5},
		"stop id":      {Config{}, infer.Request{Tokens: []int32{1, 2}, MaxNew: 5, StopIDs: []int32{2}}, []int32{1, 2}, infer.FinishStop, 2, 2},
		"min":          {Config{}, infer.Request{Tokens: []int32{1, 2}, MaxNew: 5, StopIDs: []int32{2}, MinNew: 2}, []int32{1, 2, 1, 2}, infer.FinishStop, 2, 4},
		"eos":          {Config{EOS: []int32{2}}, infer.Request{Tokens: []int32{1, 2}, MaxNew: 5}, []int32{1, 2}, infer.FinishStop, 2, 2},
		"eos ignored":  {Config{EOS: []int32{2}}, infer.Request{Tokens: []int32{1, 2}, MaxNew: 3, IgnoreEOS: true}, []int32{1, 2, 1}, infer.FinishLength, -1, 3},
		"context":      {Config{ContextLen: 4}, infer.Request{Tokens: []int32{1, 2}, MaxNew: 5}, []int32{1, 2}, infer.FinishLength, -1, 2},
		"large events": {Config{EventTokens: 3}, infer.Request{Tokens: []int32{1, 2}, MaxNew: 5}, []int32{1, 2, 1, 2, 1}, infer.FinishLength, -1, 2},
	} {
		e := New(c.cfg)
		ids, all, u, err := collect(t, e, t.Context(), &c.req)
		if err != nil || !slices.Equal(ids, c.want) || len(all) != c.events {
			t.Errorf("%s: %v in %d events, want %v in %d (%v)", name, ids, len(all), c.want, c.events, err)
			continue
		}
		last := all[len(all)-1]
		if last.Finish != c.finish || last.StopID != c.stop {
			t.Errorf("%s: ended with %v %d", name, last.Finish, last.StopID)
		}
		if u.PromptTokens != len(c.req.Tokens) || u.Computed != u.PromptTokens || u.CompletionTokens != len(ids) || u.Timing.Finished.Before(u.Timing.FirstToken) {
			t.Errorf("%s: usage %+v", name, u)
		}
	}
}

func TestRefuses(t *testing.T) {
	e := New(Config{Vocab: 10, ContextLen: 4})
	for name, c := range map[string]struct {
		req  infer.Request
		want error
	}{
		"empty":       {infer.Request{MaxNew: 1}, infer.ErrInvalid},
		"no new":      {infer.Request{Tokens: []int32{1}}, infer.ErrInvalid},
		"out of":      {infer.Request{Tokens: []int32{10}, MaxNew: 1}, infer.ErrInvalid},
		"negative":    {infer.Request{Tokens: []int32{-1}, MaxNew: 1}, infer.ErrInvalid},
		"long prompt": {infer.Request{Tokens: []int32{1, 1, 1, 1}, MaxNew: 1}, infer.ErrTooLong},
	} {
		if _, all, _, err := collect(t, e, t.Context(), &c.req); !errors.Is(err, c.want) || len(all) != 0 {
			t.Errorf("%s: %v after %d events", name, err, len(all))
		}
	}
	e.Close()
	if _, _, _, err := collect(t, e, t.Context(), &infer.Request{Tokens: []int32{1}, MaxNew: 1}); !errors.Is(err, infer.ErrClosed) || !errors.Is(e.Health(t.Context()), infer.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

func TestCancel(t *testing.T) {
	e := New(Config{})
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	_, err := e.Generate(ctx, &infer.Request{Tokens: []int32{1}, MaxNew: 100}, func(ev infer.Event) error {
		if n++; n == 3 {
			cancel()
		} else if n > 3 && ev.Finish != infer.FinishAbort {
			t.Errorf("event %d after the cancellation: %+v", n, ev)
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || n != 4 {
		t.Errorf("cancelled: %v after %d events", err, n)
	}
	mine := errors.New("enough")
	if _, err := e.Generate(t.Context(), &infer.Request{Tokens: []int32{1}, MaxNew: 100}, func(infer.Event) error { return mine }); err != mine {
		t.Errorf("an error of emit came back as %v", err)
	}
	if st, _ := e.Stats(t.Context()); st.Running != 0 || st.Aborted != 2 || st.Requests != 2 {
		t.Errorf("stats %+v", st)
	}
}

// TestQueue fills slots and queue in virtual time, and waits for idleness.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := New(Config{MaxRunning: 2, MaxQueued: 1, TokenTime: time.Second})
		done := make(chan time.Duration, 3)
		start := time.Now()
		for range 3 {
			go func() {
				if _, err := e.Generate(t.Context(), &infer.Request{Tokens: []int32{1}, MaxNew: 4}, func(infer.Event) error { return nil }); err != nil {
					t.Error(err)
				}
				done <- time.Since(start)
			}()
		}
		synctest.Wait()
		if st, _ := e.Stats(t.Context()); st.Running != 2 || st.Waiting != 1 {
			t.Errorf("stats %+v", st)
		}
		if _, err := e.Generate(t.Context(), &infer.Request{Tokens: []int32{1}, MaxNew: 1}, nil); !errors.Is(err, infer.ErrQueueFull) {
			t.Errorf("a fourth request: %v", err)
		}
		if err := e.Flush(t.Context()); !errors.Is(err, infer.ErrInUse) {
			t.Errorf("flush without a deadline: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := e.Flush(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("flush with a short deadline: %v", err)
		}
		long, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := e.Flush(long); err != nil || time.Since(start) != 8*time.Second {
			t.Errorf("flush: %v after %v", err, time.Since(start))
		}
		for i, want := range []time.Duration{4, 4, 8} {
			if got := <-done; got != want*time.Second {
				t.Errorf("request %d took %v, want %d s", i, got, want)
			}
		}
	})
}
