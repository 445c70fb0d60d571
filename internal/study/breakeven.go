package study

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"larder/internal/cost"
	"larder/internal/device"
	"larder/internal/record"
	"larder/internal/stats"
)

const formula = "load a prefix of n tokens when t0 + n*b/B < n/R (b: KV bytes per token, B: load bandwidth, t0: fixed cost of a load, R: recomputed tokens a second, falling with n as attention grows)"

// breakEven says from which prefix length, hit rate and batch on loading from host memory beats recomputing.
func (r *run) breakEven() {
	b := &r.out.BreakEven
	b.Formula = formula
	model := r.fit(&b.Fit)
	r.winningBatch(b)
	rates, why := r.measureRates(b)
	if why != "" {
		none := record.Absent(why)
		b.RecomputePerS, b.LoadBytesPerS, b.LoadFixedMS, b.NeedBytesPerS = none, none, none, none
		b.Margin, b.PrefixTokens, b.HitRate = none, none, none
		b.Verdict = "No break-even: " + why + "."
		return
	}
	b.RecomputePerS = record.Of(rates.Recompute)
	b.LoadBytesPerS, b.LoadFixedMS = record.Of(rates.Load), record.Of(rates.Fixed*1000)
	b.NeedBytesPerS, b.Margin = record.Of(rates.NeedBandwidth()), record.Of(rates.Margin())
	r.curve(b, rates)
	r.decide(b, model, rates)
	lead := "By the measured rates"
	if !b.Batch.OK() {
		lead = "The bursts themselves leave it open; by the measured rates alone"
	}
	n, ok := rates.MinPrefix(searchLimit(r.cfg.InputLen))
	if !ok {
		none := record.Absent(fmt.Sprintf("recomputing is faster at every length up to %s tokens", tokens(searchLimit(r.cfg.InputLen))))
		b.PrefixTokens, b.HitRate = none, none
		b.Verdict = fmt.Sprintf("Recomputing beats loading at every prefix length up to %s tokens: the link gives %s, %s would be needed.",
			tokens(searchLimit(r.cfg.InputLen)), perSecond(rates.Load), perSecond(rates.NeedBandwidth()))
		return
	}
	b.PrefixTokens = record.Of(float64(n))
	b.HitRate = record.Of(float64(n) / float64(r.cfg.InputLen))
	if n >= r.cfg.InputLen {
		b.HitRate = record.Absent(fmt.Sprintf("the break-even prefix is longer than the prompt of %s tokens", tokens(r.cfg.InputLen)))
		b.Verdict = fmt.Sprintf("%s loading from host memory beats recomputing only from %s tokens of prefix on, more than these prompts have; the link gives %s times the bandwidth needed.", lead, tokens(n), factor(rates.Margin()))
		return
	}
	b.Verdict = fmt.Sprintf("%s loading from host memory beats recomputing from %s of prefix on (a hit rate of %.3g %% of %s tokens); the link gives %s times the bandwidth needed.",
		lead, smallest(n, r.env.Layout.BlockTokens), 100*float64(n)/float64(r.cfg.InputLen), tokens(r.cfg.InputLen), factor(rates.Margin()))
}

// searchLimit is the longest prefix that the break-even is searched in.
func searchLimit(input int) int { return 8 * input }

func smallest(n, block int) string {
	if n == block {
		return fmt.Sprintf("one block (%s tokens)", tokens(n))
	}
	return tokens(n) + " tokens"
}

// Whole is a number for a sentence: rounded, with thousands apart.
func Whole(v float64) string {
	s := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if v <= -0.5 {
		s = "-" + s
	}
	return s
}

func tokens(n int) string { return Whole(float64(n)) }

// factor keeps a multiple readable: 5.46, 1,583.
func factor(x float64) string {
	if x >= 100 {
		return Whole(x)
	}
	return fmt.Sprintf("%.3g", x)
}

func perSecond(b float64) string { return fmt.Sprintf("%.3g GB/s", b/1e9) }

// measureRates takes R from the paired difference between recompute and hbm at the largest batch, and B and t0 from
// how long requests waited for their loads at the smallest. why is not empty when that cannot be had.
func (r *run) measureRates(b *record.BreakEven) (rates cost.Rates, why string) {
	most, least := maxBatch(r.cfg), minBatch(r.cfg)
	rec, hbm := r.paired(most, record.Recompute, record.HBMArm, "duration_s")
	diff := stats.PairedDiff(rec, hbm)
	if diff.N == 0 || diff.Mean <= 0 {
		return rates, "recompute and hbm were not both measured, or recompute was not slower"
	}
	link := r.ceiling(device.CeilingHostToDev)
	if link == 0 {
		return rates, "the host-to-device ceiling was not measured"
	}
	span, from := r.loadSpan(least)
	if from == "" {
		return rates, "no load from host memory was measured"
	}
	bytes := float64(r.shared) * float64(r.env.Layout.TokenBytes())
	rates = cost.Rates{Layout: r.env.Layout, Anchor: r.shared, Recompute: float64(r.shared) * float64(most) / diff.Mean, Load: link}
	rates.Fixed = span - bytes/link
	b.LoadSource = "B: the measured host-to-device ceiling; t0: " + from + ", less the prefix's bytes over B"
	if rates.Fixed < 0 {
		rates.Fixed, rates.Load = 0, bytes/max(span, 1e-9)
		b.LoadSource = "B: the prefix's bytes over " + from + ", which is more than the measured ceiling; t0: 0"
	}
	if f := r.env.Roofline; f != nil {
		// The first n tokens of a longer prompt: without the head, which every prompt pays once.
		rates.Work = func(n int) float64 { return f.PrefillFLOPs(n+1, 0) - f.PrefillFLOPs(1, n) }
	}
	return rates, ""
}

// loadSpan is the mean time, in seconds, for which a request of the host arm waited for its load: by the engine's
// clock, or else by what the host arm took longer than hbm.
func (r *run) loadSpan(batch int) (seconds float64, from string) {
	var spans []float64
	for i := range r.out.Rows {
		row := &r.out.Rows[i]
		if v, ok := row.Split.Load.Get(); ok && row.Arm == record.HostArm && row.Batch == batch && row.Cached.Host > 0 {
			spans = append(spans, v/1000)
		}
	}
	if m, ok := stats.Mean(spans).Get(); ok {
		return m, fmt.Sprintf("the mean wait for a load at batch %d by the engine's clock", batch)
	}
	host, hbm := r.paired(batch, record.HostArm, record.HBMArm, "duration_s")
	if d := stats.PairedDiff(host, hbm); d.N > 0 {
		return max(d.Mean/float64(batch), 0), fmt.Sprintf("what the host arm took longer than hbm at batch %d", batch)
	}
	return 0, ""
}

// curvePoints is how many lengths the break-even curve has.
const curvePoints = 24

// curve fills the break-even curve and the points that were measured.
func (r *run) curve(b *record.BreakEven, rates cost.Rates) {
	block := r.env.Layout.BlockTokens
	for k := 1; k <= curvePoints; k++ {
		n := max(block, r.cfg.InputLen*k/curvePoints/block*block)
		if len(b.Curve) > 0 && b.Curve[len(b.Curve)-1].PrefixTokens == n {
			continue
		}
		b.Curve = append(b.Curve, record.Point{PrefixTokens: n, RecomputeMS: record.Of(1000 * rates.RecomputeSeconds(n)), LoadMS: record.Of(1000 * rates.LoadSeconds(n))})
	}
	span, _ := r.loadSpan(minBatch(r.cfg))
	b.Measured = []record.Point{{PrefixTokens: r.shared, RecomputeMS: record.Of(1000 * rates.RecomputeSeconds(r.shared)), LoadMS: record.Of(1000 * span)}}
	for i := range r.out.HeldOut {
		if host := &r.out.HeldOut[i]; host.Arm == record.HostArm {
			b.Measured = append(b.Measured, record.Point{PrefixTokens: host.SharedLen, LoadMS: host.Split.Load, RecomputeMS: r.saved(host.SharedLen)})
		}
	}
}

// saved is what a held-out prefix in device memory saved one request: the recompute arm's mean burst at that batch
// less the held-out one.
func (r *run) saved(shared int) record.Number {
	var full []float64
	for i := range r.out.Rows {
		if row := &r.out.Rows[i]; row.Arm == record.Recompute && row.Batch == minBatch(r.cfg) && usable(row) {
			full = append(full, row.DurationS)
		}
	}
	all, ok := stats.Mean(full).Get()
	for i := range r.out.HeldOut {
		if row := &r.out.HeldOut[i]; ok && row.Arm == record.HBMArm && row.SharedLen == shared && usable(row) {
			return record.Of(1000 * (all - row.DurationS) / float64(row.Batch))
		}
	}
	return record.Absent("not measured in the hbm arm at this prefix length")
}

// mapRates are the hit rates of the decision map.
var mapRates = []float64{0.1, 0.25, 0.5, 0.75, 0.9}

// decide fills the map of hit rate and batch with what the fitted model predicts. Loads are charged by the measured
// rates, one after another and before any computing: what overlaps in truth only makes the host arm better.
func (r *run) decide(b *record.BreakEven, m *cost.Model, rates cost.Rates) {
	if m == nil {
		return
	}
	burst := func(batch, shared int) float64 {
		return m.Predict(cost.Burst{Requests: batch, TFLOP: float64(batch) * r.env.Roofline.PrefillFLOPs(r.cfg.InputLen-shared, shared) / 1e12})
	}
	for _, h := range mapRates {
		shared := r.cfg.SharedLen(h, r.env.Layout.BlockTokens)
		if shared == 0 {
			continue
		}
		for _, n := range r.cfg.BatchSizes {
			hbm := burst(n, shared)
			b.Map = append(b.Map, record.Cell{HitRate: float64(shared) / float64(r.cfg.InputLen), Batch: n, RecomputeS: burst(n, 0), HostS: hbm + float64(n)*rates.LoadSeconds(shared), HBMS: hbm})
		}
	}
}

// winningBatch is the smallest batch from which on the host arm beat recompute at every measured batch, each with an
// interval that excludes "equal".
func (r *run) winningBatch(b *record.BreakEven) {
	won := map[int]bool{}
	judged := false
	for _, c := range r.out.Comparisons {
		if c.A == record.HostArm && c.B == record.Recompute && c.Metric == "duration_s" {
			won[c.Batch] = c.Verdict == record.VerdictA
			judged = judged || c.Verdict != record.VerdictNone
		}
	}
	sizes := slices.Sorted(slices.Values(r.cfg.BatchSizes))
	first := 0
	for _, n := range slices.Backward(sizes) {
		if !won[n] {
			break
		}
		first = n
	}
	switch {
	case first > 0:
		b.Batch = record.Of(float64(first))
	case !judged:
		b.Batch = record.Absent("not enough repeats to judge any batch")
	default:
		b.Batch = record.Absent("loading did not beat recomputing for certain at the largest batch")
	}
}

// work is what the fit's model charges a row for.
func (r *run) work(row *record.Row, id int, name string) cost.Burst {
	done := row.Requests - row.Failed
	cached := (row.Cached.Device + row.Cached.Host) / max(done, 1)
	return cost.Burst{
		ID: id, Name: name, Requests: done, Seconds: row.DurationS, GiB: row.LoadedBytes.Or(0) / (1 << 30),
		TFLOP: float64(done) * r.env.Roofline.PrefillFLOPs(r.cfg.InputLen-cached, cached) / 1e12,
	}
}

// fit fits the duration model to the paired bursts and judges it on what it has not seen: each batch size predicted
// from the others, and the held-out hit rates predicted from all. It returns nil when there is no model.
func (r *run) fit(f *record.Fit) *cost.Model {
	none := func(why string) *cost.Model {
		n := record.Absent(why)
		*f = record.Fit{FixedS: n, SPerRequest: n, SPerTFLOP: n, SPerGiB: n, MeanError: n, MaxError: n}
		return nil
	}
	if r.env.Roofline == nil {
		return none("no roofline model")
	}
	if r.cfg.OutputLen > 1 {
		return none("the model covers one output token; these answers are longer")
	}
	var bursts []cost.Burst
	rows := slices.Concat(r.out.Rows, r.out.HeldOut)
	for i := range rows {
		if row := &rows[i]; i < len(r.out.Rows) && usable(row) {
			bursts = append(bursts, r.work(row, i, fmt.Sprintf("batch %d", row.Batch)))
		}
	}
	m, err := cost.Fit(bursts)
	if err != nil {
		return none(err.Error())
	}
	*f = record.Fit{Points: len(bursts), FixedS: record.Of(m.Fixed), SPerRequest: record.Of(m.PerRequest), SPerTFLOP: record.Of(m.PerTFLOP), SPerGiB: record.Of(m.PerGiB)}
	seen := cost.LeaveOut(bursts)
	for i := len(r.out.Rows); i < len(rows); i++ {
		if usable(&rows[i]) {
			w := r.work(&rows[i], i, "held-out hit rate")
			seen = append(seen, cost.Prediction{Burst: w, Predicted: m.Predict(w)})
		}
	}
	f.HeldOut = predictions(seen, rows)
	f.MeanError, f.MaxError = record.Absent("nothing could be held out"), record.Absent("nothing could be held out")
	if mean, most, ok := cost.Errors(seen); ok {
		f.MeanError, f.MaxError = record.Of(mean), record.Of(most)
	}
	return &m
}

func usable(row *record.Row) bool { return row.Failed == 0 && row.DurationS > 0 }

// predictions are the mean over the repeats of each kind of held-out burst. A burst's ID is its row.
func predictions(seen []cost.Prediction, rows []record.Row) []record.Prediction {
	type kind struct {
		what, arm     string
		batch, shared int
	}
	at := map[kind]int{}
	out, n := []record.Prediction{}, []float64{}
	for _, p := range seen {
		row := &rows[p.Burst.ID]
		k := kind{p.Burst.Name, row.Arm, row.Batch, row.SharedLen}
		i, known := at[k]
		if !known {
			i = len(out)
			at[k] = i
			out, n = append(out, record.Prediction{What: k.what, Arm: k.arm, Batch: k.batch, SharedLen: k.shared}), append(n, 0)
		}
		out[i].PredictedS += p.Predicted
		out[i].MeasuredS += p.Burst.Seconds
		n[i]++
	}
	for i := range out {
		out[i].PredictedS /= n[i]
		out[i].MeasuredS /= n[i]
		out[i].Error = out[i].PredictedS/out[i].MeasuredS - 1
	}
	return out
}
