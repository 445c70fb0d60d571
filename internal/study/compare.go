package study

import (
	"fmt"

	"larder/internal/record"
	"larder/internal/stats"
)

// pairs are the comparisons that people ask for: does a beat b?
var pairs = [][2]string{
	{record.HBMArm, record.Recompute},
	{record.HostArm, record.Recompute},
	{record.HBMArm, record.HostArm},
}

// Comparisons pairs the arms over the repeats, batch by batch: repeat k of one arm was measured beside repeat k of the
// other.
func Comparisons(rows []record.Row, batches []int, repeats int) []record.Comparison {
	var out []record.Comparison
	for _, b := range batches {
		for _, p := range pairs {
			for _, metric := range []string{"duration_s", "ttft_mean_ms"} {
				xs, ys := Paired(rows, repeats, b, p[0], p[1], metric)
				if len(xs) > 0 {
					out = append(out, comparison(b, p[0], p[1], metric, xs, ys))
				}
			}
		}
	}
	return out
}

func (r *run) paired(batch int, a, b, metric string) (xs, ys []float64) {
	return Paired(r.out.Rows, r.cfg.Repeats, batch, a, b, metric)
}

// Paired are a metric's values (duration_s or ttft_mean_ms) of two arms at a batch size in the repeats that both have,
// without those in which requests failed.
func Paired(rows []record.Row, repeats, batch int, a, b, metric string) (xs, ys []float64) {
	for rep := range repeats {
		x, okX := value(rows, batch, a, rep, metric)
		y, okY := value(rows, batch, b, rep, metric)
		if okX && okY {
			xs, ys = append(xs, x), append(ys, y)
		}
	}
	return xs, ys
}

func value(rows []record.Row, batch int, arm string, rep int, metric string) (float64, bool) {
	for i := range rows {
		row := &rows[i]
		if row.Batch != batch || row.Arm != arm || row.Repeat != rep || row.Failed > 0 {
			continue
		}
		if metric == "duration_s" {
			return row.DurationS, row.DurationS > 0
		}
		return row.TTFT.Mean.Get()
	}
	return 0, false
}

// comparison says how many times faster a is than b, and how much it saves.
func comparison(batch int, a, b, metric string, xs, ys []float64) record.Comparison {
	unit := 1.0
	if metric == "duration_s" {
		unit = 1000
	}
	speedup, diff := stats.PairedRatio(ys, xs), stats.PairedDiff(ys, xs)
	diff.Mean, diff.Lo, diff.Hi = diff.Mean*unit, diff.Lo*unit, diff.Hi*unit
	c := record.Comparison{Batch: batch, A: a, B: b, Metric: metric, Speedup: interval(speedup), DiffMS: interval(diff)}
	c.Verdict, c.Sentence = verdict(&c, speedup)
	return c
}

func verdict(c *record.Comparison, speedup stats.Interval) (verdict, sentence string) {
	at := fmt.Sprintf("batch %d, %s", c.Batch, metricName(c.Metric))
	switch {
	case !speedup.OK():
		return record.VerdictNone, fmt.Sprintf("%s: %s against %s cannot be judged: %s", at, c.A, c.B, speedup.Reason)
	case speedup.Lo > 1:
		return record.VerdictA, fmt.Sprintf("%s: %s is %.2f times as fast as %s (95 %% interval %.2f to %.2f, %d pairs)", at, c.A, speedup.Mean, c.B, speedup.Lo, speedup.Hi, speedup.N)
	case speedup.Hi < 1:
		return record.VerdictB, fmt.Sprintf("%s: %s is %.2f times as fast as %s (95 %% interval %.2f to %.2f, %d pairs)", at, c.B, 1/speedup.Mean, c.A, 1/speedup.Hi, 1/speedup.Lo, speedup.N)
	}
	return record.VerdictOpen, fmt.Sprintf("%s: %s and %s cannot be told apart (ratio %.2f, 95 %% interval %.2f to %.2f includes 1, %d pairs)", at, c.A, c.B, speedup.Mean, speedup.Lo, speedup.Hi, speedup.N)
}

func metricName(metric string) string {
	if metric == "duration_s" {
		return "whole burst"
	}
	return "mean time to first token"
}

// limitSlack is how much faster than its limit a row may be before the limit is called wrong: ceilings are measured,
// and a measurement has noise; and the bytes of a decode step expect uniform routing, while real routing reads fewer
// experts.
const limitSlack = 1.25

// checkRows looks at what only the whole record shows.
func (r *run) checkRows() {
	for _, list := range [][]record.Row{r.out.Rows, r.out.Decode, r.out.HeldOut} {
		for i := range list {
			row := &list[i]
			if share, ok := row.Share.Get(); ok {
				r.checks.expect(checkLimits, share <= limitSlack, "%s batch %d repeat %d: %.2f of the limit", row.Arm, row.Batch, row.Repeat, share)
			}
		}
	}
	for i := range r.out.KV {
		r.checkKV(&r.out.KV[i])
	}
}

// lateShare is the part of a mean TTFT beyond which the client's own delay is worth a warning.
const lateShare = 0.05

// noteLateSends warns of bursts in which the client itself was slow to send.
func (r *run) noteLateSends() {
	late, worst := 0, 0.0
	for i := range r.out.Rows {
		row := &r.out.Rows[i]
		lag, ok1 := row.SendLag.Max.Get()
		ttft, ok2 := row.TTFT.Mean.Get()
		if ok1 && ok2 && lag > lateShare*ttft {
			late, worst = late+1, max(worst, lag)
		}
	}
	if late > 0 {
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("In %d of %d bursts the client sent a request later than due by more than %.0f %% of the mean TTFT (%.3g ms at worst); their latencies count from the send.",
			late, len(r.out.Rows), 100*lateShare, worst))
	}
}

// checkKV holds the batch bandwidth against bytes and makespan. Both are means over batches, hence the tolerance.
func (r *run) checkKV(k *record.KVRow) {
	bw, ok1 := k.BatchGiBs.Mean.Get()
	span, ok2 := k.MakespanMS.Mean.Get()
	if !ok1 || !ok2 {
		return
	}
	bytes := 2 * float64(k.Requests) * float64(k.BytesPerWay)
	got := bw * (1 << 30) * span / 1000
	// The mean of 1/x is at least 1/mean: by the spread of the batches, no more.
	slack := 0.02
	if lo, hi := k.MakespanMS.Min.Or(span), k.MakespanMS.Max.Or(span); lo > 0 {
		slack += hi/lo - 1
	}
	r.checks.expect(checkKV, within(got, bytes, slack), "%s: %.4g bytes by bandwidth x time, %.4g moved", k.Name, got, bytes)
}
