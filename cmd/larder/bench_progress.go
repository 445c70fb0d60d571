package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"larder/internal/loadgen"
	"larder/internal/stats"
	"larder/internal/workload"
)

// measure runs the workload with a progress display.
func (c *benchCmd) measure(ctx context.Context, cfg loadgen.Config, items []workload.Item, log io.Writer) (*loadgen.Result, error) {
	if !c.Quiet {
		bar := newProgress(log, "bench")
		defer bar.done()
		t := &tally{bar: bar, all: len(items), start: time.Now()}
		cfg.OnSend = func(int) { t.sent() }
		cfg.OnDone = func(_ int, o *loadgen.Outcome) { t.add(o) }
	}
	return loadgen.Run(ctx, cfg, items)
}

// tally counts requests for the progress display. Safe for concurrent use.
type tally struct {
	bar   *progress
	all   int
	start time.Time

	mu        sync.Mutex
	open      int       // in flight, guarded by mu
	done, bad int       // guarded by mu
	recent    []float64 // TTFT in ms of the last recentKept, a ring. Guarded by mu
	next      int       // where the ring goes on, guarded by mu
	shown     time.Time // guarded by mu
}

const (
	recentKept = 512
	showEvery  = 100 * time.Millisecond // sorting for each of thousands of answers a second would cost the run
)

func (t *tally) sent() {
	t.mu.Lock()
	t.open++
	t.mu.Unlock()
}

func (t *tally) add(o *loadgen.Outcome) {
	t.mu.Lock()
	t.done++
	t.open--
	if !o.OK() {
		t.bad++
	} else if d, ok := o.TTFT(); ok {
		t.keep(float64(d) / 1e6)
	}
	now := time.Now()
	if now.Sub(t.shown) < showEvery && t.done < t.all {
		t.mu.Unlock()
		return
	}
	t.shown = now
	text, share := t.text(now.Sub(t.start)), float64(t.done)/float64(t.all)
	t.mu.Unlock()
	t.bar.update(share, text)
}

// keep adds a latency to the ring; mu is held.
func (t *tally) keep(ms float64) {
	if len(t.recent) < recentKept {
		t.recent = append(t.recent, ms)
		return
	}
	t.recent[t.next] = ms
	t.next = (t.next + 1) % recentKept
}

// text is one line about the run so far; mu is held.
func (t *tally) text(took time.Duration) string {
	text := fmt.Sprintf("%d of %d, %d failed, %d in flight, %.1f/s", t.done, t.all, t.bad, t.open, float64(t.done)/max(took.Seconds(), 1e-9))
	if len(t.recent) > 0 {
		sorted := slices.Sorted(slices.Values(t.recent))
		text += fmt.Sprintf(", TTFT p50 %.4g p99 %.4g ms", stats.Percentile(sorted, 50).Or(0), stats.Percentile(sorted, 99).Or(0))
	}
	return text + fmt.Sprintf(", ETA %v", (took/time.Duration(t.done)*time.Duration(t.all-t.done)).Round(time.Second))
}
