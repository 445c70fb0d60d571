package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"larder/internal/loadgen"
	"larder/internal/record"
	"larder/internal/stats"
	"larder/internal/study"
)

// newRecord starts the record.
func (r *run) newRecord() *record.Study {
	h := r.env.Host
	h.Device, h.DeviceName = record.RemoteDevice, r.env.Server
	c := r.cfg
	return &record.Study{
		Tool: r.env.Tool, Started: r.start.UTC().Truncate(time.Second), Host: h, Rows: []record.Row{},
		Model: record.Model{Name: r.env.Model, Weights: "as served", DType: "not known"},
		Workload: record.Workload{Preset: c.Preset, InputLen: c.InputLen, SharedLen: r.shared, HitRate: float64(r.shared) / float64(c.InputLen), OutputLen: c.OutputLen,
			BatchSizes: slices.Clone(c.BatchSizes), Repeats: c.Repeats, Arms: slices.Clone(c.Arms), Interleave: "batch", Order: [][]string{}, Prefixes: "own", Seed: c.Seed,
			Salt: uint32(c.Salt), WritePolicy: "the server's own", Decode: append([]record.DecodeRun{}, c.Decode...),
			Transport: fmt.Sprintf("HTTP to %s, backend %s, exact token ids, streamed", r.env.Load.BaseURL, r.env.Load.Backend)},
		KVReason: "a server elsewhere was studied: its link can not be measured alone",
		Notes: append(r.ways(), "A burst's requests are all due at once, so mean TTFT is mostly a queue.",
			"The server's machine is not this one: there are no ceilings, no limits and no time split. Host fields of the record are the client's."),
	}
}

// predict is all tokens that will be sent, for the progress.
func (r *run) predict() float64 {
	n := 0.0
	in := float64(r.cfg.InputLen)
	for _, arm := range r.cfg.Arms {
		for _, b := range r.cfg.BatchSizes {
			n += float64(r.cfg.Repeats) * r.cost(arm, float64(b)*in, float64(b*r.shared))
		}
		if arm != record.Recompute && len(r.cfg.HeldOut) > 0 {
			b := slices.Min(r.cfg.BatchSizes)
			n += r.cost(arm, float64(b)*in, float64(b*r.shared))
		}
	}
	for _, d := range r.cfg.Decode {
		n += r.cost(record.HBMArm, float64(d.Requests)*in, float64(d.Requests*r.shared))
	}
	return n
}

func (r *run) cost(arm string, burst, prefixes float64) float64 {
	switch {
	case r.knows.impossible[arm] != "":
		return 0
	case arm != record.Recompute:
		burst += 2 * prefixes
	}
	if r.fills() {
		burst += float64(r.filler())
	}
	return burst
}

// progress tells how far the study is, by tokens sent of those to send.
func (r *run) progress(what string) {
	if r.env.Progress == nil || r.total == 0 {
		return
	}
	took := time.Since(r.start)
	u := study.Update{Phase: what, Fraction: min(r.sent/r.total, 1), Elapsed: took}
	if u.Fraction > 0 {
		u.ETA = time.Duration(float64(took) * (1 - u.Fraction) / u.Fraction)
	}
	r.env.Progress.Update(u)
}

// armsKept are the arms with at least one proven burst.
func (r *run) armsKept() []string {
	var arms []string
	for _, arm := range r.cfg.Arms {
		if slices.ContainsFunc(r.out.Rows, func(row record.Row) bool { return row.Arm == arm }) {
			arms = append(arms, arm)
		}
	}
	return arms
}

// conclude turns what was measured into comparisons, the break-even, checks and what was left out.
func (r *run) conclude(ctx context.Context, cause error) {
	r.out.Model.TokenBytes = int64(r.tokenSize + 0.5)
	r.out.Comparisons = study.Comparisons(r.out.Rows, r.cfg.BatchSizes, r.cfg.Repeats)
	r.breakEven()
	r.out.LeftOut = r.leftOut()
	r.out.Complete = cause == nil
	switch {
	case cause == nil:
	case errors.Is(cause, context.Canceled) || errors.Is(ctx.Err(), context.Canceled):
		r.out.Stopped = "interrupted; what was measured until then is kept"
	default:
		r.out.Stopped = cause.Error()
	}
	r.out.Checks = r.checks.list(cause == nil)
	for _, proof := range slices.Sorted(maps.Keys(r.proofs)) {
		r.out.Notes = append(r.out.Notes, fmt.Sprintf("%d bursts were proven by %s.", r.proofs[proof], proof))
	}
	record.Explain(r.out, "no reason was noted")
	r.out.WallS = time.Since(r.start).Seconds()
}

// leftOut names the arms, or the arms at single batch sizes, of which there is no proven burst.
func (r *run) leftOut() []record.LeftOut {
	var out []record.LeftOut
	for _, arm := range r.cfg.Arms {
		if why := r.knows.impossible[arm]; why != "" {
			out = append(out, record.LeftOut{Arm: arm, Reason: why})
			continue
		}
		for _, batch := range r.cfg.BatchSizes {
			lost := record.LeftOut{Arm: arm, Batch: batch}
			for _, l := range r.left {
				if l.arm == arm && l.batch == batch {
					lost.Bursts++
					lost.Reason = l.reason
				}
			}
			if lost.Bursts > 0 {
				out = append(out, lost)
			}
		}
	}
	return out
}

// Names of the checks.
const (
	checkSucceeded = "every request succeeded"
	checkPrompts   = "prompts as long as asked, by the server's count"
	checkOutputs   = "answers as long as asked"
	checkTokens    = "same answers in all arms, but for rounding"
)

// differing is the share of answers that may differ between two arms that were sent the same prompts: a server that
// batches otherwise adds up otherwise, and a close race between two tokens then ends otherwise. Wrong KV makes nearly all
// differ.
const differing = 0.2

// tally gathers what was looked at.
type tally struct {
	looked, wrong map[string]int
	first         map[string]string
}

func (t *tally) expect(name string, ok bool, format string, args ...any) {
	if t.looked == nil {
		t.looked, t.wrong, t.first = map[string]int{}, map[string]int{}, map[string]string{}
	}
	t.looked[name]++
	if !ok {
		if t.wrong[name]++; t.wrong[name] == 1 {
			t.first[name] = fmt.Sprintf(format, args...)
		}
	}
}

func (t *tally) list(complete bool) []record.Check {
	var out []record.Check
	for _, name := range []string{checkSucceeded, checkPrompts, checkOutputs, checkTokens} {
		n, wrong := t.looked[name], t.wrong[name]
		if n == 0 {
			if complete && name == checkSucceeded {
				out = append(out, record.Check{Name: name, Detail: "nothing was looked at"})
			}
			continue
		}
		c := record.Check{Name: name, OK: wrong == 0, Detail: fmt.Sprintf("%d of %d hold", n-wrong, n)}
		if name == checkTokens {
			c.OK = float64(wrong) <= differing*float64(n)
		}
		if wrong > 0 {
			c.Detail += ": first " + t.first[name]
		}
		out = append(out, c)
	}
	return out
}

func requestName(row *record.Row, i int) string {
	return fmt.Sprintf("%s batch %d repeat %d request %d", row.Arm, row.Batch, row.Repeat, i)
}

// checkSuccess looks at every burst, proven or not.
func (r *run) checkSuccess(row *record.Row, res *loadgen.Result) {
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		r.checks.expect(checkSucceeded, o.OK(), "%s: %s: %v", requestName(row, i), o.Class, o.Err)
	}
}

// checkBurst makes the checks of a proven burst.
func (r *run) checkBurst(row *record.Row, res *loadgen.Result, output int) {
	for i := range res.Outcomes {
		o := &res.Outcomes[i]
		id := requestName(row, i)
		if !o.OK() {
			continue
		}
		if o.PromptTokens >= 0 {
			r.checks.expect(checkPrompts, o.PromptTokens == r.cfg.InputLen, "%s: the server counts %d prompt tokens, %d were sent", id, o.PromptTokens, r.cfg.InputLen)
		}
		if o.TokenSource != loadgen.SourceRequested {
			r.checks.expect(checkOutputs, o.OutputTokens == output, "%s: %d tokens came, %d were asked for", id, o.OutputTokens, output)
		}
		if r.knows.flush != "" || row.Concurrency > 0 || output != r.cfg.OutputLen {
			continue // other prompts, or another batching
		}
		got := answer(o)
		key := answerKey{row.Repeat, row.Batch, row.SharedLen, i}
		first, known := r.first[key]
		switch {
		case got == "":
		case !known:
			r.first[key] = got
		default:
			r.checks.expect(checkTokens, got == first, "%s", id)
		}
	}
}

const formula = "load a prefix of n tokens when t0 + n/L < n/R (L: loaded tokens a second, t0: fixed cost of a load, R: recomputed tokens a second)"

// breakEven says from which prefix length on loading beats recomputing, from differences between the arms alone: R from
// recompute less hbm at the largest batch, the cost of a load from host less hbm at the smallest.
func (r *run) breakEven() {
	b := &r.out.BreakEven
	b.Formula = formula
	none := record.Absent("the work of this model on that machine is not known")
	b.Fit = record.Fit{FixedS: none, SPerRequest: none, SPerTFLOP: none, SPerGiB: none, MeanError: none, MaxError: none}
	r.winningBatch(b)
	rate, why := r.recomputeRate()
	var t0, perToken float64
	if why == "" {
		t0, perToken, b.LoadSource, why = r.loadCost(b)
	}
	if why != "" {
		n := record.Absent(why)
		b.RecomputePerS, b.LoadBytesPerS, b.LoadFixedMS, b.NeedBytesPerS, b.Margin, b.PrefixTokens, b.HitRate = n, n, n, n, n, n, n
		b.Verdict = "No break-even: " + why + "."
		return
	}
	b.RecomputePerS, b.LoadFixedMS = record.Of(rate), record.Of(1000*t0)
	b.Margin = record.Absent("a load took no time that could be measured")
	b.LoadBytesPerS, b.NeedBytesPerS = record.Absent("the server does not say how many bytes a token's KV takes"), record.Absent("the server does not say how many bytes a token's KV takes")
	if perToken > 0 {
		b.Margin = record.Of(1 / perToken / rate)
		if r.tokenSize > 0 {
			b.LoadBytesPerS = record.Of(r.tokenSize / perToken)
		}
	}
	if r.tokenSize > 0 {
		b.NeedBytesPerS = record.Of(r.tokenSize * rate)
	}
	r.curve(b, rate, t0, perToken)
	r.sayBreakEven(b, rate, t0, perToken)
}

// recomputeRate is R in tokens a second.
func (r *run) recomputeRate() (rate float64, why string) {
	most := slices.Max(r.cfg.BatchSizes)
	rec, hbm := study.Paired(r.out.Rows, r.cfg.Repeats, most, record.Recompute, record.HBMArm, "duration_s")
	d := stats.PairedDiff(rec, hbm)
	if d.N == 0 || d.Mean <= 0 {
		return 0, fmt.Sprintf("recompute and hbm were not both proven at batch %d, or recompute was not slower", most)
	}
	return float64(r.shared) * float64(most) / d.Mean, ""
}

// loadCost is what a load costs a request: fixed seconds, and seconds for each token.
func (r *run) loadCost(b *record.BreakEven) (t0, perToken float64, from, why string) {
	least := slices.Min(r.cfg.BatchSizes)
	host, hbm := study.Paired(r.out.Rows, r.cfg.Repeats, least, record.HostArm, record.HBMArm, "duration_s")
	d := stats.PairedDiff(host, hbm)
	if d.N == 0 {
		return 0, 0, "", fmt.Sprintf("host and hbm were not both proven at batch %d", least)
	}
	long := max(d.Mean/float64(least), 0)
	b.Measured = append(b.Measured, record.Point{PrefixTokens: r.shared, RecomputeMS: record.Absent("by difference of arms only"), LoadMS: record.Of(1000 * long)})
	from = fmt.Sprintf("Cost of a load: what the host arm took longer than hbm at batch %d, over its requests; all of it proportional to the prefix", least)
	var x, y *record.Row
	for i := range r.out.HeldOut {
		switch row := &r.out.HeldOut[i]; row.Arm {
		case record.HostArm:
			x = row
		case record.HBMArm:
			y = row
		}
	}
	if x == nil || y == nil {
		return 0, long / float64(r.shared), from, ""
	}
	short := max((x.DurationS-y.DurationS)/float64(x.Batch), 0)
	b.Measured = append(b.Measured, record.Point{PrefixTokens: x.SharedLen, RecomputeMS: record.Absent("by difference of arms only"), LoadMS: record.Of(1000 * short)})
	slope := (long - short) / float64(r.shared-x.SharedLen)
	t0 = long - slope*float64(r.shared)
	if slope <= 0 || t0 < 0 {
		return 0, long / float64(r.shared), from, ""
	}
	return t0, slope, fmt.Sprintf("Cost of a load: what the host arm took longer than hbm at batch %d, over its requests, as a line through prefixes of %s and %s tokens", least, study.Whole(float64(x.SharedLen)), study.Whole(float64(r.shared))), ""
}

// curvePoints is how many lengths the curve has.
const curvePoints = 24

func (r *run) curve(b *record.BreakEven, rate, t0, perToken float64) {
	for k := 1; k <= curvePoints; k++ {
		n := max(r.cfg.InputLen*k/curvePoints, 1)
		b.Curve = append(b.Curve, record.Point{PrefixTokens: n, RecomputeMS: record.Of(1000 * float64(n) / rate), LoadMS: record.Of(1000 * (t0 + float64(n)*perToken))})
	}
}

// sayBreakEven finds the shortest prefix worth loading.
func (r *run) sayBreakEven(b *record.BreakEven, rate, t0, perToken float64) {
	lead := "By the measured rates"
	if !b.Batch.OK() {
		lead = "The bursts themselves leave it open; by the measured rates alone"
	}
	gain := 1/rate - perToken // s won for each token loaded
	if gain <= 0 {
		why := record.Absent("recomputing is faster at every length")
		b.PrefixTokens, b.HitRate = why, why
		b.Verdict = fmt.Sprintf("%s recomputing beats loading at every prefix length: %s tokens a second are recomputed, %s loaded.", lead, study.Whole(rate), study.Whole(1/perToken))
		return
	}
	n := max(int(t0/gain)+1, 1)
	b.PrefixTokens = record.Of(float64(n))
	b.HitRate = record.Of(float64(n) / float64(r.cfg.InputLen))
	if n >= r.cfg.InputLen {
		b.HitRate = record.Absent(fmt.Sprintf("the break-even prefix is longer than the prompt of %s tokens", study.Whole(float64(r.cfg.InputLen))))
		b.Verdict = fmt.Sprintf("%s loading beats recomputing only from %s tokens of prefix on, more than these prompts have.", lead, study.Whole(float64(n)))
		return
	}
	many := "at every prefix length"
	if n > 1 {
		many = fmt.Sprintf("from %s tokens of prefix on", study.Whole(float64(n)))
	}
	speed := "and a load took no time that could be measured"
	if perToken > 0 {
		speed = study.Whole(1/perToken) + " are loaded"
	}
	b.Verdict = fmt.Sprintf("%s loading from below the device beats recomputing %s: %s tokens a second are recomputed, %s.", lead, many, study.Whole(rate), speed)
}

// winningBatch is the smallest batch from which on the host arm beat recompute at every one.
func (r *run) winningBatch(b *record.BreakEven) {
	won, judged := map[int]bool{}, false
	for _, c := range r.out.Comparisons {
		if c.A == record.HostArm && c.B == record.Recompute && c.Metric == "duration_s" {
			won[c.Batch] = c.Verdict == record.VerdictA
			judged = judged || c.Verdict != record.VerdictNone
		}
	}
	first := 0
	for _, n := range slices.Backward(slices.Sorted(slices.Values(r.cfg.BatchSizes))) {
		if !won[n] {
			break
		}
		first = n
	}
	switch {
	case first > 0:
		b.Batch = record.Of(float64(first))
	case !judged:
		b.Batch = record.Absent("not enough proven repeats to judge any batch")
	default:
		b.Batch = record.Absent("loading did not beat recomputing for certain at the largest batch")
	}
}
