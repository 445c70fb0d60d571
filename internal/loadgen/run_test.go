package loadgen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"larder/internal/loadgen/mockserver"
	"larder/internal/workload"
)

func serve(t *testing.T, s *mockserver.Server) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(s)
	srv.Config.ErrorLog = nil
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

func texts(n, output int) []workload.Item {
	items := make([]workload.Item, n)
	for i := range items {
		items[i] = workload.Item{Text: fmt.Sprintf("prompt %d", i), PromptLen: 2, OutputLen: output}
	}
	return items
}

// mustRun runs and checks what holds for every run.
func mustRun(t *testing.T, ctx context.Context, cfg Config, items []workload.Item) *Result {
	t.Helper()
	res, err := Run(ctx, cfg, items)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Outcomes) != len(items) {
		t.Fatalf("%d outcomes of %d items", len(res.Outcomes), len(items))
	}
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		if (o.Class == "") != (o.Err == nil) {
			t.Errorf("item %d: class %q with error %v", i, o.Class, o.Err)
		}
		if o.Sent != NeverSent && (o.Sent < o.Slot || o.Slot < o.Due || o.Done < o.Sent || o.Done-o.Due > res.Duration+o.Due) {
			t.Errorf("item %d: times out of order: %+v", i, o)
		}
		if o.OK() && o.First > 0 && (o.First < o.Sent || o.Done < o.First || o.First < o.FirstByte) {
			t.Errorf("item %d: output times out of order: %+v", i, o)
		}
	}
	return res
}

func TestRunAllBackends(t *testing.T) {
	for _, backend := range Backends() {
		s := &mockserver.Server{Answer: func(r *mockserver.Request) mockserver.Answer {
			return mockserver.Stream(r, mockserver.Options{Usage: true, Role: true, Prompt: 2})
		}}
		cfg := Config{BaseURL: serve(t, s), Backend: backend, Model: "mock", Stream: true, IgnoreEOS: true}
		res := mustRun(t, t.Context(), cfg, texts(20, 5))
		for i, o := range res.Outcomes {
			if !o.OK() || o.Text != "aaaaa" || o.OutputTokens != 5 || len(o.Chunks) != 5 || o.PromptTokens != 2 || o.Status != 200 {
				t.Errorf("%s: item %d: %+v", backend, i, o)
			}
		}
		cfg.Stream = false
		for i, o := range mustRun(t, t.Context(), cfg, texts(3, 5)).Outcomes {
			if !o.OK() || o.Text != "aaaaa" || o.OutputTokens != 5 || o.First != o.Done {
				t.Errorf("%s without streaming: item %d: %+v", backend, i, o)
			}
		}
	}
}

func TestBodies(t *testing.T) {
	s := &mockserver.Server{}
	base := serve(t, s)
	items := []workload.Item{{IDs: []int32{5, 6, 7}, OutputLen: 2, RoutingKey: "key", Extra: map[string]any{"lora_path": "row"}}}
	cfg := Config{BaseURL: base, Backend: "sglang", Stream: true, IgnoreEOS: true, TopP: 0.9, Extra: map[string]any{"lora_path": "run", "return_logprob": false},
		Header: http.Header{"Authorization": {"Bearer x"}}}
	mustRun(t, t.Context(), cfg, items)
	cfg.Backend, cfg.Model = "vllm", "m"
	mustRun(t, t.Context(), cfg, items)
	cfg.Backend, items[0].IDs, items[0].Text = "vllm-chat", nil, "hello"
	mustRun(t, t.Context(), cfg, items)
	seen := s.Seen()
	for i, want := range []map[string]any{
		{"input_ids": "[5 6 7]", "sampling_params.max_new_tokens": "2", "sampling_params.ignore_eos": "true", "sampling_params.top_p": "0.9", "sampling_params.temperature": "0", "stream": "true", "lora_path": "row", "text": "<nil>"},
		{"prompt": "[5 6 7]", "max_tokens": "2", "model": "m", "ignore_eos": "true", "stream_options.include_usage": "true"},
		{"messages": "[map[content:hello role:user]]", "max_completion_tokens": "2"},
	} {
		for k, v := range want {
			if got := fmt.Sprint(seen[i].Field(k)); got != v {
				t.Errorf("request %d: %s is %s, want %s", i, k, got, v)
			}
		}
		if h := seen[i].Header; h.Get("X-SMG-Routing-Key") != "key" || h.Get("Authorization") != "Bearer x" || h.Get("Accept-Encoding") != "" {
			t.Errorf("request %d: header %v", i, h)
		}
	}
	for backend, it := range map[string]workload.Item{
		"vllm-chat": {IDs: []int32{1}}, "sglang": {Messages: []workload.Message{{Role: "user"}}}, "vllm": {Messages: []workload.Message{{Role: "user"}}},
	} {
		if _, err := Run(t.Context(), Config{BaseURL: base, Backend: backend}, []workload.Item{it}); err == nil {
			t.Errorf("%s took a prompt that it can not send", backend)
		}
	}
}

// Each way to fail has its class, keeps its message, and disturbs no neighbour.
func TestFailureClasses(t *testing.T) {
	one := func(r *mockserver.Request) []mockserver.Piece {
		return mockserver.Stream(r, mockserver.Options{}).Pieces[:1]
	}
	short := Timeouts{First: 50 * time.Millisecond, Gap: 50 * time.Millisecond}
	for name, c := range map[string]struct {
		answer       func(r *mockserver.Request) mockserver.Answer
		limits       Timeouts
		class, wants string
	}{
		"busy": {func(*mockserver.Request) mockserver.Answer {
			return mockserver.Answer{Status: 503, Pieces: []mockserver.Piece{{Data: `{"error":"The request queue is full."}`}}}
		}, Timeouts{}, ClassHTTP, "queue is full"},
		"web page of a proxy": {func(*mockserver.Request) mockserver.Answer {
			page := "<!DOCTYPE html>\r\n<html>\n<head><title>\n502 Bad\nGateway</title></head><body>no upstream</body></html>"
			return mockserver.Answer{Status: 502, Type: "text/html", Pieces: []mockserver.Piece{{Data: page}}}
		}, Timeouts{}, ClassHTTP, "502 Bad Gateway: a web page 502 Bad Gateway"},
		"web page": {func(*mockserver.Request) mockserver.Answer {
			return mockserver.Answer{Type: "text/html; charset=utf-8", Pieces: []mockserver.Piece{{Data: "<html>hi"}}}
		}, Timeouts{}, ClassStream, "web page"},
		"moved": {func(*mockserver.Request) mockserver.Answer { return mockserver.Answer{Status: 307} }, Timeouts{}, ClassHTTP, "307"},
		"empty": {func(*mockserver.Request) mockserver.Answer { return mockserver.Answer{} }, Timeouts{}, ClassEmpty, "no output"},
		"cut": {func(r *mockserver.Request) mockserver.Answer {
			return mockserver.Answer{Pieces: one(r), End: mockserver.Cut}
		}, Timeouts{}, ClassStream, "broke"},
		"no head": {func(*mockserver.Request) mockserver.Answer { return mockserver.Answer{End: mockserver.Cut} }, Timeouts{}, ClassHTTP, "no HTTP answer"},
		"early":   {func(r *mockserver.Request) mockserver.Answer { return mockserver.Answer{Pieces: one(r)} }, Timeouts{}, ClassStream, "ended early"},
		"silent":  {func(*mockserver.Request) mockserver.Answer { return mockserver.Answer{End: mockserver.Hang} }, short, ClassTimeoutFirst, "no output"},
		"stalled": {func(r *mockserver.Request) mockserver.Answer {
			return mockserver.Answer{Pieces: one(r), End: mockserver.Hang}
		}, short, ClassTimeoutGap, "after 1 chunks"},
		"slow": {func(r *mockserver.Request) mockserver.Answer {
			return mockserver.Answer{Pieces: one(r), End: mockserver.Hang}
		},
			Timeouts{Total: 50 * time.Millisecond}, ClassTimeoutTotal, "not done"},
		"JSON error": {func(*mockserver.Request) mockserver.Answer {
			return mockserver.Answer{Type: "application/json", Pieces: []mockserver.Piece{{Data: `{"error":{"message":"bad"}}`}}}
		}, Timeouts{}, ClassStream, "bad"},
	} {
		s := &mockserver.Server{Answer: func(r *mockserver.Request) mockserver.Answer {
			if text, _ := r.Field("text").(string); text == "prompt 1" {
				return c.answer(r)
			}
			return mockserver.Stream(r, mockserver.Options{})
		}}
		var done atomic.Int32
		cfg := Config{BaseURL: serve(t, s), Backend: "sglang", Stream: true, Timeouts: c.limits, OnDone: func(int, *Outcome) { done.Add(1) }}
		if c.limits == short {
			cfg.Timeouts.First = time.Minute // a busy machine must not fail the healthy neighbours
			if c.class == ClassTimeoutFirst {
				cfg.Timeouts.First = 500 * time.Millisecond
			}
		}
		res := mustRun(t, t.Context(), cfg, texts(3, 4))
		for i, o := range res.Outcomes {
			if i != 1 && !o.OK() {
				t.Errorf("%s: the healthy item %d failed: %v", name, i, o.Err)
			}
		}
		if o := res.Outcomes[1]; o.Class != c.class || !strings.Contains(o.Err.Error(), c.wants) {
			t.Errorf("%s: class %q, error %v; want %q with %q", name, o.Class, o.Err, c.class, c.wants)
		}
		if done.Load() != 3 || len(s.Seen()) != 3 {
			t.Errorf("%s: %d ends, %d requests seen: something was sent twice or not reported", name, done.Load(), len(s.Seen()))
		}
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + l.Addr().String()
	l.Close()
	res := mustRun(t, t.Context(), Config{BaseURL: base, Backend: "sglang", Stream: true}, texts(2, 1))
	for _, o := range res.Outcomes {
		if o.Class != ClassConnect || !strings.Contains(o.Err.Error(), "refused") {
			t.Errorf("class %q, error %v", o.Class, o.Err)
		}
	}
	plain := serve(t, &mockserver.Server{})
	res = mustRun(t, t.Context(), Config{BaseURL: strings.Replace(plain, "http", "https", 1), Backend: "sglang"}, texts(1, 1))
	if o := res.Outcomes[0]; o.Class != ClassTLS && o.Class != ClassHTTP {
		t.Errorf("TLS to a plain server: class %q, error %v", o.Class, o.Err)
	}
	secure := httptest.NewTLSServer(&mockserver.Server{})
	defer secure.Close()
	secure.Config.ErrorLog = nil
	res = mustRun(t, t.Context(), Config{BaseURL: secure.URL, Backend: "sglang"}, texts(1, 1))
	if o := res.Outcomes[0]; o.Class != ClassTLS {
		t.Errorf("unknown certificate: class %q, error %v", o.Class, o.Err)
	}
}

// The cap holds, waiting for it is visible, and connections are kept.
func TestConcurrency(t *testing.T) {
	var now, most atomic.Int32
	s := &mockserver.Server{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		s.ServeHTTP(w, r)
	})
	srv := httptest.NewServer(handler)
	defer srv.Close()
	res := mustRun(t, t.Context(), Config{BaseURL: srv.URL, Backend: "sglang", Stream: true, MaxConcurrency: 4}, texts(60, 3))
	if m := most.Load(); m > 5 { // one more: a handler may end after its client has read the last byte
		t.Errorf("%d at once, 4 allowed", m)
	}
	conns := map[string]bool{}
	for _, r := range s.Seen() {
		conns[r.Conn] = true
	}
	dialled := 0
	for i, o := range res.Outcomes {
		if o.Connect > 0 {
			dialled++
		}
		if i >= 4 && o.Slot == 0 {
			t.Errorf("item %d had to wait, but its slot is at 0", i)
		}
	}
	if len(conns) > 12 || dialled > 12 {
		t.Errorf("%d connections (%d dials) for 60 requests, 4 at once", len(conns), dialled)
	}
}

// Requests leave at their due times, in order of these, not of the items.
func TestSchedule(t *testing.T) {
	cfg := Config{BaseURL: serve(t, &mockserver.Server{}), Backend: "sglang", Stream: true, MaxConcurrency: 1}
	cfg.Due = []time.Duration{30 * time.Millisecond, 0, 15 * time.Millisecond}
	res := mustRun(t, t.Context(), cfg, texts(3, 1))
	o := res.Outcomes
	if !(o[1].Sent < o[2].Sent && o[2].Sent < o[0].Sent) || o[0].Due != 30*time.Millisecond {
		t.Errorf("sent at %v, %v, %v", o[0].Sent, o[1].Sent, o[2].Sent)
	}
	if res.Duration < 30*time.Millisecond {
		t.Errorf("the run took %v, less than its schedule", res.Duration)
	}
}

// A stopped run keeps what was measured and says what was not.
func TestStop(t *testing.T) {
	s := &mockserver.Server{Answer: func(r *mockserver.Request) mockserver.Answer {
		a := mockserver.Stream(r, mockserver.Options{})
		if r.N == 2 {
			return mockserver.Answer{Pieces: a.Pieces[:1], End: mockserver.Hang}
		}
		return a
	}}
	ctx, cancel := context.WithCancelCause(t.Context())
	var done atomic.Int32
	cfg := Config{BaseURL: serve(t, s), Backend: "sglang", Stream: true, MaxConcurrency: 1}
	cfg.OnDone = func(int, *Outcome) {
		if done.Add(1) == 2 {
			time.AfterFunc(20*time.Millisecond, func() { cancel(errors.New("stopped by the user")) })
		}
	}
	res := mustRun(t, ctx, cfg, texts(6, 3))
	if !res.Interrupted || !res.Outcomes[0].OK() || !res.Outcomes[1].OK() {
		t.Errorf("interrupted %v; the first two must have succeeded: %v, %v", res.Interrupted, res.Outcomes[0].Err, res.Outcomes[1].Err)
	}
	if o := res.Outcomes[2]; o.Class != ClassCanceled || !strings.Contains(o.Err.Error(), "stopped by the user") {
		t.Errorf("the one under way: class %q, error %v", o.Class, o.Err)
	}
	for i := 3; i < 6; i++ {
		if o := res.Outcomes[i]; o.Class != ClassCanceled || o.Sent != NeverSent {
			t.Errorf("item %d was never sent: class %q, sent %v", i, o.Class, o.Sent)
		}
	}
}

func TestRefusals(t *testing.T) {
	ok := Config{BaseURL: "http://127.0.0.1:1", Backend: "sglang"}
	for name, change := range map[string]func(*Config) []workload.Item{
		"no URL":           func(c *Config) []workload.Item { c.BaseURL = ""; return texts(1, 1) },
		"URL without host": func(c *Config) []workload.Item { c.BaseURL = "localhost:30000"; return texts(1, 1) },
		"unknown backend":  func(c *Config) []workload.Item { c.Backend = "trt"; return texts(1, 1) },
		"negative cap":     func(c *Config) []workload.Item { c.MaxConcurrency = -1; return texts(1, 1) },
		"no items":         func(*Config) []workload.Item { return nil },
		"short schedule":   func(c *Config) []workload.Item { c.Due = []time.Duration{0}; return texts(2, 1) },
		"negative time":    func(c *Config) []workload.Item { c.Due = []time.Duration{-1}; return texts(1, 1) },
		"no JSON value":    func(c *Config) []workload.Item { c.Extra = map[string]any{"x": func() {}}; return texts(1, 1) },
	} {
		cfg := ok
		items := change(&cfg)
		if _, err := Run(t.Context(), cfg, items); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// A burst at the start: every request is sent, none fails, with as many streams as a big server gets.
func TestManyStreams(t *testing.T) {
	n := 512
	if testing.Short() {
		n = 64
	}
	res := mustRun(t, t.Context(), Config{BaseURL: serve(t, &mockserver.Server{}), Backend: "sglang", Stream: true}, texts(n, 8))
	for i, o := range res.Outcomes {
		if !o.OK() || len(o.Chunks) == 0 || o.OutputTokens != 8 {
			t.Fatalf("item %d: %+v", i, o)
		}
	}
}
