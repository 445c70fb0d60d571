package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"larder/internal/runlog"
	"larder/internal/stats"
)

//go:embed bench.html
var benchSource string

// benchPage is what the page of a benchmark run shows.
type benchPage struct {
	Title   string
	Subject []string
	Style   template.CSS
	OK      bool
	Summary []string // the numbers that people look for first
	Alarms  []string
	Figures []figure
	Wide    []figure
	Tables  []figure
	Footer  string
}

// Bench writes one page about a benchmark run that needs nothing else: no script, no network, no font.
func Bench(w io.Writer, r *runlog.Run) error {
	t, err := template.New("bench").Parse(benchSource + numbersSource())
	if err != nil {
		return fmt.Errorf("report: the page's own template: %w", err)
	}
	var b strings.Builder
	if err := t.Execute(&b, newBenchPage(r)); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// numbersSource is the template of a figure's table, which the pages share.
func numbersSource() string { return pageSource[strings.Index(pageSource, `{{define "numbers"}}`):] }

// view is a run with the samples that its charts are made of.
type view struct {
	run                  *runlog.Run
	ok, failed           int
	classes              map[string]int
	output               int
	ttft, tpot, itl, e2e []float64 // ms, sorted
	endMS                float64   // last completion
}

func newView(r *runlog.Run) *view {
	v := &view{run: r, classes: map[string]int{}}
	for i := range r.Requests {
		q := &r.Requests[i]
		if q.DoneMS != nil {
			v.endMS = max(v.endMS, *q.DoneMS)
		}
		if !q.OK() {
			v.failed++
			v.classes[q.Class]++
			continue
		}
		v.ok++
		v.output += q.Output
		add := func(to *[]float64, x float64, ok bool) {
			if ok {
				*to = append(*to, x)
			}
		}
		ttft, ok := q.TTFT()
		add(&v.ttft, ttft, ok)
		tpot, ok := q.TPOT()
		add(&v.tpot, tpot, ok)
		e2e, ok := q.E2E()
		add(&v.e2e, e2e, ok)
		q.ITLs(func(ms float64) { v.itl = append(v.itl, ms) })
	}
	for _, xs := range [][]float64{v.ttft, v.tpot, v.itl, v.e2e} {
		slices.Sort(xs)
	}
	return v
}

func newBenchPage(r *runlog.Run) *benchPage {
	v := newView(r)
	p := &benchPage{Title: benchTitle(r), Style: template.CSS(styleSource), OK: v.failed == 0 && !r.Interrupted && len(r.Warnings) == 0,
		Alarms: r.Warnings, Summary: v.summary(), Footer: fmt.Sprintf("%s · %s", r.Tool, r.Started.UTC().Format("2 January 2006, 15:04 UTC"))}
	p.Subject = v.subject()
	for _, f := range []figure{v.latencyOverTime(), v.throughput(), v.cdf("Time to first token", "ttft", v.ttft), v.inFlight(), v.cdf("Inter-token latency", "itl", v.itl), v.cdf("End-to-end latency", "e2e", v.e2e)} {
		if f.Chart != "" {
			p.Figures = append(p.Figures, f)
		}
	}
	if f := v.gantt(); f.Chart != "" {
		p.Wide = append(p.Wide, f)
	}
	p.Tables = append(p.Tables, v.latencyTable())
	if f := v.failureTable(); len(f.Rows) > 0 {
		p.Tables = append(p.Tables, f)
	}
	return p
}

func benchTitle(r *runlog.Run) string {
	name := r.Model
	if name == "" {
		name = "a server"
	}
	return fmt.Sprintf("Serving benchmark: %s by %s", name, r.Backend)
}

func (v *view) subject() []string {
	r := v.run
	limit := "no limit on requests in flight"
	if r.MaxConcurrency > 0 {
		limit = fmt.Sprintf("at most %s in flight", count(r.MaxConcurrency, "request"))
	}
	rate := "all at once"
	switch r.Rate {
	case "inf":
	case "trace", "ramp":
		rate = "arrivals by " + r.Rate
	default:
		rate = r.Rate + " requests a second asked for"
	}
	in, out := 0, 0
	for i := range r.Requests {
		in, out = in+r.Requests[i].PromptLen, out+r.Requests[i].Asked
	}
	n := max(len(r.Requests), 1)
	lines := []string{fmt.Sprintf("%s of %s: %s input and %s output tokens each on average; %s; %s; seed %d",
		count(len(r.Requests), "request"), r.Dataset, whole(float64(in)/float64(n)), whole(float64(out)/float64(n)), rate, limit, r.Seed)}
	if r.Tag != "" {
		lines = append(lines, "Tag: "+r.Tag)
	}
	return lines
}

// summary is the run in two or three sentences.
func (v *view) summary() []string {
	r := v.run
	if v.ok == 0 {
		return []string{fmt.Sprintf("None of %s succeeded; there is nothing to measure.", count(len(r.Requests), "request"))}
	}
	perSecond := func(n float64) string {
		if r.DurationS <= 0 {
			return none
		}
		return short(n / r.DurationS)
	}
	lines := []string{fmt.Sprintf("%s of %s succeeded in %s: %s requests a second, %s output tokens a second.",
		whole(float64(v.ok)), whole(float64(len(r.Requests))), seconds(r.DurationS), perSecond(float64(v.ok)), perSecond(float64(v.output)))}
	text := "Time to first token: " + spread(v.ttft) + "."
	if len(v.tpot) > 0 {
		text += " Time per further token: " + spread(v.tpot) + "."
	}
	lines = append(lines, text)
	if r.Interrupted {
		lines = append(lines, "The run was stopped; this is what had ended by then.")
	}
	return lines
}

func spread(sorted []float64) string {
	if len(sorted) == 0 {
		return "none"
	}
	at := func(p float64) string { return millis(stats.Percentile(sorted, p).Or(0)) }
	return fmt.Sprintf("median %s, p99 %s", at(50), at(99))
}

func (v *view) latencyTable() figure {
	f := figure{Title: "Latencies", Text: "Of the requests that succeeded, from the actual send. Inter-token: gaps between arrivals, each spread over the tokens it brought.",
		Head: []string{"Latency", "n", "Mean ms", "p50 ms", "p90 ms", "p95 ms", "p99 ms", "Max ms"}}
	for _, l := range []struct {
		name string
		xs   []float64
	}{{"Time to first token", v.ttft}, {"Time per output token", v.tpot}, {"Inter-token", v.itl}, {"End to end", v.e2e}} {
		at := func(p float64) string {
			if x, ok := stats.Percentile(l.xs, p).Get(); ok {
				return short(x)
			}
			return none
		}
		mean := none
		if x, ok := stats.Mean(l.xs).Get(); ok {
			mean = short(x)
		}
		f.Rows = append(f.Rows, []string{l.name, whole(float64(len(l.xs))), mean, at(50), at(90), at(95), at(99), at(100)})
	}
	return f
}

func (v *view) failureTable() figure {
	f := figure{Title: "Failures", Text: "They are in no latency and no throughput.", Head: []string{"Class", "Requests", "The first"}}
	for _, class := range slices.Sorted(maps.Keys(v.classes)) {
		first := ""
		for i := range v.run.Requests {
			if q := &v.run.Requests[i]; q.Class == class {
				first = fmt.Sprintf("request %d: %s", q.Index, clip(q.Error, 160))
				break
			}
		}
		f.Rows = append(f.Rows, []string{class, fmt.Sprint(v.classes[class]), first})
	}
	return f
}

// clip keeps a text at n letters at most.
func clip(s string, n int) string {
	letters := []rune(s)
	if len(letters) <= n {
		return s
	}
	return string(letters[:n-1]) + "…"
}

// bins is how many parts a run is cut into for rates over time: a hundred, but none shorter than a tenth of a second,
// in which a rate would be noise.
func (v *view) bins() (n int, widthMS float64) {
	if v.endMS <= 0 {
		return 0, 0
	}
	widthMS = 100.0
	for _, w := range []float64{100, 200, 500, 1000, 2000, 5000, 10000, 20000, 60000, 300000, 3600000} {
		widthMS = w
		if v.endMS/w <= 100 {
			break
		}
	}
	return int(math.Ceil(v.endMS / widthMS)), widthMS
}
