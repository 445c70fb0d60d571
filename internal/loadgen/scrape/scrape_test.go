package scrape

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const vllmPage = `# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \"quoted\" } name"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2
vllm:num_requests_waiting{engine="0"} 7
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:prefix_cache_queries_total{engine="0"} 1000
vllm:prefix_cache_hits_total{engine="0"} 640 1700000000000
vllm:external_prefix_cache_queries_total{engine="0"} 1000
vllm:external_prefix_cache_hits_total{engine="0"} 64
vllm:num_preemptions_total{engine="0"} 1
vllm:prompt_tokens_total{engine="0"} 5e3
vllm:generation_tokens_total{engine="0"} 77
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:empty_summary{quantile="0.5"} NaN
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 9
`

func parse(t *testing.T, text string) *Snapshot {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNames(t *testing.T) {
	v := parse(t, vllmPage)
	want := Counts{Prompt: 5000, Generated: 77, HitDevice: 640, HitHost: 64, Preempted: 1}
	if got := v.Counts(); v.Kind() != "vllm" || !reflect.DeepEqual(got, want) {
		t.Errorf("%s %v, want %v", v.Kind(), got, want)
	}
	if got := v.State(); !reflect.DeepEqual(got, State{Running: 5, Waiting: 7, Usage: 0.25}) {
		t.Errorf("%v", got)
	}
	if n, ok := v.Capacity(); n != 1600 || !ok || !v.HostTier() {
		t.Errorf("capacity %d %v, host tier %v", n, ok, v.HostTier())
	}
	s := parse(t, `sglang:num_running_reqs{tp_rank="0"} 1
sglang:num_queue_reqs 0
sglang:token_usage 0.5
sglang:max_total_num_tokens 4096
sglang:prompt_tokens_total 900
sglang:cached_tokens_total{cache_source="device"} 100
sglang:cached_tokens_total{cache_source="host"} 30
sglang:cached_tokens_total{cache_source="storage_file"} 20
sglang:cached_tokens_total{cache_source="total"} 150
`)
	if got := s.Counts(); s.Kind() != "sglang" || !reflect.DeepEqual(got, Counts{Prompt: 900, HitDevice: 100, HitHost: 30, HitStorage: 20}) {
		t.Errorf("%s %v", s.Kind(), got)
	}
	if hits, ok := s.Counts().Hits(); hits != 150 || !ok {
		t.Errorf("hits %v %v", hits, ok)
	}
	if n, _ := s.Capacity(); n != 4096 || s.HostTier() {
		t.Errorf("capacity %d, host tier %v", n, s.HostTier())
	}
	old := parse(t, "sglang:cached_tokens_total 12\n")
	if got := old.Counts()[HitDevice]; got != 12 {
		t.Errorf("a counter without the label: %v", got)
	}
	if k := parse(t, "larder_steps_total 4\nsglang:num_running_reqs 1\n").Kind(); k != "larder" {
		t.Errorf("kind %q", k)
	}
	if k := parse(t, "go_goroutines 4\n").Kind(); k != "" {
		t.Errorf("kind %q", k)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, bad := range []string{"", "# only comments\n", "<html><body>404</body></html>", "name\n", "name{a=\"b\" 1\n", "name x\n", "1name 2\n", `{"error":1}`, "name 1 2 3\n"} {
		if _, err := Parse(bad); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func TestLess(t *testing.T) {
	d, reset := Counts{Prompt: 10, Generated: 3, HitHost: 5}.Less(Counts{Prompt: 4, Generated: 9})
	if !reflect.DeepEqual(d, Counts{Prompt: 6, HitHost: 5}) || !reflect.DeepEqual(reset, []string{Generated}) {
		t.Errorf("%v, reset %v", d, reset)
	}
}

// ticker is a clock that the test moves: a value of the channel is a tick.
func ticker(ticks chan time.Time) func() (<-chan time.Time, func()) {
	return func() (<-chan time.Time, func()) { return ticks, func() {} }
}

func TestWatch(t *testing.T) {
	var n atomic.Int64
	var key atomic.Value
	read := make(chan struct{}, 16)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key.Store(r.Header.Get("Authorization"))
		k := n.Add(1)
		if k == 3 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
		} else {
			fmt.Fprintf(w, "vllm:prompt_tokens_total %d\nvllm:num_requests_running %d\n", 100*k, k)
		}
		read <- struct{}{}
	}))
	defer srv.Close()
	ticks := make(chan time.Time)
	e := New(srv.URL+"/", http.Header{"Authorization": {"Bearer k"}})
	defer e.Close()
	w := begin(context.Background(), e, ticker(ticks))
	<-read
	for range 4 {
		ticks <- time.Time{} // taken only when the reading before it is done
		<-read
	}
	r := w.End(context.Background())
	if r.Reason != "" || r.Kind != "vllm" || r.Samples != 3 || r.Missed != 1 || r.Delta[Prompt] != 500 {
		t.Errorf("%+v", r)
	}
	if g := r.Gauges[Running]; g.N != 3 || g.Max != 5 || g.Mean != (2+4+5)/3.0 {
		t.Errorf("running %+v", g)
	}
	if key.Load() != "Bearer k" {
		t.Errorf("key %q", key.Load())
	}
}

func TestWithoutMetrics(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"404":     func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) },
		"none of": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "go_goroutines 3") },
		"not Pro": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "<html></html>") },
	} {
		srv := httptest.NewServer(h)
		e := New(srv.URL, nil)
		r := Begin(context.Background(), e).End(context.Background())
		if !strings.Contains(r.Reason, name) || r.Delta != nil {
			t.Errorf("%s: %+v", name, r)
		}
		e.Close()
		srv.Close()
	}
	e := New("http://127.0.0.1:1", nil)
	if r := Begin(context.Background(), e).End(context.Background()); !strings.Contains(r.Reason, "refused") {
		t.Errorf("%+v", r)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(vllmPage)
	f.Add("a{b=\"c\\\"}\"} 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		s.Counts()
		s.State()
		s.Capacity()
	})
}
