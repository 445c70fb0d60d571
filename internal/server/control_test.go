package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"larder/internal/infer"
	"larder/internal/kv"
)

func TestHealth(t *testing.T) {
	engine := echoing()
	f := serve(t, Config{}, engine, nil)
	if w := f.do("GET", "/health_generate", ""); w.Code != 200 {
		t.Errorf("health_generate: %d %s", w.Code, w.Body)
	}
	engine.sick = fmt.Errorf("%w: gone", infer.ErrDevice)
	if w := f.do("GET", "/health", ""); w.Code != 503 || !strings.Contains(w.Body.String(), "the device failed: gone") {
		t.Errorf("health of a dead device: %d %s", w.Code, w.Body)
	}
	engine.sick = context.DeadlineExceeded
	if w := f.do("GET", "/health", ""); w.Code != 503 || !strings.Contains(w.Body.String(), "does not answer") {
		t.Errorf("health of a hanging loop: %d %s", w.Code, w.Body)
	}
	engine.say = func(context.Context, *infer.Request, func(infer.Event) error) (infer.Usage, error) {
		return infer.Usage{}, infer.ErrDevice
	}
	if w := f.do("GET", "/health_generate", ""); w.Code != 503 {
		t.Errorf("health_generate of a dead device: %d", w.Code)
	}
}

func TestFlush(t *testing.T) {
	engine := echoing()
	f := serve(t, Config{}, engine, nil)
	st := infer.Stats{BlockTokens: 64}
	engine.stats = func() infer.Stats { return st }
	ask := func(method, query string, status int, want string) {
		t.Helper()
		if w := f.do(method, "/flush_cache"+query, ""); w.Code != status || w.Body.String() != want+"\n" {
			t.Errorf("%s %s: %d %q, want %q", method, query, w.Code, w.Body, want)
		}
	}
	ask("POST", "", 200, "Cache flushed. This server has no cache.")
	st.Tiers[kv.Device] = infer.TierStats{Total: 8, Free: 8}
	st.Tiers[kv.Host] = infer.TierStats{Total: 16, Free: 16}
	ask("GET", "?timeout=1.5", 200, "Cache flushed. Empty: device (8 blocks), host (16 blocks).")
	st.Tiers[kv.Host].Free = 13 // an engine that says it flushed and did not
	ask("POST", "", 500, "Flush cache failed. Still in use: host (3 of 16 blocks).")
	st.Running = 1
	ask("POST", "", 200, "Cache flushed. New requests already use: host (3 of 16 blocks).")
	if w := f.do("POST", "/reset_prefix_cache", ""); w.Code != 200 {
		t.Errorf("vLLM's name: %d", w.Code)
	}
	engine.flush = func(ctx context.Context) error {
		if _, timed := ctx.Deadline(); timed {
			return context.DeadlineExceeded
		}
		return infer.ErrInUse
	}
	ask("POST", "", 400, "Flush cache failed. in use by a running request; give a timeout to wait for them.")
	ask("POST", "?timeout=0.001", 400, "Timed out waiting for idle state.")
	for _, bad := range []string{"x", "-1", "NaN", "1e9"} {
		if w := f.do("POST", "/flush_cache?timeout="+bad, ""); w.Code != 400 || !strings.Contains(w.Body.String(), "timeout must be") {
			t.Errorf("timeout %s: %d %s", bad, w.Code, w.Body)
		}
	}
	f.flushing.Store(true)
	ask("POST", "", 400, "Another flush_cache is already in progress.")
}

func TestInfo(t *testing.T) {
	engine := echoing()
	f := serve(t, Config{Version: "v9", Args: map[string]any{"page_size": 64, "host": "127.0.0.1"}}, engine, nil)
	engine.stats = func() infer.Stats {
		st := infer.Stats{BlockTokens: 64, InvariantChecks: 7}
		st.Tiers[kv.Device] = infer.TierStats{Total: 8, Free: 5, Leased: 1, Cached: 2}
		return st
	}
	check(t, blank(f.do("GET", "/v1/models", "").Body.String()), `{"data":[{"created":0,"id":"tiny","max_model_len":200,"object":"model","owned_by":"larder","parent":null,"root":"tiny"}],"object":"list"}`)
	if w := f.do("GET", "/v1/models/tiny", ""); w.Code != 200 || !strings.HasPrefix(w.Body.String(), `{"created"`) {
		t.Errorf("model: %d %s", w.Code, w.Body)
	}
	for _, path := range []string{"/model_info", "/get_model_info"} {
		var v map[string]any
		if err := json.Unmarshal(f.do("GET", path, "").Body.Bytes(), &v); err != nil || v["model_path"] != "/models/Tiny-1B" || v["is_generation"] != true || v["has_tokenizer"] != true || v["weight_version"] != "default" {
			t.Errorf("%s: %v %v", path, err, v)
		}
	}
	for _, path := range []string{"/server_info", "/get_server_info"} {
		var v struct {
			Page   int    `json:"page_size"`
			Max    int    `json:"max_total_num_tokens"`
			Ver    string `json:"version"`
			States []struct {
				Accept *float64 `json:"avg_spec_accept_length"`
				Checks int      `json:"invariant_checks"`
				Tiers  map[string]struct {
					Cached   int  `json:"cached_blocks"`
					Balanced bool `json:"balanced"`
				}
			} `json:"internal_states"`
		}
		err := json.Unmarshal(f.do("GET", path, "").Body.Bytes(), &v)
		if err != nil || v.Page != 64 || v.Max != 4096 || v.Ver != "v9" || len(v.States) != 1 || v.States[0].Accept != nil || v.States[0].Checks != 7 || !v.States[0].Tiers["device"].Balanced || v.States[0].Tiers["device"].Cached != 2 {
			t.Errorf("%s: %v %+v", path, err, v)
		}
	}
}

func TestTokenize(t *testing.T) {
	f := serve(t, Config{}, echoing(), nil)
	check(t, f.post("/tokenize", `{"model":"tiny","prompt":"ab"}`, 200), `{"count":2,"max_model_len":200,"tokens":[97,98]}`)
	check(t, f.post("/tokenize", `{"prompt":["ab",""]}`, 200), `{"count":[2,0],"max_model_len":200,"tokens":[[97,98],[]]}`)
	check(t, f.post("/detokenize", `{"tokens":[104,195,169,256]}`, 200), `{"text":"hé"}`)
	check(t, f.post("/detokenize", `{"tokens":[[104],[256]],"skip_special_tokens":false}`, 200), `{"text":["h","\u003c|end|\u003e"]}`)
	for path, body := range map[string]string{"/tokenize": `{}`, "/detokenize": `{"tokens":"a"}`} {
		f.post(path, body, 400)
	}
	f.post("/detokenize", `{"tokens":[1,300]}`, 400)
}

func TestMetrics(t *testing.T) {
	off := serve(t, Config{}, echoing(), nil)
	if w := off.do("GET", "/metrics", ""); w.Code != 404 || !strings.Contains(w.Body.String(), "--enable-metrics") {
		t.Errorf("metrics that are off: %d %s", w.Code, w.Body)
	}
	engine := saying("hello", infer.Cached{Device: 2, Host: 1})
	f := serve(t, Config{EnableMetrics: true}, engine, nil)
	f.post("/generate", `{"text":"abcd","sampling_params":{"max_new_tokens":3}}`, 200)
	f.post("/generate", `{"text":["abcd","efgh"],"sampling_params":{"max_new_tokens":1},"stream":true}`, 200)
	f.Metrics().ObserveLoad(64, 4096, 0)
	f.Metrics().ObserveStore(128, 8192, 0)
	f.Metrics().ObserveStep("decode", 0)
	engine.stats = func() infer.Stats {
		st := infer.Stats{BlockTokens: 64, Running: 3, Retracted: 2}
		st.Tiers[kv.Device] = infer.TierStats{Total: 8, Free: 4, Leased: 1, Cached: 3, EvictedBlocks: 5}
		st.Tiers[kv.Host] = infer.TierStats{Total: 16, Free: 10, Cached: 6, HitTokens: 64, LoadedBlocks: 1}
		return st
	}
	text := f.do("GET", "/metrics", "").Body.String()
	const labels = `engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"`
	ranked := func(own string) string { return strings.Replace(labels, `,tp_rank`, `,`+own+`,tp_rank`, 1) }
	for _, line := range []string{
		`sglang:prompt_tokens_total{` + labels + `} 12`,
		`sglang:generation_tokens_total{` + labels + `} 5`,
		`sglang:cached_tokens_total{cache_source="device",` + labels + `} 6`,
		`sglang:cached_tokens_total{cache_source="host",` + labels + `} 3`,
		`sglang:cached_tokens_total{cache_source="total",` + labels + `} 9`,
		`sglang:num_requests_total{` + labels + `} 3`,
		`sglang:time_to_first_token_seconds_count{` + labels + `} 3`,
		`sglang:inter_token_latency_seconds_count{` + labels + `} 2`,
		`sglang:e2e_request_latency_seconds_bucket{` + labels + `,le="2400"} 3`,
		`sglang:num_running_reqs{` + labels + `} 3`,
		`sglang:token_usage{` + labels + `} 0.125`,
		`sglang:kv_evictable_tokens{` + labels + `} 192`,
		`sglang:hicache_host_used_tokens{` + labels + `} 384`,
		`sglang:load_back_tokens_total{` + labels + `} 64`,
		`sglang:hicache_backup_bytes_total{` + labels + `} 8192`,
		`sglang:evicted_tokens_total{` + labels + `} 320`,
		`larder_tier_hit_tokens_total{` + ranked(`tier="host"`) + `} 64`,
		`larder_tier_evicted_blocks_total{` + ranked(`tier="device"`) + `} 5`,
		`larder_tier_blocks{` + ranked(`state="cached",tier="host"`) + `} 6`,
		`larder_engine_up{` + labels + `} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}

// TestTokenIntervals: an interval that brought several tokens counts once for each, divided; the first is none.
func TestTokenIntervals(t *testing.T) {
	f := serve(t, Config{EnableMetrics: true}, echoing(), nil)
	start := time.Unix(1000, 0)
	q := &sequence{start: start, sink: newSink(&bytesStream{}, nil, false)}
	for _, at := range []struct {
		after  time.Duration
		tokens []int32
	}{{time.Second, []int32{'a', 'b'}}, {1030 * time.Millisecond, []int32{'c', 'd', 'e'}}, {1050 * time.Millisecond, []int32{'f'}}} {
		now := start.Add(at.after)
		f.metrics.token(q, len(at.tokens), now)
		if err := q.take(&infer.Event{Tokens: at.tokens, StopID: -1}, now); err != nil {
			t.Fatal(err)
		}
	}
	text := f.do("GET", "/metrics", "").Body.String()
	for _, line := range []string{
		`sglang:time_to_first_token_seconds_sum{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 1`,
		`sglang:inter_token_latency_seconds_count{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 4`,
		`sglang:inter_token_latency_seconds_bucket{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0",le="0.008"} 0`,
		`sglang:inter_token_latency_seconds_bucket{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0",le="0.015"} 3`,
		`sglang:inter_token_latency_seconds_bucket{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0",le="0.02"} 4`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}
