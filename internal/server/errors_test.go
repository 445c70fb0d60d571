package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"larder/internal/infer"
	"larder/internal/infer/echo"
)

func chatOf(more string) string {
	return `{"messages":[{"role":"user","content":"a"}]` + more + `}`
}

// TestBadRequests sends each fault with and without stream: both get the same status, before any event.
func TestBadRequests(t *testing.T) {
	f := serve(t, Config{MaxSequences: 8}, echoing(), nil)
	long := "[" + strings.Repeat("1,", 199) + "1]"
	for _, c := range []struct{ path, body, says string }{
		{"/generate", `{}`, "Either text, input_ids or input_embeds should be provided."},
		{"/generate", `{"text":"a","input_ids":[1]}`, "only one may be"},
		{"/generate", `{"text":""}`, "the prompt is empty"},
		{"/generate", `{"input_ids":[]}`, "the prompt is empty"},
		{"/generate", `{"input_ids":[[1],[]]}`, "the prompt is empty"},
		{"/generate", `{"text":[1]}`, "text must be a string"},
		{"/generate", `{"input_ids":"a"}`, "input_ids must be a list"},
		{"/generate", `{"input_ids":[1,300]}`, "token 1 of the prompt is 300, which is outside the vocabulary of 300 tokens."},
		{"/generate", `{"input_ids":[-1]}`, "token 0 of the prompt is -1"},
		{"/generate", `{"input_ids":[1.5]}`, "input_ids: expected a string"},
		{"/generate", `{"input_ids":` + long + `}`, "The input (200 tokens) is longer than the model's context length (200 tokens)."},
		{"/generate", `{"input_ids":[1],"sampling_params":{"max_new_tokens":200}}`, "total of 201 tokens: 1 tokens from the input and 200"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"temperature":-1}}`, "temperature must be a number that is not negative, got -1."},
		{"/generate", `{"input_ids":[1],"sampling_params":{"temperature":NaN}}`, "not valid JSON: invalid character 'N'"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"temperature":"NaN"}}`, "temperature: expected a number, got string"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"top_p":0}}`, "top_p must be in (0, 1], got 0."},
		{"/generate", `{"input_ids":[1],"sampling_params":{"top_p":1.01}}`, "top_p must be"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"top_k":0}}`, "top_k must be -1"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"min_p":2}}`, "min_p must be"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"max_new_tokens":-1}}`, "max_new_tokens must be at least 0"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"min_new_tokens":9,"max_new_tokens":8}}`, "min_new_tokens must be at most max_new_tokens (8), got 9."},
		{"/generate", `{"input_ids":[1],"sampling_params":{"n":0}}`, "n must be from 1 to 8"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"n":9}}`, "n must be from 1 to 8"},
		{"/generate", `{"input_ids":[[1],[1],[1]],"sampling_params":{"n":3}}`, "9 answers at once, 8 are allowed"},
		{"/generate", `{"input_ids":[[1],[1]],"sampling_params":[{"n":1},{"n":2}]}`, "n must be the same"},
		{"/generate", `{"input_ids":[[1],[1]],"sampling_params":[{}]}`, "1 entries for 2 prompts"},
		{"/generate", `{"input_ids":[[1],[1]],"rid":"a"}`, "rid has 1 entries for 2 prompts"},
		{"/generate", `{"input_ids":[[1],[1]],"rid":["a","a"]}`, `"a" is in use`},
		{"/generate", `{"input_ids":[1],"rid":""}`, "from 1 to 256 bytes"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"stop_token_ids":[300]}}`, "stop_token_ids has 300"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"stop":"` + strings.Repeat("a", 5000) + `"}}`, "a stop string has 5000 bytes"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"stop":[` + strings.Repeat(`"a",`, 64) + `"a"]}}`, "65 stop strings"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"stream_interval":0}}`, "stream_interval must be"},
		{"/generate", `{"input_ids":[1],"return_logprob":true}`, "return_logprob is not supported"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"json_schema":"{}"}}`, "json_schema is not supported"},
		{"/generate", `{"input_ids":[1],"sampling_params":{"frequency_penalty":1}}`, "frequency_penalty is not supported"},
		{"/generate", `{"input_ids":[1]`, "not valid JSON"},
		{"/generate", ``, "not valid JSON"},
		{"/v1/completions", `{}`, "prompt is missing"},
		{"/v1/completions", `{"prompt":"a","max_tokens":0}`, "max_tokens must be at least 1"},
		{"/v1/completions", `{"prompt":"a","max_tokens":1000}`, "maximum context length of 200 tokens"},
		{"/v1/completions", `{"prompt":"a","logprobs":1}`, "logprobs is not supported"},
		{"/v1/completions", `{"prompt":["a","b","c"],"n":3}`, "9 answers at once"},
		{"/v1/completions", `{"prompt":"a","min_tokens":17}`, "min_tokens must be at most max_tokens (16)"},
		{"/v1/completions", `{"prompt":"a","rid":["a","b"]}`, "rid has 2 entries"},
		{"/v1/chat/completions", `{}`, "at least one message"},
		{"/v1/chat/completions", `{"messages":[{"role":"boss","content":"a"}]}`, `messages[0]: the role must be`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, `type "image_url" is not supported`},
		{"/v1/chat/completions", `{"messages":[{"role":"assistant","content":"","tool_calls":[{}]}]}`, "tool_calls are not supported"},
		{"/v1/chat/completions", chatOf(`,"tools":[{"type":"function"}]`), "tools is not supported"},
		{"/v1/chat/completions", chatOf(`,"response_format":{"type":"json_object"}`), "response_format is not supported"},
		{"/v1/chat/completions", chatOf(`,"min_tokens":1000`), "only 193 fit after the prompt"},
		{"/v1/chat/completions", chatOf(`,"temperature":-0.1`), "temperature must be"},
	} {
		for _, stream := range []string{"", `,"stream":true}`} {
			body := c.body
			if stream != "" && strings.HasSuffix(body, "}") && len(body) > 2 {
				body = strings.TrimSuffix(body, "}") + stream
			}
			got := f.post(c.path, body, 400)
			var v struct {
				Object, Message, Type string
				Code                  int
				Error                 struct{ Message string }
			}
			if err := json.Unmarshal([]byte(got), &v); err != nil {
				t.Errorf("%s %.80s: %v in %s", c.path, body, err, got)
			}
			said := v.Error.Message
			if c.path != "/generate" {
				if said = v.Message; v.Object != "error" || v.Code != 400 || v.Type != "Bad Request" {
					t.Errorf("%s %.80s: shape %s", c.path, body, got)
				}
			}
			if !strings.Contains(said, c.says) || strings.Contains(said, "\n") {
				t.Errorf("%s %.80s: %q does not say %q", c.path, body, said, c.says)
			}
		}
	}
	if st, _ := f.backend.Load().Control.Stats(t.Context()); st.Requests != 0 {
		t.Errorf("bad requests reached the engine: %+v", st)
	}
}

// TestAccepted holds what clients in the wild send.
func TestAccepted(t *testing.T) {
	f := serve(t, Config{Aliases: []string{"org/Other"}}, echoing(), nil)
	for _, body := range []string{
		`{"text":"a","sampling_params":{"temperature":0.0,"max_new_tokens":4,"ignore_eos":true},"stream":false,"lora_path":null,"return_logprob":false,"return_routed_experts":false,"logprob_start_len":-1,"image_data":null,"novel":{"x":1}}`,
		`{"input_ids":[1],"sampling_params":{"temperature":null,"top_k":-1,"repetition_penalty":1.0,"regex":null}}`,
	} {
		f.post("/generate", body, 200)
	}
	for _, name := range []string{"tiny", "default", "", "/models/Tiny-1B", "someone/tiny-1b", "org/Other", "other"} {
		f.post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"a","max_tokens":4,"best_of":1,"logprobs":null,"repetition_penalty":1.0}`, name), 200)
	}
	const gone = `{"error":{"message":"The model 'gpt-4' does not exist; this server has 'tiny'.","type":"invalid_request_error","param":"model","code":"model_not_found"}}`
	check(t, f.post("/v1/completions", `{"model":"gpt-4","prompt":"a"}`, 404), gone)
	check(t, f.post("/v1/chat/completions", chatOf(`,"model":"gpt-4","stream":true`), 404), gone)
	if w := f.do("GET", "/v1/models/gpt-4", ""); w.Code != 404 || w.Body.String() != gone {
		t.Errorf("model: %d %s", w.Code, w.Body)
	}
}

// TestEngineErrors maps what an engine may return, before the first event and after it.
func TestEngineErrors(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		says   string
	}{
		{fmt.Errorf("%w: 5 wait", infer.ErrQueueFull), 503, "The request queue is full."},
		{fmt.Errorf("%w: no block", infer.ErrTooLong), 400, "longer than allowed: no block"},
		{fmt.Errorf("%w: x", infer.ErrInvalid), 400, "invalid request: x"},
		{infer.ErrClosed, 503, "The server is shutting down."},
		{fmt.Errorf("%w: out of order", infer.ErrDevice), 500, "the device failed: out of order"},
		{io.ErrUnexpectedEOF, 500, "internal error"},
	} {
		engine := &script{Engine: echo.New(echo.Config{})}
		f := serve(t, Config{}, engine, nil)
		engine.say = func(context.Context, *infer.Request, func(infer.Event) error) (infer.Usage, error) {
			return infer.Usage{}, c.err
		}
		for path, body := range map[string]string{"/generate": `{"text":"a","stream":%t}`, "/v1/completions": `{"prompt":"a","stream":%t}`, "/v1/chat/completions": chatOf(`,"stream":%t`)} {
			for _, stream := range []bool{false, true} {
				w := f.do("POST", path, fmt.Sprintf(body, stream))
				if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) || (w.Header().Get("Retry-After") != "") != (c.status == 503) {
					t.Errorf("%v on %s: %d %v %s", c.err, path, w.Code, w.Header(), w.Body)
				}
			}
		}
		engine.say = func(_ context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
			if err := emit(infer.Event{Tokens: []int32{'x'}, StopID: -1}); err != nil {
				t.Error(err)
			}
			return infer.Usage{}, c.err
		}
		got := events(t, f.do("POST", "/generate", `{"text":"a","stream":true}`).Body.String())
		if last := got[len(got)-1]; !strings.HasPrefix(last, `{"error":{"message":`) || !strings.Contains(last, c.says) || !strings.Contains(last, fmt.Sprintf(`"code":%d,"retryable":%t`, c.status, c.status == 503)) {
			t.Errorf("%v after the first event: %s", c.err, last)
		}
		if len(f.live.cancels) != 0 {
			t.Errorf("%v: still live: %v", c.err, f.live.cancels)
		}
	}
}

// TestBatchFailsWhole ends the others when one fails, and answers once.
func TestBatchFailsWhole(t *testing.T) {
	engine := &script{Engine: echo.New(echo.Config{})}
	cancelled := make(chan error, 1)
	engine.say = func(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
		if r.Tokens[0] == 'b' {
			return infer.Usage{}, infer.ErrQueueFull
		}
		<-ctx.Done()
		cancelled <- ctx.Err()
		return infer.Usage{}, ctx.Err()
	}
	f := serve(t, Config{}, engine, nil)
	check(t, f.post("/generate", `{"text":["a","b"]}`, 503), `{"object":"error","message":"The request queue is full.","type":"Service Unavailable","param":null,"code":503}`)
	if err := <-cancelled; err == nil {
		t.Error("the other prompt was not cancelled")
	}
}

func TestRoutesAndMethods(t *testing.T) {
	f := serve(t, Config{}, echoing(), nil)
	if w := f.do("GET", "/nothing", ""); w.Code != 404 || !strings.HasPrefix(w.Body.String(), `{"error":{"message":"there is nothing at /nothing"`) {
		t.Errorf("unknown path: %d %s", w.Code, w.Body)
	}
	if w := f.do("GET", "/v1/embeddings", ""); w.Code != 404 || !strings.HasPrefix(w.Body.String(), `{"object":"error"`) {
		t.Errorf("unknown OpenAI path: %d %s", w.Code, w.Body)
	}
	if w := f.do("GET", "/generate", ""); w.Code != 405 || w.Header().Get("Allow") != "POST, PUT" {
		t.Errorf("wrong method: %d %v", w.Code, w.Header())
	}
	if w := f.do("POST", "/v1/completions", `{"prompt":"a"}`, "Content-Type", "text/plain"); w.Code != 400 || !strings.Contains(w.Body.String(), "only application/json") {
		t.Errorf("content type: %d %s", w.Code, w.Body)
	}
	if w := f.do("POST", "/v1/completions", `{"prompt":"a"}`, "Content-Type", "application/json; charset=utf-8"); w.Code != 200 {
		t.Errorf("content type with a charset: %d %s", w.Code, w.Body)
	}
}

func TestLargeBodies(t *testing.T) {
	f := serve(t, Config{MaxBodyBytes: 1000}, echoing(), nil)
	big := `{"text":"` + strings.Repeat("a", 2000) + `"}`
	check(t, f.post("/generate", big, 413), `{"error":{"message":"the body is larger than 1000 bytes"}}`)
	r := httptest.NewRequest("POST", "/v1/completions", io.MultiReader(strings.NewReader(big))) // of unknown length
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	if w.Code != 413 || !strings.HasPrefix(w.Body.String(), `{"object":"error","message":"the body is larger`) {
		t.Errorf("chunked: %d %s", w.Code, w.Body)
	}
}

func TestAPIKey(t *testing.T) {
	f := serve(t, Config{APIKey: "s3cret", EnableMetrics: true}, echoing(), nil)
	for path := range f.routes {
		want := 401
		if path == "/health" {
			want = 200
		}
		method := strings.Fields(f.routes[path].methods)[0]
		for _, key := range []string{"", "Bearer", "Bearer wrong", "s3cret", "Basic s3cret", "Bearer s3cret "} {
			if w := f.do(method, path, `{}`, "Authorization", key); w.Code != want {
				t.Errorf("%s with %q: %d", path, key, w.Code)
			}
		}
	}
	for _, scheme := range []string{"Bearer", "bearer"} { // RFC 9110: schemes have no case
		if w := f.do("GET", "/v1/models", "", "Authorization", scheme+" s3cret"); w.Code != 200 {
			t.Errorf("right key as %s: %d", scheme, w.Code)
		}
	}
	if w := f.do("GET", "/v1/models/tiny", ""); w.Code != 401 || w.Header().Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("model without key: %d", w.Code)
	}
}

func TestLoadingAndDraining(t *testing.T) {
	s, err := New(Config{ServedModelName: "tiny", EnableMetrics: true})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Server: s, t: t}
	states := func(says string) {
		for path, rt := range f.routes {
			if path == "/metrics" || path == "/abort_request" {
				continue
			}
			w := f.do(strings.Fields(rt.methods)[0], path, `{"text":"a"}`)
			if w.Code != 503 || !strings.Contains(w.Body.String(), says) || w.Header().Get("Retry-After") == "" {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
	}
	states("still loading")
	if w := f.do("GET", "/metrics", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `larder_engine_up{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 0`) {
		t.Errorf("metrics while loading: %d", w.Code)
	}
	engine := echoing()
	if err := s.Attach(Backend{Generator: engine, Control: engine, Model: testModel()}); err != nil {
		t.Fatal(err)
	}
	if w := f.do("GET", "/health", ""); w.Code != 200 {
		t.Errorf("health when ready: %d", w.Code)
	}
	s.Drain()
	states("shutting down")
}

func TestPanics(t *testing.T) {
	var log bytes.Buffer
	engine := &script{Engine: echo.New(echo.Config{})}
	f := serve(t, Config{Log: slog.New(slog.NewTextHandler(&log, nil))}, engine, func(b *Backend) { b.Tokenizer = badTokenizer{} })
	if got := f.post("/v1/completions", `{"prompt":"a"}`, 500); !strings.Contains(got, `"message":"internal error"`) || strings.Contains(got, "boom") {
		t.Errorf("a panic before the engine: %s", got)
	}
	if !strings.Contains(log.String(), "boom") {
		t.Errorf("nothing in the log: %s", log.String())
	}
	engine.say = func(context.Context, *infer.Request, func(infer.Event) error) (infer.Usage, error) { panic("bang") }
	f.post("/generate", `{"input_ids":[[1],[2]]}`, 500)
	if len(f.live.cancels) != 0 || !strings.Contains(log.String(), "bang") {
		t.Errorf("a panic in a batch: live %v", f.live.cancels)
	}
	engine.say = nil
	f.post("/generate", `{"input_ids":[1]}`, 200) // nothing else is disturbed
}

type badTokenizer struct{ bytesTokenizer }

func (badTokenizer) Encode(string, []int32) []int32 { panic("boom") }

func TestConfigAndBackend(t *testing.T) {
	for says, cfg := range map[string]Config{
		"needs a name":             {},
		"unknown reasoning parser": {ServedModelName: "a", ReasoningParser: "x"},
		"may not be negative":      {ServedModelName: "a", MaxBodyBytes: -1},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	s, err := New(Config{ServedModelName: "a"})
	if err != nil {
		t.Fatal(err)
	}
	engine := echoing()
	if s.Attach(Backend{}) == nil || s.Attach(Backend{Generator: engine, Control: engine}) == nil {
		t.Error("Attach took a backend without an engine or a vocabulary")
	}
}

func TestStatusOfWrites(t *testing.T) {
	w := httptest.NewRecorder()
	tr := &tracker{ResponseWriter: w}
	if tr.wrote {
		t.Error("wrote before it did")
	}
	tr.WriteHeader(http.StatusTeapot)
	if !tr.wrote || w.Code != http.StatusTeapot {
		t.Error("a written header is not remembered")
	}
}

// cutOff runs f, which must end by cutting the connection.
func cutOff(t *testing.T, f func()) {
	t.Helper()
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("ended with %v instead of cutting the connection", p)
		}
	}()
	f()
}

// TestHalfAnswersAreCut: what was begun and cannot be finished must not look whole.
func TestHalfAnswersAreCut(t *testing.T) {
	engine, g := holding()
	f := serve(t, Config{}, engine, nil)
	f.routes["/half"] = route{methods: "GET", handle: func(w http.ResponseWriter, _ *http.Request) error {
		if _, err := io.WriteString(w, "half"); err != nil {
			return err
		}
		panic("boom")
	}}
	cutOff(t, func() { f.do("GET", "/half", "") })
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-g.entered
		cancel()
		<-g.left
	}()
	r := httptest.NewRequestWithContext(ctx, "POST", "/generate", strings.NewReader(`{"text":"a","stream":true}`))
	r.Header.Set("Content-Type", "application/json")
	cutOff(t, func() { f.ServeHTTP(httptest.NewRecorder(), r) })
}
