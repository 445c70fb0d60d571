package kvbench

import (
	"bufio"
	"fmt"
	"io"

	"larder/internal/stats"
)

// Text writes the result: for each phase the document's lines that exist for it and ours, the duplex phase last, where
// all ten of the document's are; then what was checked.
func (r *Result) Text(w io.Writer) error {
	out := bufio.NewWriter(w)
	c := &r.Config
	order := "runs"
	if c.Scatter {
		order = "scattered"
	}
	fmt.Fprintf(out, "%d requests x %d tokens x %d layers, %d in flight, %d batches; %.1f MiB per request and direction in %d blocks of %d tokens (%s)\n",
		c.Requests, c.Tokens, c.Layout.Layers, c.inFlight(), c.Batches,
		float64(c.BytesPerRequest())/(1<<20), c.BlocksPerRequest(), c.Layout.BlockTokens, order)
	for _, p := range r.Phases {
		fmt.Fprintf(out, "\n%v: %.2f GiB in %d copies\n", p.Direction, float64(p.Bytes)/gib, p.Pieces)
		for _, m := range p.Metrics {
			fmt.Fprintln(out, m.line())
		}
	}
	fmt.Fprintln(out)
	for _, k := range r.Checks {
		mark := "ok  "
		if !k.OK {
			mark = "FAIL"
		}
		fmt.Fprintf(out, "%s %s (%s)\n", mark, k.Name, k.Detail)
	}
	return out.Flush()
}

// line prints a metric as the document does; n and the share of the ceiling follow where they say something.
func (m Metric) line() string {
	digits := 3
	if m.Unit != "ms" {
		digits = 2
	}
	f := func(v stats.Value) string {
		x, ok := v.Get()
		if !ok {
			return "-"
		}
		return fmt.Sprintf("%.*f", digits, x)
	}
	s := fmt.Sprintf("%s mean=%s p50=%s p99=%s", m.Name, f(m.Mean()), f(m.Percentile(50)), f(m.Percentile(99)))
	s += fmt.Sprintf("  n=%d", len(m.Samples))
	if m.Share > 0 {
		s += fmt.Sprintf("  %.0f %% of the measured ceiling", 100*m.Share)
	}
	return s
}

// Find is a phase's metric by name.
func (p *Phase) Find(name string) (Metric, bool) {
	for _, m := range p.Metrics {
		if m.Name == name {
			return m, true
		}
	}
	return Metric{}, false
}
