package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"larder/internal/record"
)

// none stands for an absent number in tables.
const none = "–"

// show formats n by f, or a dash.
func show(n record.Number, f func(float64) string) string {
	if v, ok := n.Get(); ok {
		return f(v)
	}
	return none
}

// whole is a rounded number with thousands apart.
func whole(v float64) string {
	s := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if v <= -0.5 {
		s = "-" + s
	}
	return s
}

// short keeps three significant digits, without exponents.
func short(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return whole(v)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case a == 0:
		return "0"
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

func percent(v float64) string {
	if v < 0.1 {
		return strconv.FormatFloat(100*v, 'f', 1, 64) + " %"
	}
	return strconv.FormatFloat(100*v, 'f', 0, 64) + " %"
}

func times(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) + "×" }

func millis(v float64) string { return short(v) + " ms" }

func giBs(v float64) string { return short(v/(1<<30)) + " GiB/s" }

func bytesOf(v float64) string {
	switch {
	case v >= 1<<30:
		return short(v/(1<<30)) + " GiB"
	case v >= 1<<20:
		return short(v/(1<<20)) + " MiB"
	case v >= 1<<10:
		return short(v/(1<<10)) + " KiB"
	}
	return whole(v) + " B"
}

// rate is a ceiling in a readable unit.
func rate(c record.Ceiling) string {
	switch c.Unit {
	case "FLOP/s":
		if c.Value >= 1e12 {
			return short(c.Value/1e12) + " TFLOP/s"
		}
		return short(c.Value/1e9) + " GFLOP/s"
	case "B/s":
		return giBs(c.Value)
	}
	return short(c.Value) + " " + c.Unit
}

// speedup is the column "against recompute": the ratio, and its interval or why there is none.
func speedup(c *record.Comparison) (ratio, span string) {
	if c == nil {
		return none, ""
	}
	ratio = show(c.Speedup.Mean, times)
	lo, ok1 := c.Speedup.Lo.Get()
	hi, ok2 := c.Speedup.Hi.Get()
	if !ok1 || !ok2 {
		return ratio, "no interval: " + c.Speedup.Reason
	}
	return ratio, fmt.Sprintf("%.2f to %.2f", lo, hi)
}

// headline is the verdict in words: first whether the numbers can be trusted, then arm against arm.
func headline(s *record.Study) []string {
	var out []string
	if !s.Complete {
		out = append(out, "This study did not finish: "+s.Stopped+".")
	}
	if failed := s.FailedChecks(); len(failed) > 0 {
		out = append(out, fmt.Sprintf("Do not rely on these numbers: %s failed (%s).", count(len(failed), "check"), strings.Join(failed, "; ")))
	}
	for _, p := range [][2]string{{record.HBMArm, record.Recompute}, {record.HostArm, record.Recompute}, {record.HBMArm, record.HostArm}} {
		if v := versus(s, p[0], p[1]); v != "" {
			out = append(out, v)
		}
	}
	if len(s.Rows) == 0 {
		out = append(out, "No burst was measured.")
	}
	return append(out, leftOut(s)...)
}

// leftOut says which arms are missing, and why: a reason that several sizes share is given once.
func leftOut(s *record.Study) []string {
	var out []string
	for i := 0; i < len(s.LeftOut); {
		l, sizes := &s.LeftOut[i], []string{}
		for ; i < len(s.LeftOut) && s.LeftOut[i].Arm == l.Arm && alike(s.LeftOut[i].Reason, l.Reason); i++ {
			if s.LeftOut[i].Batch > 0 {
				sizes = append(sizes, strconv.Itoa(s.LeftOut[i].Batch))
			}
		}
		where := ""
		if n := len(sizes); n == 1 {
			where = " at batch " + sizes[0]
		} else if n > 1 && n < len(s.Workload.BatchSizes) {
			where = " at batches " + strings.Join(sizes[:n-1], ", ") + " and " + sizes[n-1]
		}
		out = append(out, fmt.Sprintf("Left out, because not proven: %s%s: %s.", lower(armDoing(l.Arm)), where, strings.TrimSuffix(l.Reason, ".")))
	}
	return out
}

// alike says whether two reasons differ in nothing but numbers.
func alike(a, b string) bool {
	bare := func(s string) string {
		return strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' {
				return -1
			}
			return r
		}, s)
	}
	return bare(a) == bare(b)
}

// foreign says whether the study was of a server whose machine is not known: then there are no limits.
func foreign(s *record.Study) bool { return s.Host.Device == record.RemoteDevice }

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// versus says how arm a did against b over all batch sizes. A winner is named only for batches at which the interval
// excludes "equal".
func versus(s *record.Study, a, b string) string {
	by := map[string][]*record.Comparison{}
	n := 0
	for i := range s.Comparisons {
		if c := &s.Comparisons[i]; c.A == a && c.B == b && c.Metric == "duration_s" {
			by[c.Verdict] = append(by[c.Verdict], c)
			n++
		}
	}
	if n == 0 {
		return ""
	}
	var parts []string
	if won := by[record.VerdictA]; len(won) > 0 {
		parts = append(parts, fmt.Sprintf("%s beats %s at %s: %s", armDoing(a), lower(armDoing(b)), at(won, n, "every"), span(won, false)))
	}
	if lost := by[record.VerdictB]; len(lost) > 0 {
		parts = append(parts, fmt.Sprintf("%s beats %s at %s: %s", armDoing(b), lower(armDoing(a)), at(lost, n, "every"), span(lost, true)))
	}
	if open := by[record.VerdictOpen]; len(open) > 0 {
		parts = append(parts, fmt.Sprintf("%s and %s cannot be told apart at %s", armDoing(a), lower(armDoing(b)), at(open, n, "any")))
	}
	if open := by[record.VerdictNone]; len(open) > 0 {
		parts = append(parts, fmt.Sprintf("%s against %s: not enough repeats to name a winner at %s", armDoing(a), lower(armDoing(b)), at(open, n, "any")))
	}
	return strings.Join(parts, ". ") + "."
}

// lower keeps "HBM" and "KV" as they are and lowers the first letter.
func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func at(cs []*record.Comparison, all int, each string) string {
	if len(cs) == all && all > 1 {
		return each + " batch size measured"
	}
	var sizes []string
	for _, c := range cs {
		sizes = append(sizes, strconv.Itoa(c.Batch))
	}
	if len(sizes) == 1 {
		return "batch " + sizes[0]
	}
	return "batches " + strings.Join(sizes[:len(sizes)-1], ", ") + " and " + sizes[len(sizes)-1]
}

// span is "5.1 times as fast" or "5.1 to 9.6 times as fast".
func span(cs []*record.Comparison, inverse bool) string {
	var xs []float64
	for _, c := range cs {
		if v, ok := c.Speedup.Mean.Get(); ok && v > 0 {
			if inverse {
				v = 1 / v
			}
			xs = append(xs, v)
		}
	}
	lo, hi := fmt.Sprintf("%.2f", slices.Min(xs)), fmt.Sprintf("%.2f", slices.Max(xs))
	if lo == hi {
		return lo + " times as fast"
	}
	return lo + " to " + hi + " times as fast"
}

// machineOf is the model and what served it.
func machineOf(s *record.Study) string {
	m := &s.Model
	if foreign(s) {
		return fmt.Sprintf("%s, served by %s", m.Name, s.Host.DeviceName)
	}
	layers := fmt.Sprintf("%d layers", m.Layers)
	if m.LayersFull > m.Layers {
		layers = fmt.Sprintf("%d of %d layers", m.Layers, m.LayersFull)
	}
	return fmt.Sprintf("%s, %s, %s weights, on %s (%s, %s, %d units)", m.Name, layers, m.Weights, s.Host.DeviceName, s.Host.Device, s.Host.Kernels, s.Host.Units)
}

// subject says what was measured, in one line each: the model and machine, and the workload.
func subject(s *record.Study) (machine, workload string) {
	w := &s.Workload
	machine = machineOf(s)
	prefixes := map[string]string{"own": "each request a prefix of its own, seen before", "one": "one prefix for all requests"}[w.Prefixes]
	if prefixes == "" {
		prefixes = w.Prefixes + " prefix groups"
	}
	workload = fmt.Sprintf("%s input tokens of which %s (%s) are prefix, %s; %s; %s", whole(float64(w.InputLen)), whole(float64(w.SharedLen)),
		percent(w.HitRate), prefixes, count(w.OutputLen, "output token"), count(w.Repeats, "repeat"))
	return machine, workload
}
