package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"larder/internal/loadgen"
	"larder/internal/loadgen/serving"
	"larder/internal/workload"
)

// failShare is the share of failed requests above which the command fails.
const failShare = 0.01

// quietWait is how long a server may take to answer before the wait is explained.
const quietWait = 2 * time.Second

// awaitServer waits until the server is ready, and says so when that takes a while.
func (c *benchCmd) awaitServer(ctx context.Context, control *loadgen.Control, url string, s *streams) error {
	slow := time.AfterFunc(quietWait, func() {
		fmt.Fprintf(s.err, "waiting for %s to be ready, %g s at most\n", url, c.ReadyCheck)
	})
	defer slow.Stop()
	return control.Ready(ctx, fromSeconds(c.ReadyCheck))
}

// run does what the reference does, in its order: wait for the server, make the workload, warm up, flush, measure,
// report. What was measured is reported even when the run was stopped or requests failed.
func (c *benchCmd) run(ctx context.Context, s *streams) error {
	_, err := c.once(ctx, s)
	return err
}

// once is one run. The numbers come back as soon as there are some, with an error or without.
func (c *benchCmd) once(ctx context.Context, s *streams) (*serving.Metrics, error) {
	cfg, err := c.config()
	if err != nil {
		return nil, usageError{err}
	}
	control, err := loadgen.NewControl(cfg)
	if err != nil {
		return nil, usageError{err}
	}
	defer control.Close()
	if err := c.checkOutput(); err != nil {
		return nil, err
	}
	if c.ReadyCheck > 0 {
		if err := c.awaitServer(ctx, control, cfg.BaseURL, s); err != nil {
			return nil, err
		}
	}
	if cfg.Model, err = c.modelName(ctx, control); err != nil {
		return nil, err
	}
	tok, err := c.loadTokenizer(ctx, control, s.err)
	if err != nil {
		return nil, usageError{err}
	}
	set, err := c.workload(&cfg, tok, s.err)
	if err != nil {
		return nil, usageError{err}
	}
	if err := cfg.Validate(set.Items); err != nil {
		return nil, usageError{err}
	}
	if c.SelfCheck {
		if err := c.selfCheck(ctx, len(set.Items), s.err); err != nil {
			return nil, err
		}
	}
	if err := c.prepare(ctx, cfg, control, set, s.err); err != nil {
		return nil, err
	}
	res, counted, err := c.watched(ctx, cfg, set.Items, s.err)
	if err != nil {
		return nil, usageError{err}
	}
	return c.report(control, &benchResult{res, counted, cfg.Model}, tok, s)
}

func fromSeconds(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }

// config is how to send.
func (c *benchCmd) config() (loadgen.Config, error) {
	limits := loadgen.Timeouts{Connect: c.ConnectLimit, First: c.FirstLimit, Gap: c.GapLimit, Total: c.TotalLimit}
	cfg := loadgen.Config{BaseURL: c.url(), Backend: c.Backend, MaxConcurrency: c.Concurrency, Stream: !c.NoStream, IgnoreEOS: !c.NoIgnoreEOS,
		Temperature: c.Temperature, TopP: c.TopP, NoUsage: c.NoUsage, Timeouts: limits}
	var err error
	if cfg.Header, err = c.headers(); err != nil {
		return cfg, err
	}
	cfg.Extra, err = c.extra()
	return cfg, err
}

// url is the server's root: --base-url, or host and port. 0.0.0.0 is an address to listen on; who sends to it means
// this machine.
func (c *benchCmd) url() string {
	if c.BaseURL != "" {
		return strings.TrimRight(c.BaseURL, "/")
	}
	port := c.Port
	if port == 0 {
		port = map[string]int{"vllm": 8000, "lmdeploy": 23333}[c.Backend]
	}
	if port == 0 {
		port = 30000
	}
	host := c.Host
	if host == "0.0.0.0" {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// headers are the --header flags, and the key that the environment holds for this kind of server.
func (c *benchCmd) headers() (http.Header, error) {
	h := http.Header{}
	if key := os.Getenv("OPENAI_API_KEY"); key != "" {
		h.Set("Authorization", "Bearer "+key)
	} else if key := os.Getenv("API_KEY"); key != "" {
		h.Set("Authorization", key)
	}
	for _, kv := range c.Header {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || strings.ContainsAny(kv, "\r\n") || strings.TrimSpace(k) == "" {
			return nil, fmt.Errorf("--header %q must be NAME=VALUE", kv)
		}
		h.Set(strings.TrimSpace(k), strings.TrimSpace(v))
	}
	return h, nil
}

// extra are the fields that all bodies get; those of --extra-request-body win.
func (c *benchCmd) extra() (map[string]any, error) {
	m := map[string]any{}
	native := c.Backend == "sglang" || c.Backend == "sglang-native"
	if native {
		m["return_logprob"], m["logprob_start_len"] = c.Logprob, c.LogprobFrom
		if c.Experts {
			m["return_routed_experts"] = true
		}
		if c.TopLogprobs > 0 {
			m["top_logprobs_num"] = c.TopLogprobs
		}
		if len(c.IDsLogprob) > 0 {
			m["token_ids_logprob"] = c.IDsLogprob
		}
	} else if c.Logprob && c.TopLogprobs > 0 {
		m["logprobs"] = c.TopLogprobs
	}
	if c.CacheReport && !native {
		m["return_cached_tokens_details"] = true
	}
	if c.FakePrefill {
		m["bootstrap_host"], m["bootstrap_room"] = "2.2.2.2", 0
	}
	if c.Extra != "" {
		var own map[string]any
		if err := json.Unmarshal([]byte(c.Extra), &own); err != nil {
			return nil, fmt.Errorf("--extra-request-body is not a JSON object: %w", err)
		}
		maps.Copy(m, own)
	}
	return m, nil
}

// modelName is the name in the bodies: as given, or the first that the server lists. The native route needs none.
func (c *benchCmd) modelName(ctx context.Context, control *loadgen.Control) (string, error) {
	if c.ServedName != "" {
		return c.ServedName, nil
	}
	if c.Model != "" {
		return c.Model, nil
	}
	ids, err := control.Models(ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w; name the model with --model", err)
	case len(ids) == 0:
		return "", errors.New("the server lists no model; name it with --model")
	}
	return ids[0], nil
}

// prepare warms the server up, empties its cache and makes prefixes known, as far as that was asked for.
func (c *benchCmd) prepare(ctx context.Context, cfg loadgen.Config, control *loadgen.Control, set *workload.Set, log io.Writer) error {
	if c.Warmups > 0 {
		if err := c.warmUp(ctx, cfg, set.Items); err != nil {
			return err
		}
		fmt.Fprintf(log, "warm-up: %s done\n", serving.Count(c.Warmups, "request"))
	}
	if c.Flush || os.Getenv("SGLANG_IS_IN_CI") == "true" && strings.HasPrefix(c.Backend, "sglang") {
		if err := control.Flush(ctx, fromSeconds(c.FlushWait)); err != nil {
			return fmt.Errorf("flushing the cache: %w", err)
		}
	}
	if c.Prime {
		if err := prime(ctx, cfg, set.Primers); err != nil {
			return err
		}
		fmt.Fprintf(log, "priming: %d prefixes sent\n", len(set.Primers))
	}
	if c.Warmups > 0 || c.Flush || c.Prime {
		select {
		case <-time.After(fromSeconds(c.Settle)):
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return errors.New("stopped before anything was measured")
	}
	return nil
}

// warmUp sends the warm-ups at once, 32 output tokens at most each; one must succeed.
func (c *benchCmd) warmUp(ctx context.Context, cfg loadgen.Config, items []workload.Item) error {
	warm := make([]workload.Item, c.Warmups)
	for i := range warm {
		warm[i] = workload.Warmup(items[0], i, 32)
		if c.WarmupFirst {
			warm[i] = items[0]
			warm[i].Due, warm[i].OutputLen = 0, min(items[0].OutputLen, 32)
		}
	}
	cfg.Due = nil
	res, err := loadgen.Run(ctx, cfg, warm)
	if err != nil {
		return err
	}
	for i := range res.Outcomes {
		if res.Outcomes[i].OK() {
			return nil
		}
	}
	return fmt.Errorf("the warm-up failed (%s): %w", res.Outcomes[0].Class, res.Outcomes[0].Err)
}

// prime sends each shared prefix once, one after the other; all must succeed, or the hit rate would mean nothing.
func prime(ctx context.Context, cfg loadgen.Config, primers []workload.Item) error {
	cfg.Due, cfg.MaxConcurrency = nil, 1
	res, err := loadgen.Run(ctx, cfg, primers)
	if err != nil {
		return err
	}
	for i := range res.Outcomes {
		if o := &res.Outcomes[i]; !o.OK() {
			return fmt.Errorf("priming prefix %d failed (%s): %w", i, o.Class, o.Err)
		}
	}
	return nil
}

// report prints the block and the section after it, and appends the JSON line.
func (c *benchCmd) report(control *loadgen.Control, got *benchResult, tok *benchTokenizer, s *streams) (*serving.Metrics, error) {
	res := got.res
	// A stopped run still asks: the context that was stopped is not for the report.
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	slo, err := c.objectives()
	if err != nil {
		return nil, err
	}
	setup := serving.Setup{Backend: c.Backend, RequestRate: c.Rate, MaxConcurrency: c.Concurrency, SLO: slo, Server: got.server}
	switch {
	case c.trace():
		setup.RateLabel = "trace"
	case c.Ramp != "none":
		setup.RateLabel = "ramp"
	}
	if tok != nil {
		setup.Count = tok.count
	}
	info, infoErr := control.Info(ctx) // vLLM has no such route: then there is no accept length
	if infoErr == nil {
		setup.Accept = loadgen.AcceptLength(info)
	}
	m := serving.Compute(res, setup)
	if err := serving.Block(s.out, m, serving.Style(c.Style)); err != nil {
		return m, err
	}
	if !c.NoExtra {
		if err := serving.Extra(s.out, m); err != nil {
			return m, err
		}
	}
	if err := c.appendLine(m, res.Outcomes, c.named(info)); err != nil {
		return m, err
	}
	if err := c.writeRequests(m, got, s); err != nil {
		return m, err
	}
	if err := verdict(m, res); err != nil {
		return m, err
	}
	return m, c.coldness(m)
}

// coldShare is the hit rate above which a run that was to be cold is not.
const coldShare = 0.01

// coldness checks --cold against what the server reports; a server that reports nothing proves nothing.
func (c *benchCmd) coldness(m *serving.Metrics) error {
	if !c.Cold {
		return nil
	}
	rate, ok := m.Tokens.HitRate().Get()
	switch {
	case !ok:
		return checksError{fmt.Errorf("--cold can not be proven: %s", m.Tokens.HitRate().Why())}
	case rate > coldShare:
		return checksError{fmt.Errorf("--cold: %.1f%% of the prompt tokens came from the server's cache; flush it (--flush-cache), or take another --salt or --seed", 100*rate)}
	}
	return nil
}

func (c *benchCmd) named(info json.RawMessage) serving.Run {
	return serving.Run{Tag: c.Tag, Dataset: c.Dataset, ShareGPTOutput: c.GPTOutput, RandomInput: c.RandIn, RandomOutput: c.RandOut,
		RandomRange: c.RandRange, ServerInfo: info, BareInfinity: c.BareInfinity && math.IsInf(c.Rate, 1), Details: c.Details, CacheReport: c.CacheReport}
}

// verdict is the error of a run that was stopped or in which too much failed; the first failure is shown.
func verdict(m *serving.Metrics, res *loadgen.Result) error {
	if m.Partial {
		return errors.New("stopped; the report covers what had ended")
	}
	if failed := m.Attempts - m.Completed; float64(failed) > failShare*float64(m.Attempts) {
		for i := range res.Outcomes {
			if o := &res.Outcomes[i]; !o.OK() {
				return fmt.Errorf("%d of %d requests failed; the first: %s: %w", failed, m.Attempts, o.Class, o.Err)
			}
		}
	}
	return nil
}
