package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"larder/internal/arch"
	"larder/internal/engine"
	"larder/internal/infer/echo"
	"larder/internal/kv"
	"larder/internal/kv/xfer"
	"larder/internal/server"
	"larder/internal/tokenizer"
)

type serveCmd struct {
	engineFlags `embed:""`

	TokenizerPath   string        `name:"tokenizer-path" placeholder:"PATH" help:"A tokenizer.json or its folder (default: the model's folder, then data/tokenizer)."`
	ServedModelName string        `name:"served-model-name" help:"The model's name in answers."`
	Host            string        `default:"127.0.0.1" help:"Address to listen on."`
	Port            int           `default:"30000" help:"Port to listen on; 0 picks a free one."`
	APIKey          string        `name:"api-key" help:"Key that clients must send as a bearer token."`
	EnableMetrics   bool          `name:"enable-metrics" help:"Serve Prometheus metrics at /metrics."`
	ReasoningParser string        `name:"reasoning-parser" enum:",qwen3" default:"" help:"qwen3: the thoughts of a chat answer go to reasoning_content."`
	DrainTimeout    time.Duration `name:"drain-timeout" default:"30s" help:"How long running requests may go on after SIGTERM."`
	Echo            bool          `help:"Answer with the prompt's own tokens; no model, no KV. For measuring the server itself."`
}

// Run serves until ctx is cancelled, then drains.
func (c *serveCmd) Run(ctx context.Context, s *streams) error {
	if c.Port < 0 || c.Port > 65535 {
		return usagef("--port %d: must be 0 to 65535", c.Port)
	}
	if c.DrainTimeout < 0 {
		return usagef("--drain-timeout %v: must not be negative", c.DrainTimeout)
	}
	if c.ModelPath == "" {
		return usagef("--model-path is empty: give a built-in name or the folder of a checkpoint")
	}
	if err := c.validate(); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(c.Host, strconv.Itoa(c.Port)))
	if err != nil {
		return usageError{fmt.Errorf("cannot listen: %w", err)}
	}
	defer listener.Close()
	srv, err := server.New(server.Config{
		ServedModelName: c.name(), Aliases: []string{c.ModelPath}, APIKey: c.APIKey, Version: version, Args: c.args(),
		EnableMetrics: c.EnableMetrics, ReasoningParser: c.ReasoningParser, Log: slog.New(slog.NewTextHandler(s.err, nil)),
	})
	if err != nil {
		return usageError{err}
	}
	web := srv.HTTPServer()
	failed := make(chan error, 1)
	go func() { failed <- web.Serve(listener) }() // answers 503 while the model loads
	stop, err := c.attach(ctx, srv, s.err)
	if err != nil {
		return errors.Join(err, web.Close())
	}
	fmt.Fprintf(s.err, "serving %s on http://%s\n", c.name(), listener.Addr())
	select {
	case err = <-failed:
		err = fmt.Errorf("the listener failed: %w", err)
	case <-ctx.Done():
	}
	return errors.Join(err, c.drain(srv, web, stop))
}

// drain lets running requests finish for a while, then ends them. While some run, new ones still get their 503.
func (c *serveCmd) drain(srv *server.Server, web *http.Server, stop func(context.Context) error) error {
	srv.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), c.DrainTimeout)
	defer cancel()
	srv.WaitIdle(ctx)
	err := web.Shutdown(ctx)
	if err != nil {
		n := srv.AbortAll()
		err = fmt.Errorf("%d requests were still running after %v and were aborted", n, c.DrainTimeout)
		late, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if web.Shutdown(late) != nil {
			web.Close()
		}
		return errors.Join(err, stop(late))
	}
	return stop(ctx)
}

// attach opens what the server serves and returns what ends it.
func (c *serveCmd) attach(ctx context.Context, srv *server.Server, log io.Writer) (func(context.Context) error, error) {
	b := server.Backend{Model: server.Model{Path: c.ModelPath, LoadFormat: c.LoadFormat}}
	if err := c.tokenizer(&b, log); err != nil {
		return nil, err
	}
	if c.Echo {
		return c.attachEcho(srv, b)
	}
	st, err := openStack(ctx, &c.engineFlags, metricsEars(srv.Metrics(), c.PageSize), log)
	if err != nil {
		return nil, err
	}
	b.Generator, b.Control = st.engine, st.engine
	b.Model.Type = modelType(st.config)
	b.Model.Architectures = []string{st.config.Architecture}
	b.Model.VocabSize = st.config.VocabSize
	b.Model.ContextLength = st.context
	b.Model.MaxTotal = st.cache.DeviceBlocks * st.layout.BlockTokens
	c.matchTokenizer(&b, log)
	if err := srv.Attach(b); err != nil {
		return nil, errors.Join(err, st.shutdown(ctx))
	}
	return st.shutdown, nil
}

// matchTokenizer drops a tokenizer that was only found, not asked for, when its ids do not fit the model.
func (c *serveCmd) matchTokenizer(b *server.Backend, log io.Writer) {
	t, ok := b.Tokenizer.(textCodec)
	if !ok || c.TokenizerPath != "" || t.VocabSize() <= b.Model.VocabSize {
		return
	}
	fmt.Fprintf(log, "%s has %d ids, the model %d: it is another model's tokenizer, so requests must carry token ids\n", b.Model.TokenizerPath, t.VocabSize(), b.Model.VocabSize)
	b.Tokenizer, b.Model.TokenizerPath = nil, ""
	b.Model.TokenizerNote = "the tokenizer that was found is another model's; give --tokenizer-path"
}

// attachEcho serves without a model.
func (c *serveCmd) attachEcho(srv *server.Server, b server.Backend) (func(context.Context) error, error) {
	b.Model.VocabSize, b.Model.ContextLength = 151936, 40960
	e := echo.New(echo.Config{Vocab: b.Model.VocabSize, ContextLen: b.Model.ContextLength, MaxRunning: c.MaxRunning, MaxQueued: c.MaxQueued})
	b.Generator, b.Control = e, e
	return func(context.Context) error { return nil }, srv.Attach(b)
}

// tokenizer loads the data if there is any. Only a path that was asked for must exist.
func (c *serveCmd) tokenizer(b *server.Backend, log io.Writer) error {
	path := findTokenizer(c.TokenizerPath, c.ModelPath)
	if path == "" {
		b.Model.TokenizerNote = "run `make data`, or give --tokenizer-path"
		fmt.Fprintln(log, "no tokenizer data: requests must carry token ids (run `make data`, or give --tokenizer-path)")
		return nil
	}
	t, err := tokenizer.Load(path)
	if err != nil {
		return usageError{fmt.Errorf("--tokenizer-path: %w", err)}
	}
	b.Tokenizer, b.Model.TokenizerPath = textCodec{t}, path
	return nil
}

func (c *serveCmd) name() string {
	if c.ServedModelName != "" {
		return c.ServedModelName
	}
	return c.ModelPath
}

// args is what /server_info shows.
func (c *serveCmd) args() map[string]any {
	return map[string]any{
		"model_path": c.ModelPath, "load_format": c.LoadFormat, "num_layers": c.NumLayers, "device": c.Device, "dtype": c.DType,
		"host": c.Host, "port": c.Port, "served_model_name": c.name(), "context_length": c.ContextLength, "page_size": c.PageSize,
		"max_total_tokens": c.MaxTotalTokens, "max_running_requests": c.MaxRunning, "max_queued_requests": c.MaxQueued,
		"chunked_prefill_size": c.ChunkedPrefill, "schedule_policy": c.SchedulePolicy, "disable_radix_cache": c.DisableRadix, "disable_overlap_schedule": c.DisableOverlap,
		"enable_hierarchical_cache": c.Hierarchical, "hicache_ratio": c.HicacheRatio, "hicache_size": c.HicacheSize,
		"hicache_write_policy": c.HicacheWrite, "radix_eviction_policy": c.Eviction, "enable_metrics": c.EnableMetrics,
	}
}

func modelType(cfg *arch.Config) string {
	if cfg.NumExperts > 0 {
		return "qwen3_moe"
	}
	return "qwen3"
}

// metricsEars turns what the engine and its mover do into the server's metrics.
func metricsEars(m *server.Metrics, blockTokens int) ears {
	step := func(i engine.StepInfo) {
		mode := "mixed"
		switch {
		case i.PrefillTokens == 0:
			mode = "decode"
		case i.DecodeTokens == 0:
			mode = "prefill"
		}
		m.ObserveStep(mode, i.Took)
	}
	copies := func(c xfer.CopyRecord) {
		switch {
		case c.Err != nil: // the tiers count failures
		case c.To == kv.Device:
			m.ObserveLoad(c.Blocks*blockTokens, c.Bytes, c.End-c.Start)
		default:
			m.ObserveStore(c.Blocks*blockTokens, c.Bytes, c.End-c.Start)
		}
	}
	return ears{engine.Listener{StepDone: step}, copies}
}

// textCodec fits the tokenizer to what the server asks for.
type textCodec struct{ *tokenizer.Tokenizer }

// NewStream starts the decoding of one answer.
func (t textCodec) NewStream(skipSpecial bool) server.Detokenizer {
	return idStream{t.Tokenizer.NewStream(skipSpecial)}
}

// EncodeChat renders and encodes messages.
func (t textCodec) EncodeChat(messages []server.Message, thinking bool) ([]int32, error) {
	turns := make([]tokenizer.Message, len(messages))
	for i, m := range messages {
		turns[i] = tokenizer.Message{Role: m.Role, Content: m.Content}
	}
	text, err := tokenizer.RenderChat(turns, tokenizer.ChatOptions{AddGenerationPrompt: true, EnableThinking: thinking})
	if err != nil {
		return nil, err
	}
	return t.Encode(text, nil), nil
}

// idStream pushes one id at a time.
type idStream struct{ *tokenizer.Stream }

func (s idStream) Push(id int32) string { return s.Stream.Push(id) }
