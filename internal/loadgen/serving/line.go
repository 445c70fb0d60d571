package serving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"larder/internal/loadgen"
	"larder/internal/stats"
)

// Run names the run in its JSON line.
type Run struct {
	Tag              string // "" for none
	Dataset          string
	ShareGPTOutput   int // 0 for none
	RandomInput      int
	RandomOutput     int
	RandomRange      float64
	ServerInfo       json.RawMessage // nil: not available
	BareInfinity     bool            // write an infinite rate as the reference does, which is not JSON
	Details          bool            // add per-request lists
	CacheReport      bool            // add the reference's cache report
	ReferenceNumbers bool            // write 0 where a number does not exist, as the reference does; else null
}

// object is a JSON object that keeps the order of its fields.
type object []field

type field struct {
	name  string
	value any
}

func (o *object) add(name string, value any) { *o = append(*o, field{name, value}) }

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, f := range o {
		if i > 0 {
			b = append(b, ", "...)
		}
		v, err := json.Marshal(f.value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		b = append(append(b, fmt.Sprintf("%q: ", f.name)...), v...)
	}
	return append(b, '}'), nil
}

// bareInfinity stands for an infinite rate until the line is complete: no JSON encoder would write it.
const bareInfinity = "\x00larder: infinity\x00"

// Line writes the run as one JSON line with the reference's keys in its order, then our own under "larder".
func Line(w io.Writer, m *Metrics, all []loadgen.Outcome, r Run) error {
	var o object
	o.add("tag", optional(r.Tag))
	o.add("backend", m.Setup.Backend)
	o.add("dataset_name", r.Dataset)
	o.add("request_rate", m.rateValue(r.BareInfinity))
	o.add("max_concurrency", positive(m.Setup.MaxConcurrency))
	o.add("sharegpt_output_len", positive(r.ShareGPTOutput))
	o.add("random_input_len", r.RandomInput)
	o.add("random_output_len", r.RandomOutput)
	o.add("random_range_ratio", r.RandomRange)
	o.add("server_info", r.ServerInfo)
	m.totals(&o)
	m.latencies(&o, r.ReferenceNumbers)
	o.add("concurrency", m.Concurrency)
	o.add("accept_length", m.Setup.Accept)
	o.add("max_output_tokens_per_s", m.PeakOutput)
	o.add("max_concurrent_requests", m.PeakRequests)
	if r.CacheReport {
		o.add("cache_report", m.cacheReport())
	}
	o.add("larder", m.ours())
	if r.Details {
		details(&o, all, r.CacheReport)
	}
	b, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	quoted, err := json.Marshal(bareInfinity)
	if err != nil {
		return err
	}
	_, err = w.Write(append(bytes.Replace(b, quoted, []byte("Infinity"), 1), '\n'))
	return err
}

func optional(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func positive(n int) any {
	if n <= 0 {
		return nil
	}
	return n
}

func (m *Metrics) rateValue(bare bool) any {
	switch {
	case m.Setup.RateLabel != "":
		return m.Setup.RateLabel
	case math.IsInf(m.Setup.RequestRate, 1) && bare:
		return bareInfinity
	case math.IsInf(m.Setup.RequestRate, 1):
		return "inf"
	}
	return m.Setup.RequestRate
}

func (m *Metrics) totals(o *object) {
	o.add("duration", m.Duration)
	o.add("completed", m.Completed)
	o.add("total_input_tokens", m.Input)
	o.add("total_input_text_tokens", m.Text)
	o.add("total_input_vision_tokens", m.Vision)
	o.add("total_output_tokens", m.Output)
	var retokenized any = m.Retokenized
	if m.Retokenized < 0 {
		retokenized = nil
	}
	o.add("total_output_tokens_retokenized", retokenized)
	o.add("request_throughput", m.RequestRate)
	o.add("input_throughput", m.InputRate)
	o.add("output_throughput", m.OutputRate)
	o.add("total_throughput", m.TotalRate)
}

func (m *Metrics) latencies(o *object, zeros bool) {
	for _, l := range []struct {
		name string
		s    stats.Summary
	}{{"e2e_latency", m.E2E}, {"ttft", m.TTFT}, {"tpot", m.TPOT}, {"itl", m.ITL}} {
		for _, k := range []string{"mean", "median", "std", "p90", "p95", "p99"} {
			v := statistic(l.s, k)
			if zeros {
				v = stats.Of(v.Or(0))
			}
			o.add(k+"_"+l.name+"_ms", v)
		}
	}
}

// cacheReport has the reference's keys; the prompt tokens are the server's where it reports them.
func (m *Metrics) cacheReport() object {
	t := m.Tokens
	prompt := t.Prompt
	if t.PromptN < m.Completed {
		prompt = m.Input
	}
	rate := stats.None("no prompt tokens")
	if prompt > 0 {
		rate = stats.Of(math.Round(float64(max(t.Cached.Total, 0))/float64(prompt)*1e4) / 1e2)
	}
	known := func(n int) any {
		if n < 0 {
			return nil
		}
		return n
	}
	return object{
		{"total_prompt_tokens", prompt}, {"total_cached_tokens", max(t.Cached.Total, 0)}, {"cache_hit_rate_pct", rate},
		{"device_cached_tokens", known(t.Cached.Device)}, {"host_cached_tokens", known(t.Cached.Host)},
		{"storage_cached_tokens", positive(t.Cached.Storage)}, {"storage_backend", nil},
	}
}

// ours are the numbers that the reference does not have.
func (m *Metrics) ours() object {
	o := object{
		{"attempts", m.Attempts}, {"failed", m.Failed}, {"interrupted", m.Partial},
		{"output_tokens_by", m.Tokens.Sources}, {"short_answers", m.Tokens.Short}, {"untimed", m.Tokens.Untimed},
		{"e2e_from_intended_ms", m.FromDue.E2E}, {"ttft_from_intended_ms", m.FromDue.TTFT},
		{"send_lag_ms", m.Client.Lag}, {"queue_ms", m.Client.Queue}, {"wire_ms", m.Client.Wire}, {"chunk_gap_ms", m.Client.ChunkGap},
		{"tokens_per_chunk", m.Client.PerChunk}, {"connections_prepared", m.Client.Prepared}, {"connections_dialled", m.Client.Dials}, {"resent", m.Client.Resent},
		{"max_itl_ms", m.ITL.Max}, {"cache_hit_rate", m.Tokens.HitRate()},
	}
	o.add("client_cores", m.Client.CPU)
	o.add("bunched_share", m.Client.Bunched)
	o.add("steady", m.Steady)
	if m.Tokens.PromptN > 0 {
		o.add("server_prompt_tokens", m.Tokens.Prompt)
	}
	if m.Tokens.CachedN > 0 {
		o.add("cached_tokens", tiers(m.Tokens.Cached))
	}
	if len(m.Goodput) > 0 {
		o.add("good_requests", m.Good)
	}
	for _, a := range m.Goodput {
		o.add(fmt.Sprintf("share_%s_within_%g_ms", a.Metric, a.Limit), a.Share)
	}
	if m.Setup.Server != nil {
		o.add("server_metrics", m.Setup.Server)
	}
	o.add("warnings", append([]string{}, m.Warnings()...))
	return o
}

// tiers are the parts of cached tokens that are known.
func tiers(c loadgen.Cached) map[string]int {
	out := map[string]int{}
	for name, n := range map[string]int{"total": c.Total, "device": c.Device, "host": c.Host, "storage": c.Storage} {
		if n >= 0 {
			out[name] = n
		}
	}
	return out
}

// details adds the reference's per-request lists, in seconds; what does not exist is null.
func details(o *object, all []loadgen.Outcome, cache bool) {
	n := len(all)
	in, out, texts, errs := make([]int, n), make([]int, n), make([]string, n), make([]string, n)
	ttft, itls := make([]stats.Value, n), make([][]float64, n)
	cached := make([]any, n)
	for i := range all {
		a := &all[i]
		in[i], texts[i], ttft[i], itls[i] = a.Item.PromptLen, a.Text, stats.None("failed"), []float64{}
		if a.Err != nil {
			errs[i] = a.Class + ": " + a.Err.Error()
			continue
		}
		out[i] = a.OutputTokens
		if d, ok := a.TTFT(); ok {
			ttft[i] = stats.Of(d.Seconds())
		}
		eachGap(a, func(_ time.Duration, gap float64, k int) {
			for range k {
				itls[i] = append(itls[i], gap/1000/float64(k))
			}
		})
		if a.Cached != nil {
			cached[i] = tiers(*a.Cached)
		}
	}
	o.add("input_lens", in)
	o.add("output_lens", out)
	o.add("ttfts", ttft)
	o.add("itls", itls)
	o.add("generated_texts", texts)
	o.add("errors", errs)
	if cache {
		o.add("cached_tokens_details", cached)
	}
}
