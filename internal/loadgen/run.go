package loadgen

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"larder/internal/workload"
)

// run is one execution of a workload. Fields are set before the first request and then only read.
type run struct {
	cfg     Config
	limits  Timeouts
	proto   protocol
	dialer  *dialer
	method  *http.Request // what answers are answers to
	start   time.Time
	buffers sync.Pool
}

// Run sends all items at their due times and returns when each has ended, or ctx has. An error means that nothing was
// sent. What happens to a request, however bad, is in its Outcome; when ctx ends early, requests under way are
// classed canceled, the rest too with Sent = NeverSent, and Interrupted is set.
func Run(ctx context.Context, cfg Config, items []workload.Item) (*Result, error) {
	if err := cfg.Validate(items); err != nil {
		return nil, err
	}
	bodies, err := cfg.bodies(items)
	if err != nil {
		return nil, err
	}
	proto, path := protocolOf(cfg.Backend)
	u, err := url.Parse(strings.TrimRight(cfg.BaseURL, "/") + path)
	if err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, limits: cfg.Timeouts.withDefaults(), proto: proto, method: &http.Request{Method: http.MethodPost}}
	r.buffers.New = func() any { return new([readSize]byte) }
	var target string
	if r.dialer, target, err = newDialer(u, r.limits.Connect, http.ProxyFromEnvironment); err != nil {
		return nil, err
	}
	defer r.dialer.close()
	return r.all(ctx, items, r.requests(items, bodies, u.Host, target))
}

// all runs prepared requests.
func (r *run) all(ctx context.Context, items []workload.Item, requests [][]byte) (*Result, error) {
	res := &Result{Outcomes: outcomes(&r.cfg, items)}
	res.Prepared = r.dialer.prepare(ctx, atStart(res.Outcomes, r.cfg.MaxConcurrency))
	watch := newWatchdog(r)
	used := processorTime()
	r.start = time.Now()
	res.Start = r.start
	stop := watch.begin()
	r.dispatch(ctx, res.Outcomes, requests, watch)
	stop()
	res.CPU = processorTime() - used
	res.Interrupted = ctx.Err() != nil
	res.Duration = duration(res.Outcomes)
	return res, nil
}

// atStart is how many connections the first second will want.
func atStart(all []Outcome, most int) int {
	n := 0
	for i := range all {
		if all[i].Due < time.Second {
			n++
		}
	}
	if most > 0 {
		n = min(n, most)
	}
	return n
}

// outcomes prepares one record for each item, with room for its chunks.
func outcomes(cfg *Config, items []workload.Item) []Outcome {
	all := make([]Outcome, len(items))
	for i := range items {
		all[i] = Outcome{Item: &items[i], Due: cfg.due(items, i), Sent: NeverSent, PromptTokens: -1}
		if cfg.Stream {
			all[i].Chunks = make([]Chunk, 0, min(max(items[i].OutputLen, 1), 4096))
		}
	}
	return all
}

var errNeverSent = errors.New("the run ended before it was sent")

// dispatch starts each request at its due time, in order of due times, and waits for all of them.
func (r *run) dispatch(ctx context.Context, all []Outcome, requests [][]byte, watch *watchdog) {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(min(max(all[a].Due-all[b].Due, -1), 1)) })
	slots := newSlots(r.cfg.MaxConcurrency)
	var wg sync.WaitGroup
	for n, i := range order {
		o := &all[i]
		if !waitUntil(ctx, r.start.Add(o.Due)) || !slots.take(ctx) {
			for _, j := range order[n:] {
				all[j].Class, all[j].Err = ClassCanceled, errNeverSent
			}
			break
		}
		o.Slot = r.now()
		wg.Go(func() {
			defer slots.free()
			f := &flight{r: r, o: o}
			f.ctx, f.cancel = context.WithCancelCause(ctx)
			defer watch.add(f)()
			if r.cfg.OnSend != nil {
				r.cfg.OnSend(i)
			}
			f.send(requests[i])
			if r.cfg.OnDone != nil {
				r.cfg.OnDone(i, o)
			}
		})
	}
	wg.Wait()
}

// waitUntil waits for a time; false when ctx ended first.
func waitUntil(ctx context.Context, t time.Time) bool {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// slots caps the requests in flight; nil caps nothing.
type slots chan struct{}

func newSlots(n int) slots {
	if n == 0 {
		return nil
	}
	return make(slots, n)
}

func (s slots) take(ctx context.Context) bool {
	if s == nil {
		return true
	}
	select {
	case s <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s slots) free() {
	if s != nil {
		<-s
	}
}

// duration is from the first intended send to the last end of a request that was sent.
func duration(all []Outcome) time.Duration {
	first, last := time.Duration(-1), time.Duration(0)
	for i := range all {
		if o := &all[i]; o.Sent != NeverSent {
			if first < 0 || o.Due < first {
				first = o.Due
			}
			last = max(last, o.Done)
		}
	}
	return max(last-max(first, 0), 0)
}

// deadline is when a request is overdue, from the start of the run; 0: never. The request's goroutine moves it with
// each token, the watchdog reads it: one atomic store for a token, where a timer would cost a lock.
type deadline struct {
	stage atomic.Int64
	total int64 // fixed before the watchdog sees it
}

func (d *deadline) set(at, limit time.Duration) {
	if limit == 0 {
		d.stage.Store(0)
		return
	}
	d.stage.Store(int64(at + limit))
}

func (d *deadline) overdue(now time.Duration) bool {
	s := d.stage.Load()
	return s != 0 && int64(now) >= s || d.total != 0 && int64(now) >= d.total
}

// watchdog ends overdue requests, so that a hung server can not hang the run.
type watchdog struct {
	r     *run
	every time.Duration
	mu    sync.Mutex
	open  map[*flight]struct{} // guarded by mu
}

func newWatchdog(r *run) *watchdog {
	every := 250 * time.Millisecond
	for _, l := range []time.Duration{r.limits.First, r.limits.Gap, r.limits.Total} {
		if l > 0 {
			every = min(every, max(l/10, time.Millisecond))
		}
	}
	return &watchdog{r: r, every: every, open: map[*flight]struct{}{}}
}

// add puts a request under watch; the returned function takes it out.
func (w *watchdog) add(f *flight) func() {
	if t := w.r.limits.Total; t > 0 {
		f.limit.total = int64(w.r.now() + t)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[f] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, f)
	}
}

// begin starts the watch; the returned function ends it and waits.
func (w *watchdog) begin() func() {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(w.every)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				w.check(w.r.now())
			}
		}
	}()
	return func() { close(quit); <-done }
}

func (w *watchdog) check(now time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range w.open {
		if f.limit.overdue(now) {
			f.cancel(errOverdue)
		}
	}
}
