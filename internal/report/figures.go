package report

import (
	"fmt"
	"slices"

	"larder/internal/record"
)

func throughputFigure(cs []cell) figure {
	if len(cs) == 0 {
		return figure{}
	}
	f := figure{
		Title: "Throughput", Text: "Input tokens served a second. Bars are all tokens over all time; dots are the repeats.",
		Chart: bars(cs, func(c *cell) record.Number { return c.InputPerS }, func(c *cell) []float64 { return c.Each }, whole, "input tokens per second"),
		Head:  []string{"Batch", "Arm", "Input tok/s", "Output tok/s", "Burst, s", "Least possible, s"},
	}
	for i := range cs {
		c := &cs[i]
		f.Rows = append(f.Rows, []string{fmt.Sprint(c.Batch), c.Name, show(c.InputPerS, whole), show(c.OutputPerS, short), show(c.Duration, short), show(c.Limit, short)})
	}
	f.dropEmpty()
	return f
}

func ttftFigure(cs []cell) figure {
	if len(cs) == 0 {
		return figure{}
	}
	return figure{
		Title: "Time to first token", Text: "Mean over the requests of all repeats; dots are the repeats' means. A burst comes all at once, so this is mostly waiting in line.",
		Chart: bars(cs, func(c *cell) record.Number { return c.TTFT.Mean }, func(c *cell) []float64 { return c.EachTTFT }, short, "mean time to first token, ms"),
		Head:  []string{"Batch", "Arm", "n", "Mean ms", "p50 ms", "p90 ms", "p99 ms"},
		Rows:  ttftRows(cs),
	}
}

func ttftRows(cs []cell) [][]string {
	var rows [][]string
	for i := range cs {
		c := &cs[i]
		rows = append(rows, []string{fmt.Sprint(c.Batch), c.Name, fmt.Sprint(c.TTFT.N), show(c.TTFT.Mean, short), show(c.TTFT.P50, short), show(c.TTFT.P90, short), show(c.TTFT.P99, short)})
	}
	return rows
}

func distributionFigure(cs []cell) figure {
	if len(cs) == 0 {
		return figure{}
	}
	f := figure{
		Title: fmt.Sprintf("Distribution of the time to first token, batch %d", cs[0].Batch), Text: "Share of requests, in percent, that had their first token by then. All repeats together.",
		Chart: distribution(cs), Tall: true, Head: []string{"Arm", "n", "Min ms", "p50 ms", "p90 ms", "Max ms"},
	}
	for i := range cs {
		if c := &cs[i]; c.Batch == cs[0].Batch {
			f.Rows = append(f.Rows, []string{c.Name, fmt.Sprint(c.TTFT.N), show(c.TTFT.Min, short), show(c.TTFT.P50, short), show(c.TTFT.P90, short), show(c.TTFT.Max, short)})
		}
	}
	return f
}

// timelineShown bounds the rows of the timeline's table for each arm.
const timelineShown = 8

func timelineFigure(s *record.Study) figure {
	rows := timelineRows(s)
	if len(rows) == 0 {
		return figure{}
	}
	f := figure{
		Title: fmt.Sprintf("Timeline of one burst of %d", rows[0].Batch), Text: "Each bar is a request, from its send to its last line. Each arm has its own time scale.",
		Chart: timeline(s), Tall: true, Head: []string{"Arm", "#", "Admitted", "Loaded", "Computes", "First"},
	}
	if foreign(s) {
		f.Head = []string{"Arm", "#", "Sent", "First", "Done"}
	}
	for _, r := range rows {
		for i := range r.Detail[:min(len(r.Detail), timelineShown)] {
			q := &r.Detail[i]
			if foreign(s) {
				f.Rows = append(f.Rows, []string{armName(r.Arm), fmt.Sprint(q.Index), show(q.SentMS, short), show(q.FirstMS, short), show(q.DoneMS, short)})
				continue
			}
			f.Rows = append(f.Rows, []string{armName(r.Arm), fmt.Sprint(q.Index), show(q.Admitted, short), show(q.Loaded, short), show(q.Started, short), show(q.FirstMS, short)})
		}
	}
	f.Notes = []string{"Milliseconds from the start of the burst. First: first token at the client."}
	if n := len(rows[0].Detail); n > timelineShown {
		f.Notes = append(f.Notes, fmt.Sprintf("The table shows the first %d of %d requests of each arm; study.json has all.", timelineShown, n))
	}
	return f
}

func splitFigure(cs []cell) figure {
	if !slices.ContainsFunc(cs, func(c cell) bool { return c.Split.Queue.OK() }) {
		return figure{}
	}
	f := figure{
		Title: "Where the time went", Text: "Mean time to first token in parts. Queue: waiting for admission or for a step. Load: waiting for KV from host memory. Compute: from the first step with one of the request's rows on, others' rows included.",
		Chart: splitBars(cs), Tall: true, Head: []string{"Batch", "Arm", "Queue ms", "Load ms", "Compute ms", "Client, HTTP ms"},
	}
	for i := range cs {
		c := &cs[i]
		row := []string{fmt.Sprint(c.Batch), c.Name}
		for _, n := range stageValues(&c.Split) {
			row = append(row, show(n, short))
		}
		f.Rows = append(f.Rows, row)
		if n := c.Split.Load; !n.OK() && len(f.Notes) == 0 {
			f.Notes = append(f.Notes, none+" : "+n.Why())
		}
	}
	return f
}

// curveShown bounds the rows of the break-even's table.
const curveShown = 8

func breakEvenFigure(s *record.Study) figure {
	b := &s.BreakEven
	f := figure{
		Title: "Break-even", Text: "What having the KV of a prefix costs one request: computing it again, or loading it from host memory. The time axis is logarithmic.",
		Chart: breakEvenCurve(b, s.Workload.InputLen), Tall: true, Head: []string{"Prefix tokens", "Recompute ms", "Load ms"},
	}
	every := max(1, (len(b.Curve)+curveShown-1)/curveShown)
	for i, p := range b.Curve {
		if i%every == every-1 || i == len(b.Curve)-1 {
			f.Rows = append(f.Rows, []string{whole(float64(p.PrefixTokens)), show(p.RecomputeMS, short), show(p.LoadMS, short)})
		}
	}
	f.Notes = []string{
		fmt.Sprintf("R, recomputed prefix tokens a second: %s. B, load bandwidth: %s. t0, fixed cost of a load: %s. B* = b·R, the bandwidth needed: %s.",
			show(b.RecomputePerS, whole), show(b.LoadBytesPerS, giBs), show(b.LoadFixedMS, millis), show(b.NeedBytesPerS, giBs)),
		"Break-even prefix: " + orWhy(b.PrefixTokens, func(v float64) string { return whole(v) + plural(" token", v) }) +
			"; hit rate: " + orWhy(b.HitRate, percent) + "; smallest batch from which on loading won at every size measured: " + orWhy(b.Batch, whole) + ".",
	}
	if b.LoadSource != "" {
		f.Notes = append(f.Notes, b.LoadSource+".")
	}
	return f
}

// plural is a noun as the number before it wants it.
func plural(noun string, n float64) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

// orWhy formats a number, or says why there is none.
func orWhy(n record.Number, format func(float64) string) string {
	if v, ok := n.Get(); ok {
		return format(v)
	}
	return "none (" + n.Why() + ")"
}
