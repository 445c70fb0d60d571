package serving

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"larder/internal/loadgen"
	"larder/internal/stats"
)

// The client is no longer to be trusted past these: its own delay then shows in what it measures.
const (
	suspectLagP50 = 10.0 // ms
	suspectLagP99 = 50.0 // ms
	suspectBunch  = 0.2  // share of arrivals
	suspectCPU    = 0.8  // of the cores
)

// Extra writes the section that follows the block: what the reference leaves out, or counts differently.
func Extra(w io.Writer, m *Metrics) error {
	p := &page{w: w, padded: true}
	p.rule(" Beyond the reference ", '=')
	p.attempts(m)
	p.tokens(m)
	p.times(m)
	p.steady(m)
	p.goodput(m)
	p.server(m)
	for _, n := range m.Notes() {
		p.line("Note: " + n)
	}
	for _, n := range m.Warnings() {
		p.line("WARNING: " + n)
	}
	p.line(strings.Repeat("=", 50))
	return p.err
}

func (p *page) attempts(m *Metrics) {
	p.row("Requests attempted:", strconv.Itoa(m.Attempts))
	p.row("Failed requests:", strconv.Itoa(m.Attempts-m.Completed))
	for _, class := range slices.Sorted(maps.Keys(m.Failed)) {
		p.row("  "+class+":", strconv.Itoa(m.Failed[class]))
	}
}

func (p *page) tokens(m *Metrics) {
	t := m.Tokens
	if t.PromptN > 0 {
		p.row("Prompt tokens (by the server):", t.of(t.Prompt, t.PromptN, m.Completed))
	} else {
		p.row("Prompt tokens (by the server):", "not reported")
	}
	p.cached(m)
	for _, s := range slices.Sorted(maps.Keys(t.Sources)) {
		p.row("Output tokens by "+sourceName(s)+":", Count(t.Sources[s], "request"))
	}
	if t.Short > 0 {
		p.row("Answers shorter than asked:", strconv.Itoa(t.Short))
	}
}

// Count is a number with its noun, in the plural but for one.
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// of is a sum, and over how many requests when not all count.
func (t Tokens) of(sum, n, all int) string {
	if n == all {
		return strconv.Itoa(sum)
	}
	return fmt.Sprintf("%d (%d of %d requests)", sum, n, all)
}

func sourceName(s string) string {
	switch s {
	case loadgen.SourceRequested:
		return "nobody (as asked)"
	case loadgen.SourceTokenizer:
		return "our tokenizer"
	}
	return "the server (" + s + ")"
}

func (p *page) cached(m *Metrics) {
	t := m.Tokens
	if t.CachedN == 0 {
		p.row("Cached prompt tokens:", "not reported")
		return
	}
	p.row("Cached prompt tokens:", t.of(t.Cached.Total, t.CachedN, m.Completed))
	for _, tier := range []struct {
		name string
		n    int
	}{{"device", t.Cached.Device}, {"host", t.Cached.Host}, {"storage", t.Cached.Storage}} {
		if tier.n >= 0 {
			p.row("  "+tier.name+":", strconv.Itoa(tier.n))
		}
	}
	if rate, ok := t.HitRate().Get(); ok {
		p.row("Computed prompt tokens:", strconv.Itoa(t.Prompt-t.Cached.Total))
		p.row("Cache hit rate (of the server's tokens):", fmt.Sprintf("%.1f%%", rate*100))
	}
}

// HitRate is cached over prompt tokens, both by the server.
func (t Tokens) HitRate() stats.Value {
	switch {
	case t.CachedN == 0:
		return stats.None("the server does not report cached tokens")
	case t.Prompt == 0:
		return stats.None("the server does not report prompt tokens")
	}
	return stats.Of(float64(max(t.Cached.Total, 0)) / float64(t.Prompt))
}

func (p *page) times(m *Metrics) {
	p.triple("E2E from intended send (ms):", m.FromDue.E2E)
	p.triple("TTFT from intended send (ms):", m.FromDue.TTFT)
	if m.Setup.MaxConcurrency > 0 {
		p.triple("Wait for a place under the cap (ms):", m.Client.Queue)
	}
	p.triple("Send lag of this client (ms):", m.Client.Lag)
	p.triple("Send to request written (ms):", m.Client.Wire)
	p.triple("Gap between arrivals (ms):", m.Client.ChunkGap)
	if k, ok := m.Client.PerChunk.Get(); ok && k != 1 {
		p.float("Tokens per arrival:", k)
	}
	if v, ok := m.Client.Bunched.Get(); ok && v > 0 {
		p.row("Arrivals in one read with another:", fmt.Sprintf("%.1f%%", 100*v))
	}
	if v, ok := m.Client.CPU.Get(); ok {
		p.row("Processor of this client (cores):", fmt.Sprintf("%.2f", v))
	}
	p.row("Connections:", fmt.Sprintf("%d before the clock, %d during the run", m.Client.Prepared, m.Client.Dials))
}

func (p *page) steady(m *Metrics) {
	s := m.Steady
	if s.Reason != "" {
		return
	}
	p.row("Steady window (s):", fmt.Sprintf("%.2f to %.2f", s.From, s.To))
	p.float("  requests done (req/s):", s.RequestRate)
	p.float("  output tokens (tok/s):", s.OutputRate)
	p.triple("  TTFT (ms):", s.TTFT)
}

// triple is one row of mean, p50, p99 and maximum, or the reason why there are none.
func (p *page) triple(label string, s stats.Summary) {
	if s.N == 0 {
		p.row(label, "none: "+s.Reason)
		return
	}
	p.row(label, fmt.Sprintf("mean %.2f p50 %.2f p99 %.2f max %.2f", s.Mean.Or(0), s.P50.Or(0), s.P99.Or(0), s.Max.Or(0)))
}

func (p *page) goodput(m *Metrics) {
	if len(m.Goodput) == 0 {
		return
	}
	if m.Duration > 0 {
		p.float("Request goodput (req/s):", float64(m.Good)/m.Duration)
	}
	if m.Attempts > 0 {
		p.row("Good requests of all attempts:", fmt.Sprintf("%d (%.1f%%)", m.Good, 100*float64(m.Good)/float64(m.Attempts)))
	}
	for _, a := range m.Goodput {
		label := fmt.Sprintf("  %s within %g ms:", a.Metric, a.Limit)
		if share, ok := a.Share.Get(); ok {
			p.row(label, fmt.Sprintf("%.1f%%", share*100))
		} else {
			p.row(label, "none: "+a.Share.Why())
		}
	}
}

// Notes say what the block can not.
func (m *Metrics) Notes() []string {
	var notes []string
	add := func(on bool, text string) {
		if on {
			notes = append(notes, text)
		}
	}
	add(m.Completed > 0 && m.TPOT.N == 0, "TPOT and ITL do not exist ("+m.TPOT.Reason+"); the 0.00 above is the reference's way to say so.")
	add(m.Retokenized < 0, "no tokenizer was given, so nothing was retokenized.")
	add(m.Tokens.Untimed > 0, fmt.Sprintf("%d answers had tokens but no text that could be timed; they are in no TTFT.", m.Tokens.Untimed))
	add(m.Client.Resent > 0, fmt.Sprintf("%s met a connection that the server had just closed and went out again on a new one, the clock running on.", Count(m.Client.Resent, "request")))
	add(m.Setup.Backend == "sglang", "the duration ends with the last answer; the reference also counts its call of /server_info.")
	return notes
}

// Warnings say what makes the numbers doubtful.
func (m *Metrics) Warnings() []string {
	var out []string
	add := func(on bool, format string, args ...any) {
		if on {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	failed := 0
	for _, n := range m.Failed {
		failed += n
	}
	add(m.Completed == 0, "all requests failed; the zeros above are no measurements.")
	add(m.Partial, "the run was stopped; these are the requests that had ended.")
	add(failed > 0 && m.Completed > 0 && !m.Partial, "%d of %s failed: in no latency and in no throughput.", failed, Count(m.Attempts, "request"))
	add(failed+m.Completed != m.Attempts, "internal: %d successes and %d failures of %d attempts.", m.Completed, failed, m.Attempts)
	lag50, lag99 := m.Client.Lag.P50.Or(0), m.Client.Lag.P99.Or(0)
	add(lag50 > suspectLagP50 || lag99 > suspectLagP99, "client-limited: requests left %.1f ms (p50) and %.1f ms (p99) late; the latencies above hide this delay.", lag50, lag99)
	if v, ok := m.Client.CPU.Get(); ok {
		add(v > suspectCPU*float64(m.Client.Cores), "client-limited: this process used %.2f of %d cores.", v, m.Client.Cores)
	}
	if v, ok := m.Client.Bunched.Get(); ok {
		add(v > suspectBunch, "client-limited, or the server sends in bursts: %.0f%% of the arrivals came in one read with another, so gaps are not the server's.", v*100)
	}
	add(m.Tokens.Unclosed > 0, "%d answers report cached tokens that do not add up.", m.Tokens.Unclosed)
	add(m.PeakOutput+1 < m.meanSecond(), "internal: the busiest second has %.0f tokens, fewer than the mean.", m.PeakOutput)
	m.serverWarnings(add)
	if n := m.Tokens.PromptN; n > 0 && n == m.Completed && m.Input > 0 {
		d := float64(m.Tokens.Prompt-m.Input) / float64(m.Input)
		add(d > 0.01 || d < -0.01, "the server counts %d prompt tokens, the data set %d (%+.1f%%); the block and its input throughput use the data set's.", m.Tokens.Prompt, m.Input, d*100)
	}
	return out
}

// meanSecond is the mean over the seconds that PeakOutput is the most of, of what it counts: first tokens and the tokens
// of the gaps. The last seconds are not whole ones, so it lies below the rate over the duration.
func (m *Metrics) meanSecond() float64 {
	return float64(m.TTFT.N+m.ITL.N) / (math.Ceil(m.Duration) + 1)
}
