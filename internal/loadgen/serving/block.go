package serving

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"larder/internal/stats"
)

// Style is the form of the block.
type Style string

// The styles: the document that this project answers, and releases of the reference.
const (
	StyleSeed Style = "seed"  // the document's block: rows as in 0.5.4 and a TPOT section, one space, no padding
	Style054  Style = "0.5.4" // releases 0.5.4 and 0.5.5
	Style056  Style = "0.5.6" // releases 0.5.6 and 0.5.7
	StyleHead Style = "head"  // 0.5.14 and later
	StyleVLLM Style = "vllm"  // vllm bench serve
)

// Styles are all of them.
func Styles() []Style { return []Style{StyleSeed, Style054, Style056, StyleHead, StyleVLLM} }

// form is what differs between styles.
type form struct {
	padded, vision, peaks bool
	e2e, ttft, tpot, itl  []string // statistics; an empty list leaves the section out
}

func (s Style) form() form {
	two, three := []string{"Mean", "Median"}, []string{"Mean", "Median", "P99"}
	five := []string{"Mean", "Median", "P90", "P95", "P99"}
	itl := []string{"Mean", "Median", "P95", "P99", "Max"}
	switch s {
	case Style054:
		return form{true, true, false, two, three, nil, itl}
	case Style056:
		return form{true, true, true, two, three, three, itl}
	case StyleHead:
		return form{true, false, true, five, five, five, append(five, "Max")}
	}
	return form{false, true, false, two, three, three, itl}
}

// Block writes the result block in a style. Where the reference prints 0 for what does not exist, so does the block;
// Extra and Line say that it does not.
func Block(w io.Writer, m *Metrics, s Style) error {
	if s == StyleVLLM {
		return vllmBlock(w, m)
	}
	f := s.form()
	p := &page{w: w, padded: f.padded}
	if f.padded {
		p.line("")
	}
	p.rule(" Serving Benchmark Result ", '=')
	p.row("Backend:", m.Setup.Backend)
	p.row("Traffic request rate:", m.rate())
	p.row("Max request concurrency:", m.concurrency())
	p.row("Successful requests:", strconv.Itoa(m.Completed))
	p.float("Benchmark duration (s):", m.Duration)
	p.row("Total input tokens:", strconv.Itoa(m.Input))
	p.row("Total input text tokens:", strconv.Itoa(m.Text))
	if f.vision || m.Vision > 0 {
		p.row("Total input vision tokens:", strconv.Itoa(m.Vision))
	}
	p.row("Total generated tokens:", strconv.Itoa(m.Output))
	p.row("Total generated tokens (retokenized):", m.retokenized())
	p.float("Request throughput (req/s):", m.RequestRate)
	p.float("Input token throughput (tok/s):", m.InputRate)
	p.float("Output token throughput (tok/s):", m.OutputRate)
	if f.peaks {
		p.float("Peak output token throughput (tok/s):", m.PeakOutput)
		p.row("Peak concurrent requests:", strconv.Itoa(m.PeakRequests))
	}
	p.float("Total token throughput (tok/s):", m.TotalRate)
	p.float("Concurrency:", m.Concurrency)
	if v, ok := m.Setup.Accept.Get(); ok && v != 0 {
		p.float("Accept length:", v)
	}
	p.section("End-to-End Latency", "E2E Latency (ms):", f.e2e, m.E2E)
	p.section("Time to First Token", "TTFT (ms):", f.ttft, m.TTFT)
	p.section("Time per Output Token (excl. 1st token)", "TPOT (ms):", f.tpot, m.TPOT)
	p.section("Inter-Token Latency", "ITL (ms):", f.itl, m.ITL)
	p.line(strings.Repeat("=", 50))
	return p.err
}

func (m *Metrics) rate() string {
	if m.Setup.RateLabel != "" {
		return m.Setup.RateLabel
	}
	return pythonFloat(m.Setup.RequestRate)
}

func (m *Metrics) concurrency() string {
	if m.Setup.MaxConcurrency == 0 {
		return "not set"
	}
	return strconv.Itoa(m.Setup.MaxConcurrency)
}

func (m *Metrics) retokenized() string {
	if m.Retokenized < 0 {
		return "n/a"
	}
	return strconv.Itoa(m.Retokenized)
}

// pythonFloat is a float as Python prints it: 8.0, 0.5, inf, 1e+16.
func pythonFloat(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "inf"
	case v != 0 && (math.Abs(v) < 1e-4 || math.Abs(v) >= 1e16):
		return strconv.FormatFloat(v, 'e', -1, 64)
	}
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// page writes lines and keeps the first error.
type page struct {
	w      io.Writer
	padded bool
	err    error
}

func (p *page) line(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, s+"\n")
	}
}

// rule centres a title in 50 fillers; an odd filler goes to the right.
func (p *page) rule(title string, filler byte) {
	room := max(50-len(title), 0)
	fill := func(n int) string { return strings.Repeat(string(filler), n) }
	p.line(fill(room/2) + title + fill(room-room/2))
}

func (p *page) row(label, value string) {
	if p.padded {
		p.line(fmt.Sprintf("%-40s %-10s", label, value))
		return
	}
	p.line(label + " " + value)
}

func (p *page) float(label string, v float64) { p.row(label, fmt.Sprintf("%.2f", v)) }

func (p *page) section(title, label string, statistics []string, s stats.Summary) {
	if len(statistics) == 0 {
		return
	}
	p.rule(title, '-')
	for _, name := range statistics {
		p.float(name+" "+label, statistic(s, name).Or(0))
	}
}

func statistic(s stats.Summary, name string) stats.Value {
	switch strings.ToLower(name) {
	case "mean":
		return s.Mean
	case "median":
		return s.P50
	case "std":
		return s.Std
	case "p90":
		return s.P90
	case "p95":
		return s.P95
	case "p99":
		return s.P99
	}
	return s.Max
}
