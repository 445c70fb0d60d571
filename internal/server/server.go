// Package server is the HTTP edge: it decodes and validates a request, turns text into token ids, hands it to an
// infer.Generator, turns ids back into text, applies stop strings, and writes JSON or server-sent events in the shapes
// of SGLang's native API and of OpenAI's. It knows no engine, no model and no device, and it owns no flags.
//
// A handler decodes, validates, runs, answers, and returns an error for one place to map (errors.go). Whatever can be
// refused is refused before any header of a stream is sent; the headers wait for the first event.
//
// Start at New and at routes; then native.go, run.go, stream.go.
package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"larder/internal/api"
	"larder/internal/infer"
)

// Config is copied by New and never changed after.
type Config struct {
	ServedModelName string         // required; the name in answers and metrics
	Aliases         []string       // other names that requests may use
	APIKey          string         // "": nobody has to show one
	Version         string         // of the program
	Args            map[string]any // the server's arguments, shown by /server_info
	EnableMetrics   bool           // serve /metrics
	ReasoningParser string         // "": text stays whole; "qwen3": <think>…</think> of chat goes to reasoning_content

	MaxBodyBytes  int64         // 0: 32 MiB
	MaxSequences  int           // prompts x n in one request; 0: 1024
	BodyTimeout   time.Duration // to receive a whole body; 0: 60 s
	StallTimeout  time.Duration // a reader that takes nothing for so long is cut off; 0: 30 s
	HealthTimeout time.Duration // 0: 20 s
	Log           *slog.Logger  // nil: silent
}

// withDefaults fills the zero values and says what is wrong.
func (c Config) withDefaults() (Config, error) {
	if c.ServedModelName == "" {
		return c, errors.New("server: the served model needs a name")
	}
	if c.ReasoningParser != "" && c.ReasoningParser != "qwen3" {
		return c, fmt.Errorf("server: unknown reasoning parser %q (known: qwen3)", c.ReasoningParser)
	}
	if c.MaxBodyBytes < 0 || c.MaxSequences < 0 || c.BodyTimeout < 0 || c.StallTimeout < 0 || c.HealthTimeout < 0 {
		return c, errors.New("server: limits may not be negative")
	}
	orDefault(&c.MaxBodyBytes, 32<<20)
	orDefault(&c.MaxSequences, 1024)
	orDefault(&c.BodyTimeout, time.Minute)
	orDefault(&c.StallTimeout, 30*time.Second)
	orDefault(&c.HealthTimeout, 20*time.Second)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func orDefault[T comparable](p *T, v T) {
	if *p == *new(T) {
		*p = v
	}
}

// Server is an http.Handler. Make it with New; it answers 503 until Attach.
type Server struct {
	cfg      Config
	key      [sha256.Size]byte // of the API key
	routes   map[string]route
	backend  atomic.Pointer[Backend]
	draining atomic.Bool
	flushing atomic.Bool
	live     registry
	metrics  *Metrics
	started  time.Time
	bodies   sync.Pool // of *bytes.Buffer, for request bodies
}

// New makes a server that is still loading.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Server{cfg: cfg, started: time.Now(), key: sha256.Sum256([]byte(cfg.APIKey))}
	s.bodies.New = func() any { return new(bytes.Buffer) }
	s.live.cancels = map[string]context.CancelCauseFunc{}
	s.metrics = newMetrics(cfg.ServedModelName, s.backend.Load)
	s.routes = s.table()
	return s, nil
}

// Attach gives the server what it serves; from now on it is ready.
func (s *Server) Attach(b Backend) error {
	if b.Generator == nil || b.Control == nil {
		return errors.New("server: a backend needs a generator and a control")
	}
	if b.Model.VocabSize < 1 || b.Model.ContextLength < 2 {
		return fmt.Errorf("server: vocabulary of %d and context of %d tokens make no sense", b.Model.VocabSize, b.Model.ContextLength)
	}
	if b.Model.TokenizerNote == "" {
		b.Model.TokenizerNote = "no tokenizer data was loaded"
	}
	s.backend.Store(&b)
	return nil
}

// Metrics is where the engine's events go.
func (s *Server) Metrics() *Metrics { return s.metrics }

// Drain makes every further request that needs the model fail with 503; those that run go on. http.Server.Shutdown
// waits for them.
func (s *Server) Drain() { s.draining.Store(true) }

// idlePoll is how often WaitIdle looks.
const idlePoll = 20 * time.Millisecond

// WaitIdle returns when no request is live any more, or ctx is done.
func (s *Server) WaitIdle(ctx context.Context) {
	tick := time.NewTicker(idlePoll)
	defer tick.Stop()
	for s.live.count() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// AbortAll cancels every live request and reports how many there were.
func (s *Server) AbortAll() int { return s.live.abortAll() }

// HTTPServer is an http.Server for s with the timeouts that a public port needs. The caller listens and shuts down.
func (s *Server) HTTPServer() *http.Server {
	return &http.Server{
		Handler:           s,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelWarn),
	}
}

// route is one path. handle returns an error instead of answering when the request fails.
type route struct {
	methods string // "GET POST"
	family  api.Family
	open    bool // served without a key
	handle  func(http.ResponseWriter, *http.Request) error
}

// table is every path that the server answers, besides /v1/models/{id}.
func (s *Server) table() map[string]route {
	get := func(h func(http.ResponseWriter, *http.Request) error) route {
		return route{methods: "GET HEAD", handle: h}
	}
	post := func(h func(http.ResponseWriter, *http.Request) error) route { return route{methods: "POST", handle: h} }
	either := func(h func(http.ResponseWriter, *http.Request) error) route {
		return route{methods: "GET POST", handle: h}
	}
	openAI := func(r route) route { r.family = api.OpenAI; return r }
	health := get(s.health)
	health.open = true
	return map[string]route{
		"/generate":            {methods: "POST PUT", handle: s.generate},
		"/v1/completions":      openAI(post(s.completions)),
		"/v1/chat/completions": openAI(post(s.chat)),
		"/v1/models":           openAI(get(s.models)),
		"/health":              health,
		"/health_generate":     get(s.healthGenerate),
		"/flush_cache":         either(s.flushCache),
		"/reset_prefix_cache":  either(s.flushCache),
		"/model_info":          get(s.modelInfo),
		"/get_model_info":      get(s.modelInfo),
		"/server_info":         get(s.serverInfo),
		"/get_server_info":     get(s.serverInfo),
		"/metrics":             get(s.serveMetrics),
		"/abort_request":       post(s.abortRequest),
		"/tokenize":            post(s.tokenize),
		"/detokenize":          post(s.detokenize),
	}
}

// allow is the header of a 405.
func (rt route) allow() string { return strings.ReplaceAll(rt.methods, " ", ", ") }

// find is the route of a request, or a fault.
func (s *Server) find(r *http.Request) (route, error) {
	rt, ok := s.routes[r.URL.Path]
	if !ok && strings.HasPrefix(r.URL.Path, modelsPrefix) {
		rt, ok = route{methods: "GET HEAD", family: api.OpenAI, handle: s.model}, true
	}
	if !ok {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			rt.family = api.OpenAI
		}
		return rt, fail(http.StatusNotFound, "there is nothing at %s", r.URL.Path)
	}
	for m := range strings.FieldsSeq(rt.methods) {
		if m == r.Method {
			return rt, nil
		}
	}
	return rt, fail(http.StatusMethodNotAllowed, "%s takes %s, not %s", r.URL.Path, strings.ReplaceAll(rt.methods, " ", " or "), r.Method)
}

// ServeHTTP answers one request. A panic below becomes a 500 and a log line, and disturbs nobody else.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t := &tracker{ResponseWriter: w}
	rt, err := s.find(r)
	defer func() {
		if p := recover(); p != nil {
			s.panicked(t, r, rt.family, p)
		}
	}()
	if !rt.open && !s.authorized(r) {
		err = fail(http.StatusUnauthorized, "Unauthorized: this server needs its API key as a bearer token")
	}
	if err == nil {
		err = rt.handle(t, r)
	}
	if err != nil {
		s.answerError(t, r, rt.family, err)
	}
}

func (s *Server) authorized(r *http.Request) bool {
	if s.cfg.APIKey == "" {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	shown := sha256.Sum256([]byte(token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(shown[:], s.key[:]) == 1
}

// panicked ends a request whose handler panicked: with a 500 if nothing was sent, else by cutting the connection, so
// that the client does not take half an answer for a whole one.
func (s *Server) panicked(t *tracker, r *http.Request, family api.Family, p any) {
	if p == http.ErrAbortHandler {
		panic(p)
	}
	s.cfg.Log.Error("handler panicked", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
	if t.wrote {
		panic(http.ErrAbortHandler)
	}
	s.answerError(t, r, family, fail(http.StatusInternalServerError, "internal error"))
}

// ready is the backend, or the fault that says why there is none.
func (s *Server) ready() (*Backend, error) {
	b := s.backend.Load()
	switch {
	case s.draining.Load():
		return nil, infer.ErrClosed
	case b == nil:
		return nil, unavailable("the model is still loading")
	}
	return b, nil
}

// tracker remembers whether anything of the answer left.
type tracker struct {
	http.ResponseWriter
	wrote bool
}

func (t *tracker) WriteHeader(status int) {
	t.wrote = true
	t.ResponseWriter.WriteHeader(status)
}

func (t *tracker) Write(p []byte) (int, error) {
	t.wrote = true
	return t.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the flusher and the deadlines.
func (t *tracker) Unwrap() http.ResponseWriter { return t.ResponseWriter }
