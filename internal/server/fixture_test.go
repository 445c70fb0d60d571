package server

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"larder/internal/infer"
	"larder/internal/infer/echo"
)

// bytesTokenizer is a tokenizer whose ids are bytes, with three special tokens above.
type bytesTokenizer struct{}

const (
	tokEnd   = 256 // "<|end|>", left out with skipSpecial
	tokVocab = 300
)

func (bytesTokenizer) Encode(text string, dst []int32) []int32 {
	for i := range len(text) {
		dst = append(dst, int32(text[i]))
	}
	return dst
}

func (bytesTokenizer) NewStream(skipSpecial bool) Detokenizer { return &bytesStream{skip: skipSpecial} }

func (t bytesTokenizer) EncodeChat(messages []Message, thinking bool) ([]int32, error) {
	var b strings.Builder
	for _, m := range messages {
		b.WriteString(m.Role + ":" + m.Content + ";")
	}
	if !thinking {
		b.WriteString("(quick)")
	}
	return t.Encode(b.String(), nil), nil
}

// bytesStream holds back incomplete characters.
type bytesStream struct {
	skip bool
	held []byte
}

func (s *bytesStream) Push(id int32) string {
	if id >= tokEnd {
		if s.skip {
			return ""
		}
		return s.Flush() + "<|end|>"
	}
	s.held = append(s.held, byte(id))
	if !utf8.FullRune(s.held) {
		return ""
	}
	return s.Flush()
}

func (s *bytesStream) Flush() string {
	text := strings.ToValidUTF8(string(s.held), "\ufffd")
	s.held = nil
	return text
}

// script is an engine that says what a test tells it to.
type script struct {
	*echo.Engine // Control, and what say does not replace
	say          func(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error)
	flush        func(context.Context) error
	stats        func() infer.Stats
	sick         error
}

func (s *script) Generate(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
	if s.say == nil {
		return s.Engine.Generate(ctx, r, emit)
	}
	return s.say(ctx, r, emit)
}

func (s *script) Flush(ctx context.Context) error {
	if s.flush == nil {
		return s.Engine.Flush(ctx)
	}
	return s.flush(ctx)
}

func (s *script) Stats(ctx context.Context) (infer.Stats, error) {
	if s.stats == nil {
		return s.Engine.Stats(ctx)
	}
	return s.stats(), nil
}

func (s *script) Health(ctx context.Context) error {
	if s.sick != nil {
		return s.sick
	}
	return s.Engine.Health(ctx)
}

// saying answers every request with text, one token an event, and ends as the request says.
func saying(text string, cached infer.Cached) *script {
	e := echo.New(echo.Config{EOS: []int32{tokEnd}})
	return &script{Engine: e, say: func(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
		fake := *r
		fake.Tokens = append(bytesTokenizer{}.Encode(text, nil), tokEnd)
		fix := func(u infer.Usage) infer.Usage {
			u.PromptTokens, u.Cached = len(r.Tokens), cached
			u.Computed = len(r.Tokens) - cached.Total()
			return u
		}
		u, err := e.Generate(ctx, &fake, func(ev infer.Event) error {
			ev.Usage = fix(ev.Usage)
			return emit(ev)
		})
		return fix(u), err
	}}
}

// fixture is a server with its engine, ready for requests without a socket.
type fixture struct {
	*Server
	t testing.TB
}

func testModel() Model {
	return Model{Path: "/models/Tiny-1B", Type: "qwen3_moe", LoadFormat: "dummy", VocabSize: tokVocab, ContextLength: 200, MaxTotal: 4096, Architectures: []string{"Qwen3MoeForCausalLM"}}
}

func serve(t testing.TB, cfg Config, engine *script, change func(*Backend)) *fixture {
	t.Helper()
	if cfg.ServedModelName == "" {
		cfg.ServedModelName = "tiny"
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b := Backend{Generator: engine, Control: engine, Tokenizer: bytesTokenizer{}, Model: testModel()}
	if change != nil {
		change(&b)
	}
	if err := s.Attach(b); err != nil {
		t.Fatal(err)
	}
	return &fixture{Server: s, t: t}
}

func echoing() *script { return &script{Engine: echo.New(echo.Config{EOS: []int32{tokEnd}})} }

// do sends one request.
func (f *fixture) do(method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	return w
}

// post returns the answer's body, which must have the status, with all that changes from run to run blanked.
func (f *fixture) post(path, body string, status int) string {
	f.t.Helper()
	w := f.do("POST", path, body)
	if w.Code != status {
		f.t.Errorf("%s %s: status %d, want %d: %s", path, body, w.Code, status, w.Body)
	}
	return blank(w.Body.String())
}

var changing = []*regexp.Regexp{
	regexp.MustCompile(`("(?:created|e2e_latency|queue_time|load_time|time_to_first_token|decode_throughput|request_received_ts|request_finished_ts)":)[0-9.]+`),
	regexp.MustCompile(`("(?:id)":"(?:cmpl-|chatcmpl-)?)[0-9a-f]{32}((?:_\d+)?")`),
}

func blank(body string) string {
	body = changing[0].ReplaceAllString(body, `${1}0`)
	return changing[1].ReplaceAllString(body, `${1}ID${2}`)
}

// events splits a stream's body and checks its framing: one data line, one empty line, [DONE] last and once.
func events(t testing.TB, body string) []string {
	t.Helper()
	parts := strings.SplitAfter(body, "\n\n")
	if last := parts[len(parts)-1]; last != "" {
		t.Fatalf("the stream ends with %q, not with an empty line", last)
	}
	var out []string
	for i, p := range parts[:len(parts)-1] {
		data, ok := strings.CutPrefix(strings.TrimSuffix(p, "\n\n"), "data: ")
		if !ok || strings.ContainsAny(data, "\r\n") {
			t.Fatalf("event %d is %q", i, p)
		}
		if (data == "[DONE]") != (i == len(parts)-2) {
			t.Fatalf("event %d of %d is %q", i, len(parts)-1, data)
		}
		out = append(out, data)
	}
	return out[:len(out)-1]
}

// wire is a server on a real socket.
func (f *fixture) wire() *httptest.Server {
	f.t.Helper()
	hs := httptest.NewUnstartedServer(f)
	hs.Config = f.HTTPServer()
	hs.Start()
	f.t.Cleanup(hs.Close)
	return hs
}

func readAll(t testing.TB, r io.ReadCloser) string {
	t.Helper()
	defer r.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// gate lets a test wait until an engine holds a request.
type gate struct {
	entered chan string
	left    chan error
}

// holding is an engine that makes one token and then waits until the request is cancelled.
func holding() (*script, *gate) {
	g := &gate{entered: make(chan string, 16), left: make(chan error, 16)}
	e := echo.New(echo.Config{})
	return &script{Engine: e, say: func(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
		u := infer.Usage{PromptTokens: len(r.Tokens), CompletionTokens: 1}
		err := emit(infer.Event{Tokens: []int32{'x'}, StopID: -1, Usage: u})
		g.entered <- r.ID
		if err == nil {
			<-ctx.Done()
			err = ctx.Err()
		}
		g.left <- err
		return u, err
	}}, g
}

var _ http.Handler = (*Server)(nil)
