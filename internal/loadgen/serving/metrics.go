// Package serving reduces the outcomes of a run to the numbers of a serving benchmark and prints them: the 'Serving
// Benchmark Result' block and the JSON line of the reference client, in the forms of its releases, and after them a
// section of our own with what the reference leaves out or gets wrong. It sends nothing and reads no clock.
//
// Start at Compute, then Block, Extra and Line.
package serving

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"larder/internal/loadgen"
	"larder/internal/loadgen/scrape"
	"larder/internal/stats"
)

// Setup is what a report has to know besides the outcomes.
type Setup struct {
	Backend        string
	RequestRate    float64 // +Inf: all at once
	RateLabel      string  // what stands for the rate where there is no one rate: "trace", "ramp"; else ""
	MaxConcurrency int     // 0: no cap
	Accept         stats.Value
	Count          func(text string) int // tokens of a text without special tokens; nil: no tokenizer
	SLO            []Objective
	Server         *scrape.Report // what /metrics counted meanwhile; nil: nobody asked
}

// Metrics are the numbers of a run. Latencies are in ms. Like the reference they are over the successful requests, and
// E2E, TTFT, TPOT and ITL run from the actual send; FromDue holds the two that run from the intended send.
type Metrics struct {
	Setup     Setup
	Attempts  int
	Completed int
	Failed    map[string]int // by class
	Duration  float64        // s, without any call for server information

	Input, Text, Vision int // nominal tokens, as the data set counts them
	Output              int
	Retokenized         int  // -1: no tokenizer
	Partial             bool // the run was stopped

	RequestRate, InputRate, OutputRate, TotalRate float64 // per s
	Concurrency                                   float64
	PeakOutput                                    float64 // tokens in the busiest second, by the reference's buckets
	PeakRequests                                  int

	E2E, TTFT, TPOT, ITL stats.Summary
	FromDue              struct{ E2E, TTFT stats.Summary }
	Client               Client
	Steady               Steady
	Tokens               Tokens
	Goodput              []Attainment
	Good                 int // requests that met every objective
}

// Client says how well the client kept its own promises.
type Client struct {
	Lag      stats.Summary // slot to send, ms: the client's own delay
	Queue    stats.Summary // intended send to slot, ms: waiting for a place under the cap
	Wire     stats.Summary // send to the last byte of the request written, ms
	Dials    int
	Prepared int           // connections opened before the clock
	Resent   int           // requests that met a connection closed by the server
	ChunkGap stats.Summary // between arrivals, ms, however many tokens they carry
	CPU      stats.Value   // cores that this process used, on average
	Cores    int           // cores of the client's machine
	Bunched  stats.Value   // share of arrivals that came in one read with the one before: above a few percent the client reads late
	PerChunk stats.Value   // tokens in an arrival, on average; absent when the server counts none
}

// Tokens says who counted what.
type Tokens struct {
	Prompt   int            // by the server, over the successes that say so
	PromptN  int            // how many say so
	Cached   loadgen.Cached // sums; a tier is -1 when no answer has it
	CachedN  int            // how many answers say something of cached tokens
	Sources  map[string]int // successes by the source of their output count
	Untimed  int            // successes whose first token could not be timed
	Short    int            // successes with fewer output tokens than asked
	Unclosed int            // successes whose cached tokens by tier do not add up to their total, or pass the prompt
}

// Compute reduces a run.
func Compute(res *loadgen.Result, setup Setup) *Metrics {
	m := &Metrics{Setup: setup, Attempts: len(res.Outcomes), Failed: map[string]int{}, Duration: res.Duration.Seconds(), Partial: res.Interrupted}
	m.Tokens = Tokens{Cached: loadgen.Cached{Total: -1, Device: -1, Host: -1, Storage: -1}, Sources: map[string]int{}}
	if setup.Count == nil {
		m.Retokenized = -1
	}
	l := newLatencies()
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		if !o.OK() {
			m.Failed[o.Class]++
			if o.Sent != loadgen.NeverSent {
				l.client(o)
			}
			continue
		}
		m.Completed++
		l.client(o)
		out := m.count(o)
		l.success(o, out)
	}
	m.rates(l.e2eSum)
	m.PeakOutput, m.PeakRequests = peaks(res.Outcomes)
	l.summaries(m)
	m.Client.Prepared, m.Client.CPU, m.Client.Cores = res.Prepared, cores(res), runtime.NumCPU()
	m.Steady = steady(res.Outcomes, setup.MaxConcurrency)
	m.goodput(res.Outcomes)
	return m
}

// count adds up the tokens of a success and returns its output tokens.
func (m *Metrics) count(o *loadgen.Outcome) int {
	out, source := o.OutputTokens, o.TokenSource
	if m.Setup.Count != nil {
		n := m.Setup.Count(o.Text)
		m.Retokenized += n
		if source == loadgen.SourceRequested && o.Text != "" {
			out, source = n, loadgen.SourceTokenizer
		}
	}
	t := &m.Tokens
	t.Sources[source]++
	m.Input += o.Item.PromptLen
	m.Text += o.Item.PromptLen
	m.Output += out
	if o.PromptTokens >= 0 {
		t.Prompt += o.PromptTokens
		t.PromptN++
	}
	if o.First == 0 {
		t.Untimed++
	}
	if out < o.Item.OutputLen {
		t.Short++
	}
	t.cached(o)
	return out
}

// cached adds one answer's cached tokens and checks that they add up.
func (t *Tokens) cached(o *loadgen.Outcome) {
	c := o.Cached
	if c == nil {
		return
	}
	t.CachedN++
	add := func(sum *int, v int) {
		if v >= 0 {
			*sum = max(*sum, 0) + v
		}
	}
	tiers := max(c.Device, 0) + max(c.Host, 0) + max(c.Storage, 0)
	total := c.Total
	if total < 0 {
		total = tiers
	}
	add(&t.Cached.Total, total)
	add(&t.Cached.Device, c.Device)
	add(&t.Cached.Host, c.Host)
	add(&t.Cached.Storage, c.Storage)
	if c.Device >= 0 && tiers != total || o.PromptTokens >= 0 && total > o.PromptTokens {
		t.Unclosed++
	}
}

// cores is the processor time of the run over its duration.
func cores(res *loadgen.Result) stats.Value {
	if res.CPU <= 0 || res.Duration <= 0 {
		return stats.None("not known on this system")
	}
	return stats.Of(res.CPU.Seconds() / res.Duration.Seconds())
}

func (m *Metrics) rates(e2eSum float64) {
	if m.Duration <= 0 {
		return
	}
	m.RequestRate = float64(m.Completed) / m.Duration
	m.InputRate = float64(m.Input) / m.Duration
	m.OutputRate = float64(m.Output) / m.Duration
	m.TotalRate = float64(m.Input+m.Output) / m.Duration
	m.Concurrency = e2eSum / 1000 / m.Duration
}

// latencies collects the samples of a run, in ms.
type latencies struct {
	e2e, ttft, tpot, itl, dueE2E, dueTTFT, lag, queue, wire, chunk stats.Sample
	e2eSum                                                         float64
	dials, resent, arrivals, arrived, bunched                      int
}

func newLatencies() *latencies {
	l := &latencies{}
	for _, s := range []*stats.Sample{&l.e2e, &l.ttft, &l.tpot, &l.itl, &l.dueE2E, &l.dueTTFT, &l.lag, &l.queue, &l.wire, &l.chunk} {
		s.Unit = "ms"
	}
	return l
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

func (l *latencies) client(o *loadgen.Outcome) {
	l.lag.Add(ms(o.Sent - o.Slot))
	l.queue.Add(ms(o.Slot - o.Due))
	if o.Wrote > 0 {
		l.wire.Add(ms(o.Wrote - o.Sent))
	}
	if o.Connect > 0 {
		l.dials++
	}
	if o.Resent {
		l.resent++
	}
}

func (l *latencies) success(o *loadgen.Outcome, out int) {
	l.e2e.Add(ms(o.Latency()))
	l.e2eSum += ms(o.Latency())
	l.dueE2E.Add(ms(o.Done - o.Due))
	ttft, timed := o.TTFT()
	if !timed {
		return
	}
	l.ttft.Add(ms(ttft))
	l.dueTTFT.Add(ms(o.First - o.Due))
	if out > 1 {
		l.tpot.Add(ms(o.Done-o.First) / float64(out-1))
	}
	eachGap(o, func(_ time.Duration, gap float64, tokens int) {
		l.chunk.Add(gap)
		if gap == 0 {
			l.bunched++
		}
		for range tokens {
			l.itl.Add(gap / float64(tokens))
		}
	})
	for _, c := range o.Chunks {
		if c.Tokens > 0 {
			l.arrivals++
			l.arrived += c.Tokens
		}
	}
}

// eachGap calls f with the end, length (ms) and tokens of each gap between arrivals. A chunk whose tokens nobody
// counted is taken for one, as in the reference.
func eachGap(o *loadgen.Outcome, f func(at time.Duration, gap float64, tokens int)) {
	for i := 1; i < len(o.Chunks); i++ {
		f(o.Chunks[i].At, ms(o.Chunks[i].At-o.Chunks[i-1].At), max(o.Chunks[i].Tokens, 1))
	}
}

func (l *latencies) summaries(m *Metrics) {
	none := "no request succeeded"
	one := none
	if m.Completed > 0 {
		one = "no answer has a second token"
	}
	m.E2E, m.TTFT = l.e2e.Summary(none), l.ttft.Summary(none)
	m.TPOT, m.ITL = l.tpot.Summary(one), l.itl.Summary(one)
	m.FromDue.E2E, m.FromDue.TTFT = l.dueE2E.Summary(none), l.dueTTFT.Summary(none)
	m.Client = Client{
		Lag: l.lag.Summary(""), Queue: l.queue.Summary(""), Wire: l.wire.Summary(""), ChunkGap: l.chunk.Summary(one),
		Dials: l.dials, Resent: l.resent, PerChunk: stats.None("the server does not count tokens by chunk"),
		Bunched: stats.None(one),
	}
	if n := l.chunk.N(); n > 0 {
		m.Client.Bunched = stats.Of(float64(l.bunched) / float64(n))
	}
	if l.arrivals > 0 {
		m.Client.PerChunk = stats.Of(float64(l.arrived) / float64(l.arrivals))
	}
}

// peaks are the most tokens and the most requests in any second counted from the first send, by the reference's rule:
// a request counts in each second that it touches.
func peaks(all []loadgen.Outcome) (tokens float64, requests int) {
	first, last := time.Duration(math.MaxInt64), time.Duration(0)
	for i := range all {
		if o := &all[i]; o.OK() {
			first, last = min(first, o.Sent), max(last, o.Done)
		}
	}
	if first > last {
		return 0, 0
	}
	n := int(math.Ceil((last - first).Seconds())) + 1
	perSecond, open := make([]float64, n), make([]int, n)
	bucket := func(at time.Duration) int { return min(max(int((at-first)/time.Second), 0), n-1) }
	for i := range all {
		o := &all[i]
		if !o.OK() {
			continue
		}
		if o.First > 0 {
			perSecond[bucket(o.First)]++
		}
		eachGap(o, func(at time.Duration, gap float64, k int) {
			for j := range k { // spread over the gap, as the reference does
				perSecond[bucket(at-time.Duration(gap*1e6/float64(k)*float64(k-1-j)))]++
			}
		})
		for s := bucket(o.Sent); s <= bucket(o.Done); s++ {
			open[s]++
		}
	}
	for s := range n {
		tokens, requests = max(tokens, perSecond[s]), max(requests, open[s])
	}
	return tokens, requests
}

// Objective is one latency limit of a request.
type Objective struct {
	Metric string  // ttft, tpot or e2el
	Limit  float64 // ms
}

// Attainment is the share of all attempts that met an objective, failures being misses.
type Attainment struct {
	Objective
	Share stats.Value
}

// Validate refuses an unknown metric and a limit that no request can be held to.
func (o Objective) Validate() error {
	switch o.Metric {
	case "ttft", "tpot", "e2el":
	default:
		return fmt.Errorf("goodput metric %q: known are ttft, tpot, e2el", o.Metric)
	}
	if !(o.Limit > 0) || math.IsInf(o.Limit, 0) {
		return fmt.Errorf("goodput limit %v ms must be a finite number above 0", o.Limit)
	}
	return nil
}

// goodput counts over all attempts. A time per output token does not apply to one-token answers: it neither fails nor
// passes them, and its share is over the answers that have one and the failures.
func (m *Metrics) goodput(all []loadgen.Outcome) {
	if len(m.Setup.SLO) == 0 {
		return
	}
	met, applies := make([]int, len(m.Setup.SLO)), make([]int, len(m.Setup.SLO))
	for i := range all {
		good := all[i].OK()
		for k, slo := range m.Setup.SLO {
			v, ok := observed(&all[i], slo.Metric)
			if !ok && all[i].OK() && slo.Metric == "tpot" {
				continue
			}
			applies[k]++
			if ok && v <= slo.Limit {
				met[k]++
			} else {
				good = false
			}
		}
		if good {
			m.Good++
		}
	}
	for k, slo := range m.Setup.SLO {
		a := Attainment{slo, stats.None("applies to no request")}
		if applies[k] > 0 {
			a.Share = stats.Of(float64(met[k]) / float64(applies[k]))
		}
		m.Goodput = append(m.Goodput, a)
	}
}

// observed is a request's value of an objective's metric in ms.
func observed(o *loadgen.Outcome, metric string) (float64, bool) {
	ttft, timed := o.TTFT()
	switch {
	case !o.OK():
		return 0, false
	case metric == "ttft":
		return ms(ttft), timed
	case metric == "e2el":
		return ms(o.Latency()), true
	}
	if !timed || o.OutputTokens < 2 {
		return 0, false
	}
	return ms(o.Done-o.First) / float64(o.OutputTokens-1), true
}
