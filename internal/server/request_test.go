package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"larder/internal/infer"
	"larder/internal/infer/echo"
	"larder/internal/sample"
)

// TestRequestsReachTheEngine checks each parameter's way, and each API's defaults.
func TestRequestsReachTheEngine(t *testing.T) {
	var got infer.Request
	engine := &script{Engine: echo.New(echo.Config{})}
	engine.say = func(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
		got = *r
		return engine.Engine.Generate(ctx, r, emit)
	}
	hot, narrow := 0.6, 20
	f := serve(t, Config{}, engine, func(b *Backend) { b.Model.Defaults.Temperature, b.Model.Defaults.TopK = &hot, &narrow })
	greedy := sample.Params{TopP: 1}
	long := `[` + strings.Repeat("1,", 149) + `1]`
	for _, c := range []struct {
		path, body string
		want       infer.Request
	}{
		{"/generate", `{"text":"ab"}`, infer.Request{Sampling: sample.Params{Temperature: 1, TopP: 1}, MaxNew: 128}},
		{"/generate", `{"input_ids":` + long + `}`, infer.Request{Sampling: sample.Params{Temperature: 1, TopP: 1}, MaxNew: 50}}, // the default gives way to the context
		{"/generate", `{"text":"ab","sampling_params":{"temperature":0.0000009,"top_k":5,"top_p":0.5,"max_new_tokens":7}}`, infer.Request{Sampling: greedy, MaxNew: 7}},
		{
			"/generate", `{"text":"ab","cache_salt":"s","sampling_params":{"temperature":0.5,"top_k":5,"top_p":0.25,"min_p":0.125,"sampling_seed":-1,"max_new_tokens":7,"min_new_tokens":3,"stop_token_ids":[9,8],"ignore_eos":true}}`,
			infer.Request{Salt: "s", Sampling: sample.Params{Temperature: .5, TopK: 5, TopP: .25, MinP: .125, Seed: 1<<64 - 1}, MaxNew: 7, MinNew: 3, StopIDs: []int32{9, 8}, IgnoreEOS: true},
		},
		{"/generate", `{"text":"ab","extra_key":"k","sampling_params":{"temperature":0,"max_new_tokens":0}}`, infer.Request{Salt: "k", Sampling: greedy, MaxNew: 1}},
		{"/v1/completions", `{"prompt":"ab"}`, infer.Request{Sampling: sample.Params{Temperature: .6, TopK: 20, TopP: 1}, MaxNew: 16}},
		{
			"/v1/completions", `{"prompt":"ab","temperature":0.5,"top_k":-1,"top_p":0.25,"min_p":0.125,"seed":7,"max_tokens":5,"min_tokens":2,"stop_token_ids":[9],"ignore_eos":true,"cache_salt":"s","extra_key":"k"}`,
			infer.Request{Salt: "s\x00k", Sampling: sample.Params{Temperature: .5, TopP: .25, MinP: .125, Seed: 7}, MaxNew: 5, MinNew: 2, StopIDs: []int32{9}, IgnoreEOS: true},
		},
		{"/v1/chat/completions", chatOf(`,"temperature":0`), infer.Request{Sampling: greedy, MaxNew: 193}},
		{"/v1/chat/completions", chatOf(`,"temperature":0,"max_tokens":5`), infer.Request{Sampling: greedy, MaxNew: 5}},
		{"/v1/chat/completions", chatOf(`,"temperature":0,"max_tokens":5,"max_completion_tokens":6`), infer.Request{Sampling: greedy, MaxNew: 6}},
	} {
		f.post(c.path, c.body, 200)
		ignore := []cmp.Option{cmpopts.IgnoreFields(infer.Request{}, "ID", "Tokens")}
		if c.want.Sampling.Seed == 0 {
			ignore = append(ignore, cmpopts.IgnoreFields(sample.Params{}, "Seed"))
		}
		if d := cmp.Diff(c.want, got, ignore...); d != "" {
			t.Errorf("%s %.120s (-want +got):\n%s", c.path, c.body, d)
		}
		if got.ID == "" || len(got.Tokens) == 0 {
			t.Errorf("%s: request %+v", c.path, got)
		}
		if err := got.Validate(tokVocab, 200); err != nil {
			t.Errorf("%s %.120s: the engine would refuse: %v", c.path, c.body, err)
		}
	}
}

// TestSeedsDiffer draws seeds by chance where none is given.
func TestSeedsDiffer(t *testing.T) {
	var seeds []uint64
	engine := &script{Engine: echo.New(echo.Config{})}
	engine.say = func(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
		seeds = append(seeds, r.Sampling.Seed)
		return engine.Engine.Generate(ctx, r, emit)
	}
	f := serve(t, Config{}, engine, nil)
	for range 8 {
		f.post("/v1/completions", `{"prompt":"a","max_tokens":1}`, 200)
	}
	slices.Sort(seeds)
	if n := len(slices.Compact(seeds)); n != 8 {
		t.Errorf("%d different seeds of 8", n)
	}
}

// TestAbortAll ends what still runs when a drain takes too long.
func TestAbortAll(t *testing.T) {
	engine, g := holding()
	f := serve(t, Config{}, engine, nil)
	hs := f.wire()
	answers := make(chan string, 3)
	for i := range 3 {
		go func() {
			resp := ask(t, hs.Client(), hs.URL+"/generate", fmt.Sprintf(`{"text":"a","stream":%t}`, i == 0))
			answers <- readAll(t, resp.Body)
		}()
		<-g.entered
	}
	f.Drain()
	if n := f.AbortAll(); n != 3 {
		t.Errorf("%d aborted", n)
	}
	for range 3 {
		<-g.left
		if got := <-answers; !strings.Contains(got, `"finish_reason":{"type":"abort"`) {
			t.Errorf("answer %s", got)
		}
	}
	if err := hs.Config.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
