package serving

import (
	"io"
	"math"
	"strconv"
	"strings"
)

// vllmBlock writes the block of `vllm bench serve` with its default choice of percentiles.
func vllmBlock(w io.Writer, m *Metrics) error {
	p := &page{w: w, padded: true}
	p.rule(" Serving Benchmark Result ", '=')
	p.row("Successful requests:", strconv.Itoa(m.Completed))
	p.row("Failed requests:", strconv.Itoa(m.Attempts-m.Completed))
	if m.Setup.MaxConcurrency > 0 {
		p.row("Maximum request concurrency:", strconv.Itoa(m.Setup.MaxConcurrency))
	}
	if m.Setup.RateLabel == "" && !math.IsInf(m.Setup.RequestRate, 1) {
		p.float("Request rate configured (RPS):", m.Setup.RequestRate)
	}
	p.float("Benchmark duration (s):", m.Duration)
	p.row("Total input tokens:", strconv.Itoa(m.Input))
	p.row("Total generated tokens:", strconv.Itoa(m.Output))
	p.float("Request throughput (req/s):", m.RequestRate)
	if len(m.Setup.SLO) > 0 && m.Duration > 0 {
		p.float("Request goodput (req/s):", float64(m.Good)/m.Duration)
	}
	p.float("Output token throughput (tok/s):", m.OutputRate)
	p.float("Peak output token throughput (tok/s):", m.PeakOutput)
	p.float("Peak concurrent requests:", float64(m.PeakRequests))
	p.float("Total token throughput (tok/s):", m.TotalRate)
	three := []string{"Mean", "Median", "P99"}
	p.section("Time to First Token", "TTFT (ms):", three, m.TTFT)
	p.section("Time per Output Token (excl. 1st token)", "TPOT (ms):", three, m.TPOT)
	p.section("Inter-token Latency", "ITL (ms):", three, m.ITL)
	p.line(strings.Repeat("=", 50))
	return p.err
}
