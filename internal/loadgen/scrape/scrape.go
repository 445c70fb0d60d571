// Package scrape reads a server's /metrics while a benchmark runs: once before, once a second, once after. It turns the
// names of SGLang, vLLM and larder into one vocabulary and gives differences only, since counters started before we
// came. It knows no request and judges nothing.
//
// It never disturbs the run: one connection of its own, one question at a time, a short limit on each, and a tick is
// dropped rather than queued when the server is slow to answer.
//
// Start at Begin.
package scrape

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	every     = time.Second
	readLimit = 2 * time.Second
	pageLimit = 16 << 20
)

// Endpoint is a server's /metrics. Safe for concurrent use.
type Endpoint struct {
	url    string
	header http.Header
	client *http.Client
}

// New is the endpoint of a server given by its root URL; header goes with each question.
func New(base string, header http.Header) *Endpoint {
	t := &http.Transport{MaxConnsPerHost: 1, IdleConnTimeout: 10 * time.Second}
	if u, err := url.Parse(base); err == nil && !loopback(u.Hostname()) {
		t.Proxy = http.ProxyFromEnvironment
	}
	return &Endpoint{strings.TrimRight(base, "/") + "/metrics", header, &http.Client{Transport: t}}
}

func loopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}

// Close lets go of the connection.
func (e *Endpoint) Close() { e.client.CloseIdleConnections() }

// Read asks once.
func (e *Endpoint) Read(ctx context.Context) (*Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url, nil)
	if err != nil {
		return nil, err
	}
	if e.header != nil {
		req.Header = e.header.Clone()
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("GET /metrics: %w", unwrapURL(err))
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: %s", resp.Status)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, pageLimit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("GET /metrics: %w", err)
	case len(b) > pageLimit:
		return nil, fmt.Errorf("GET /metrics: more than %d MiB", pageLimit>>20)
	}
	s, err := Parse(string(b))
	if err != nil {
		return nil, fmt.Errorf("GET /metrics: %w", err)
	}
	s.At = time.Now()
	return s, nil
}

// unwrapURL takes the URL off an error that names it a second time.
func unwrapURL(err error) error {
	if ue, ok := err.(*url.Error); ok {
		return ue.Err
	}
	return err
}

// Report is what a server counted during a run.
type Report struct {
	Reason string `json:"reason,omitempty"` // why there is nothing else
	Kind   string `json:"kind,omitempty"`   // whose names: larder, sglang or vllm

	Delta   Counts           `json:"delta,omitempty"`
	Gauges  map[string]Gauge `json:"gauges,omitempty"`
	Samples int              `json:"samples"`          // readings between the first and the last
	Missed  int              `json:"missed,omitempty"` // readings that failed
	Reset   []string         `json:"reset,omitempty"`  // counters that went down: the server was started again
	Points  []Point          `json:"points,omitempty"`
}

// Gauge is a gauge over the readings during the run.
type Gauge struct {
	Mean float64 `json:"mean"`
	Max  float64 `json:"max"`
	N    int     `json:"n"`
}

// Point is one reading during the run.
type Point struct {
	AtS   float64 `json:"at_s"` // from Begin
	State State   `json:"state"`
}

// Watch is a scrape under way.
type Watch struct {
	end    *Endpoint
	start  *Snapshot
	began  time.Time
	reason string
	quit   chan struct{}
	wait   sync.WaitGroup

	points []Point // of the goroutine until it has ended
	missed int
}

// Begin reads once and then once a second until End. A server without metrics is no error: the report then says why.
func Begin(ctx context.Context, e *Endpoint) *Watch {
	return begin(ctx, e, func() (<-chan time.Time, func()) {
		t := time.NewTicker(every)
		return t.C, t.Stop
	})
}

// begin is Begin with a clock to tick by.
func begin(ctx context.Context, e *Endpoint, clock func() (<-chan time.Time, func())) *Watch {
	w := &Watch{end: e, began: time.Now(), quit: make(chan struct{})}
	var err error
	w.start, err = e.Read(ctx)
	switch {
	case err != nil:
		w.reason = err.Error()
	case w.start.Kind() == "":
		w.reason = "GET /metrics has none of the names of SGLang, vLLM or larder"
	}
	if w.reason != "" {
		return w
	}
	ticks, stop := clock()
	w.wait.Go(func() {
		defer stop()
		w.poll(ctx, ticks)
	})
	return w
}

// poll reads at each tick. A ticker drops the ticks that come while a reading is under way.
func (w *Watch) poll(ctx context.Context, ticks <-chan time.Time) {
	for {
		select {
		case <-w.quit:
			return
		case <-ctx.Done():
			return
		case <-ticks:
			s, err := w.end.Read(ctx)
			if err != nil {
				w.missed++
				continue
			}
			w.points = append(w.points, Point{s.At.Sub(w.began).Seconds(), s.State()})
		}
	}
}

// End reads for the last time and reports. ctx may be another one than Begin's, for a run that was stopped.
func (w *Watch) End(ctx context.Context) Report {
	if w.reason != "" {
		return Report{Reason: w.reason}
	}
	close(w.quit)
	w.wait.Wait()
	last, err := w.end.Read(ctx)
	if err != nil {
		return Report{Reason: "the last reading failed: " + err.Error(), Kind: w.start.Kind(), Samples: len(w.points), Missed: w.missed + 1, Points: w.points}
	}
	r := Report{Kind: w.start.Kind(), Samples: len(w.points), Missed: w.missed, Points: w.points, Gauges: gauges(w.points)}
	r.Delta, r.Reset = last.Counts().Less(w.start.Counts())
	return r
}

func gauges(points []Point) map[string]Gauge {
	out := map[string]Gauge{}
	for _, p := range points {
		for name, v := range p.State {
			g := out[name]
			g.Mean += (v - g.Mean) / float64(g.N+1)
			g.N++
			g.Max = max(g.Max, v)
			out[name] = g
		}
	}
	return out
}
