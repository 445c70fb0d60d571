package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"larder/internal/loadgen"
	"larder/internal/loadgen/scrape"
	"larder/internal/record"
	"larder/internal/study"
	"larder/internal/study/remote"
)

// serverFlags are the flags of a study against a server that runs already.
type serverFlags struct {
	Server  string        `placeholder:"URL" help:"Study a running server instead of starting one: only what its own API can bring about, and only what it proves."`
	Backend string        `enum:"sglang,vllm,larder" default:"larder" help:"With --server: what it is. sglang and larder: /generate and /flush_cache; vllm: /v1/completions and /reset_prefix_cache."`
	APIKey  string        `name:"api-key" help:"With --server: bearer token (default: the environment's OPENAI_API_KEY)."`
	Model   string        `help:"With --server: model (default: the first that the server lists)."`
	Vocab   int           `name:"vocab-size" help:"With --server: prompts are made of ids below this (default: as the server says, else 30000)."`
	Device  int           `name:"capacity-tokens" help:"With --server: tokens that the device's KV memory holds (default: as the server says)."`
	Filler  int           `name:"filler-tokens" help:"With --server: tokens of traffic that evict the device's copies in the host arm (default: capacity and a tenth)."`
	Settle  time.Duration `default:"500ms" help:"With --server: quiet before each burst."`
}

// serverVocab is the range of ids in which every current model's vocabulary has ordinary tokens.
const (
	serverVocabLow  = 1000
	serverVocabHigh = 30000
)

// serverPlan is the study's plan; flags that describe a server of our own contradict --server.
func (c *studyCmd) serverPlan() (study.Config, error) {
	for flag, set := range map[string]bool{"--model-path": c.ModelPath != "", "--num-layers": c.NumLayers != nil, "--device": c.Device != "auto", "--page-size": c.PageSize != 64,
		"--chunked-prefill-size": c.Chunk != 0, "--hicache-write-policy": c.Write != "write_through", "--dtype": c.DType != "auto", "--threads": c.Threads != 0, "--kernels": c.Kernels != "auto"} {
		if set {
			return study.Config{}, usagef("%s is a flag of the study's own server; it can not go with --server", flag)
		}
	}
	if c.Interleave == "repeat" {
		return study.Config{}, usagef("--interleave repeat can not go with --server: the arms take turns at each batch size")
	}
	if c.Remote.Vocab < 0 || c.Remote.Device < 0 || c.Remote.Filler < 0 || c.Remote.Settle < 0 {
		return study.Config{}, usagef("--vocab-size, --capacity-tokens, --filler-tokens and --settle must not be negative")
	}
	if c.Preset == "auto" {
		c.Preset = "quick"
	}
	cfg, err := c.plan()
	cfg.Interleave = "batch"
	return cfg, err
}

// runServer studies a server that runs already.
func (c *studyCmd) runServer(ctx context.Context, s *streams) error {
	cfg, err := c.serverPlan()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return usageError{err}
	}
	load := c.serverLoad()
	control, err := loadgen.NewControl(load)
	if err != nil {
		return usageError{err}
	}
	defer control.Close()
	counters := scrape.New(load.BaseURL, load.Header)
	defer counters.Close()
	env, err := c.serverEnv(ctx, load, control, counters, s.err)
	if err != nil {
		return err
	}
	line := newProgress(s.err, "study")
	env.Progress = barProgress{line}
	rec, err := remote.Run(ctx, cfg, *env)
	line.done()
	return c.concludeServer(rec, err, s)
}

// concludeServer writes what was measured and maps the error to an exit code.
func (c *studyCmd) concludeServer(rec *record.Study, err error, s *streams) error {
	if rec == nil {
		return err
	}
	if werr := c.write(rec, s); werr != nil {
		return errors.Join(err, werr)
	}
	if errors.Is(err, study.ErrChecks) || errors.Is(err, remote.ErrUnproven) {
		return checksError{err}
	}
	return err
}

// serverLoad is how to send.
func (c *studyCmd) serverLoad() loadgen.Config {
	f := &c.Remote
	load := loadgen.Config{BaseURL: strings.TrimRight(f.Server, "/"), Backend: f.Backend, Header: http.Header{}}
	if f.Backend == "larder" {
		load.Backend = "sglang"
	}
	key := f.APIKey
	if key == "" {
		key = os.Getenv("OPENAI_API_KEY")
	}
	if key != "" {
		load.Header.Set("Authorization", "Bearer "+key)
	}
	return load
}

// serverReady is how long a server may take to answer at all.
const serverReady = 10 * time.Second

// serverEnv asks the server what it is.
func (c *studyCmd) serverEnv(ctx context.Context, load loadgen.Config, control *loadgen.Control, counters *scrape.Endpoint, log io.Writer) (*remote.Env, error) {
	f := &c.Remote
	if err := control.Ready(ctx, serverReady); err != nil {
		return nil, err
	}
	load.Model = f.Model
	if load.Model == "" {
		ids, err := control.Models(ctx)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w; name the model with --model", err)
		case len(ids) == 0:
			return nil, errors.New("the server lists no model; name it with --model")
		}
		load.Model = ids[0]
	}
	env := &remote.Env{Load: load, Driver: loadgen.Run, Control: control, Counters: counters, Tool: "larder " + version, Host: hostInfo(), Model: load.Model,
		Capacity: f.Device, Filler: f.Filler, Settle: f.Settle, Lag: time.Second}
	env.VocabLow, env.VocabHigh = vocabRange(f.Vocab, control.VocabSize(ctx))
	if env.Capacity == 0 && f.Backend != "vllm" {
		env.Capacity = control.Capacity(ctx)
	}
	env.Server = strings.TrimSpace(f.Backend + " " + control.Version(ctx))
	fmt.Fprintf(log, "studying %s at %s, model %s\n", env.Server, load.BaseURL, load.Model)
	return env, nil
}

// vocabRange is the ids of prompts: below what was asked or the server says, clear of special tokens at both ends.
func vocabRange(asked, said int) (low, high int) {
	switch {
	case asked > 0:
		high = asked
	case said > 0:
		high = min(said, serverVocabHigh)
	default:
		high = serverVocabHigh
	}
	if high > 2*serverVocabLow {
		return serverVocabLow, high
	}
	return min(10, high/2), high
}
