package kvbench

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"larder/internal/stats"
)

// Text writes the result: for each phase the document's lines that exist for it and ours, the duplex phase last, where
// all ten of the document's are; then what was checked.
func (r *Result) Text(w io.Writer) error {
	out := bufio.NewWriter(w)
	c := &r.Config
	order := "in runs"
	if c.Scatter {
		order = "scattered"
	}
	if c.Layered {
		order += ", layer by layer"
	}
	fmt.Fprintf(out, "%d requests x %d tokens x %d layers, %d in flight, %d batches; %.1f MiB per request and direction in %d blocks of %d tokens (%s)\n",
		c.Requests, c.Tokens, c.Layout.Layers, c.inFlight(), c.Batches,
		float64(c.BytesPerRequest())/(1<<20), c.BlocksPerRequest(), c.Layout.BlockTokens, order)
	for _, p := range r.Phases {
		fmt.Fprintf(out, "\n%v: %.2f GiB in %d pieces, handed over in %d batches (%s)\n", p.Direction, float64(p.Bytes)/gib, p.Pieces, p.HandOvers, p.methods())
		for _, m := range p.Metrics {
			fmt.Fprintln(out, m.line())
		}
	}
	fmt.Fprintln(out)
	for _, line := range r.notes() {
		fmt.Fprintln(out, line)
	}
	for _, k := range r.Checks {
		mark := "ok  "
		if !k.OK {
			mark = "FAIL"
		}
		fmt.Fprintf(out, "%s %s (%s)\n", mark, k.Name, k.Detail)
	}
	return out.Flush()
}

// notes say what a reader of the figures could be misled by.
func (r *Result) notes() (out []string) {
	c := &r.Config
	if n := c.regions(); n < c.Requests {
		out = append(out, fmt.Sprintf("note: %d requests load from the host blocks of %d and store over each other's, because host memory is short; the bytes that move are the same",
			c.Requests, n))
	}
	for _, p := range r.Phases {
		for _, m := range p.Metrics {
			if m.Share > 1.005 {
				out = append(out, fmt.Sprintf("note: %v is %.0f %% of the ceiling: on a CPU, parts of these %.0f MiB stay in its cache, or copies found more cores than the ceiling's; on a link, the ceiling came out low in its few turns",
					p.Direction, 100*m.Share, float64(c.poolTouched(p.Direction))/(1<<20)))
			}
		}
	}
	return out
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

// methods names the methods of the batches, most used first.
func (p *Phase) methods() string {
	names := slices.Sorted(maps.Keys(p.Methods))
	slices.SortStableFunc(names, func(a, b string) int { return p.Methods[b] - p.Methods[a] })
	return strings.Join(names, ", ")
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
