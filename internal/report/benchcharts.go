package report

import (
	"cmp"
	"fmt"
	"slices"

	"larder/internal/runlog"
	"larder/internal/stats"
)

// wideWidth is the canvas of a chart that takes the page's whole width.
const wideWidth = 900.0

// plotLeft and plotTop are the corner of the area of a line chart.
const (
	plotLeft = 56.0
	plotTop  = 26.0
)

// dotsShown bounds the points of a scatter: more would be a large page and no better picture.
const dotsShown = 1500

// latencyOverTime is a dot for each request's TTFT and end, by when it was sent.
func (v *view) latencyOverTime() figure {
	if len(v.ttft) == 0 || v.ttft[0] <= 0 {
		return figure{}
	}
	hi := v.ttft[len(v.ttft)-1]
	if n := len(v.e2e); n > 0 {
		hi = max(hi, v.e2e[n-1])
	}
	s := new(svg)
	x, xt := linear(v.endMS/1000, plotLeft, chartWidth-14)
	y, yt := logarithmic(v.ttft[0], hi*1.0001, plotTop+plotHeight, plotTop)
	s.circle(plotLeft+10, 10, 3, "mark-ttft", "")
	s.text(plotLeft+18, 14, "start", "tick", "first token")
	s.circle(plotLeft+120, 10, 3, "mark-e2e", "")
	s.text(plotLeft+128, 14, "start", "tick", "whole answer")
	s.text(plotLeft-5, 14, "end", "tick", "ms")
	s.yAxis(y, yt, x.from, x.to)
	s.xAxis(x, xt, y.to, y.from, "sent, s from the start")
	every := (len(v.run.Requests) + dotsShown - 1) / dotsShown
	for i := 0; i < len(v.run.Requests); i += every {
		q := &v.run.Requests[i]
		e2e, ok2 := q.E2E()
		ttft, ok1 := q.TTFT()
		if !q.OK() || !ok1 || !ok2 {
			continue
		}
		at := x.at(*q.SentMS / 1000)
		s.dot(at, y.at(e2e), 2.2, "mark-e2e")
		s.dot(at, y.at(ttft), 2.2, "mark-ttft")
	}
	f := figure{Title: "Latency over time", Text: "Each request that succeeded, by when it was sent. A slope upwards is a queue that grows. Latencies are on a logarithmic scale.", Chart: s.done("Latency of each request by when it was sent")}
	if every > 1 {
		f.Notes = []string{fmt.Sprintf("Every %dth request is drawn.", every)}
	}
	return f
}

// dot is a circle without words of its own.
func (s *svg) dot(x, y, r float64, class string) {
	fmt.Fprintf(&s.b, `<circle class="%s" cx="%s" cy="%s" r="%s"/>`+"\n", class, num(x), num(y), num(r))
}

// cdfPoints bounds the steps of a distribution.
const cdfPoints = 300

// cdf is the share of values at or below each.
func (v *view) cdf(title, class string, sorted []float64) figure {
	if len(sorted) == 0 {
		return figure{}
	}
	lo := sorted[0]
	if i, _ := slices.BinarySearch(sorted, 0.001); i < len(sorted) { // what came in one read has no gap, and no logarithm
		lo = max(lo, sorted[i])
	}
	lo = max(lo, 0.001)
	hi := max(sorted[len(sorted)-1], lo) * 1.0001
	s := new(svg)
	x, xt := logarithmic(lo, hi, 40, chartWidth-14)
	y := scale{lo: 0, hi: 100, from: plotTop + plotHeight, to: plotTop}
	s.text(35, 14, "end", "tick", "%")
	s.yAxis(y, []float64{0, 25, 50, 75, 100}, x.from, x.to)
	s.xAxis(x, xt, y.to, y.from, "ms (logarithmic)")
	for _, p := range []float64{50, 90, 99} {
		at := stats.Percentile(sorted, p).Or(0)
		s.line(x.at(at), y.at(p), x.at(at), y.from, "mark")
	}
	s.path(cdfPath(sorted, x, y), "curve stroke-"+class)
	f := figure{Title: title, Text: "Share of the samples, in percent, at or below a latency; dotted: p50, p90, p99.", Chart: s.done("Distribution of the " + lower(title)),
		Head: []string{"n", "Min ms", "p50 ms", "p90 ms", "p99 ms", "Max ms"}}
	at := func(p float64) string { return short(stats.Percentile(sorted, p).Or(0)) }
	f.Rows = [][]string{{whole(float64(len(sorted))), at(0), at(50), at(90), at(99), at(100)}}
	return f
}

func cdfPath(sorted []float64, x, y scale) [][2]float64 {
	if len(sorted) <= cdfPoints {
		return steps(sorted, x, y)
	}
	var points [][2]float64
	for k := range cdfPoints + 1 {
		p := 100 * float64(k) / cdfPoints
		points = append(points, [2]float64{x.at(stats.Percentile(sorted, p).Or(0)), y.at(p)})
	}
	return append(points, [2]float64{x.to, y.at(100)})
}

// throughput is the output tokens of each bin, by their own time of arrival.
func (v *view) throughput() figure {
	n, width := v.bins()
	if n == 0 || v.ok == 0 {
		return figure{}
	}
	tokens, done := make([]float64, n), make([]float64, n)
	bin := func(at float64) int { return min(max(int(at/width), 0), n-1) }
	for i := range v.run.Requests {
		q := &v.run.Requests[i]
		if !q.OK() {
			continue
		}
		q.Arrivals(func(at float64, k int) { tokens[bin(at)] += float64(k) * 1000 / width })
		if q.DoneMS != nil {
			done[bin(*q.DoneMS)] += 1000 / width
		}
	}
	top := slices.Max(tokens)
	s := new(svg)
	x, xt := linear(v.endMS/1000, plotLeft, chartWidth-14)
	y, yt := linear(top, plotTop+plotHeight, plotTop)
	s.text(plotLeft-5, 14, "end", "tick", "tok/s")
	s.yAxis(y, yt, x.from, x.to)
	s.xAxis(x, xt, y.to, y.from, "s from the start")
	s.path(binned(tokens, width, v.endMS, x, y), "curve stroke-e2e")
	mean := float64(v.output) * 1000 / v.endMS
	s.line(x.from, y.at(mean), x.at(v.endMS/1000), y.at(mean), "mark")
	return figure{Title: "Output over time", Text: fmt.Sprintf("Output tokens a second in steps of %s; dotted: the mean over the whole run.", seconds(width/1000)),
		Chart: s.done("Output tokens a second over time"), Head: []string{"Mean tok/s", "Busiest step tok/s", "Answers/s, busiest step"}, Rows: [][]string{{short(mean), short(top), short(slices.Max(done))}}}
}

// binned is a staircase over bins.
func binned(values []float64, widthMS, endMS float64, x, y scale) [][2]float64 {
	var points [][2]float64
	for i, v := range values {
		from, to := float64(i)*widthMS, min(float64(i+1)*widthMS, endMS)
		points = append(points, [2]float64{x.at(from / 1000), y.at(v)}, [2]float64{x.at(to / 1000), y.at(v)})
	}
	return points
}

// edge is a moment at which the requests in flight change.
type edge struct {
	at    float64
	delta int
}

// inFlight is how many requests were under way, and how many the server said it had.
func (v *view) inFlight() figure {
	var edges []edge
	for i := range v.run.Requests {
		if q := &v.run.Requests[i]; q.SentMS != nil && q.DoneMS != nil {
			edges = append(edges, edge{*q.SentMS, 1}, edge{*q.DoneMS, -1})
		}
	}
	if len(edges) == 0 || v.endMS <= 0 {
		return figure{}
	}
	slices.SortStableFunc(edges, func(a, b edge) int {
		return cmp.Or(cmp.Compare(a.at, b.at), a.delta-b.delta)
	})
	// Each of a few hundred columns shows the most and the least in it: nothing is lost that could be seen.
	columns := 400
	most, least := make([]float64, columns), make([]float64, columns)
	open, top, area, last, next := 0, 0, 0.0, 0.0, 0
	for k := range columns {
		end := v.endMS * float64(k+1) / float64(columns)
		most[k], least[k] = float64(open), float64(open)
		for next < len(edges) && (edges[next].at < end || k == columns-1) {
			area += float64(open) * (edges[next].at - last)
			last = edges[next].at
			open += edges[next].delta
			top = max(top, open)
			most[k], least[k] = max(most[k], float64(open)), min(least[k], float64(open))
			next++
		}
	}
	s := new(svg)
	x, xt := linear(v.endMS/1000, plotLeft, chartWidth-14)
	y, yt := linear(v.gaugeTop(float64(top)), plotTop+plotHeight, plotTop)
	s.yAxis(y, yt, x.from, x.to)
	s.xAxis(x, xt, y.to, y.from, "s from the start")
	s.path(envelope(most, least, v.endMS, x, y), "area-e2e")
	f := figure{Title: "Requests in flight", Text: "Sent and not yet answered to the end.", Head: []string{"Mean in flight", "Most in flight"}, Rows: [][]string{{short(area / v.endMS), fmt.Sprint(top)}}}
	if v.gauges(s, x, y) {
		f.Text = "Sent and not yet answered to the end. Lines: running and waiting by the server's own count, once a second."
	}
	f.Chart = s.done("Requests in flight over time")
	return f
}

// envelope is the outline of the most and the least of each column.
func envelope(most, least []float64, endMS float64, x, y scale) [][2]float64 {
	var points [][2]float64
	n := len(most)
	at := func(k int) float64 { return x.at(endMS / 1000 * float64(k) / float64(n)) }
	for k := range n {
		points = append(points, [2]float64{at(k), y.at(most[k])}, [2]float64{at(k + 1), y.at(most[k])})
	}
	return append(points, [2]float64{at(n), y.at(0)}, [2]float64{at(0), y.at(0)}, [2]float64{at(0), y.at(most[0])})
}

func (v *view) gaugeTop(top float64) float64 {
	for _, r := range v.run.Server {
		for _, g := range []*float64{r.Running, r.Waiting} {
			if g != nil {
				top = max(top, *g)
			}
		}
	}
	return top
}

// gauges draws the server's readings; false when there are none.
func (v *view) gauges(s *svg, x, y scale) bool {
	drawn := false
	for i, get := range []func(runlog.Reading) *float64{func(r runlog.Reading) *float64 { return r.Running }, func(r runlog.Reading) *float64 { return r.Waiting }} {
		var points [][2]float64
		for _, r := range v.run.Server {
			if g := get(r); g != nil && r.AtMS <= v.endMS {
				points = append(points, [2]float64{x.at(r.AtMS / 1000), y.at(*g)})
			}
		}
		if len(points) < 2 {
			continue
		}
		drawn = true
		class, name, at := []string{"stroke-running", "stroke-waiting"}[i], []string{"running", "waiting"}[i], plotLeft+float64(i)*130
		s.path(points, "curve "+class)
		s.path([][2]float64{{at, 10}, {at + 24, 10}}, "curve "+class)
		s.text(at+30, 14, "start", "tick", name)
	}
	return drawn
}

// ganttShown bounds the bars of the timeline.
const ganttShown = 120

// gantt draws requests as bars from due to the last line.
func (v *view) gantt() figure {
	n := len(v.run.Requests)
	if n == 0 || v.endMS <= 0 {
		return figure{}
	}
	every := (n + ganttShown - 1) / ganttShown
	var shown []*runlog.Request
	for i := 0; i < n; i += every {
		shown = append(shown, &v.run.Requests[i])
	}
	slices.SortStableFunc(shown, func(a, b *runlog.Request) int { return cmp.Compare(a.DueMS, b.DueMS) })
	height, gap := 9.0, 2.0
	if len(shown) > 48 {
		height, gap = 4, 1
	}
	s := &svg{w: wideWidth}
	classes, names := []string{"queue", "compute", "decode"}, []string{"Held back by the client", "To the first token", "More tokens"}
	if v.failed > 0 {
		classes, names = append(classes, "failed"), append(names, "Failed")
	}
	s.legend(10, 12, classes, names)
	x, ticks := linear(v.endMS/1000, 10, wideWidth-20)
	bottom := plotTop + float64(len(shown))*(height+gap)
	s.xAxis(x, ticks, plotTop-2, bottom, "s from the start")
	y := plotTop
	for _, q := range shown {
		s.ganttBar(x, y, height, q)
		y += height + gap
	}
	f := figure{Title: "Timeline of the requests", Text: "Each bar is a request, from the time at which it was due to its last line, in the order in which they were due.", Chart: s.done("Timeline of the requests")}
	if every > 1 {
		f.Notes = []string{fmt.Sprintf("%d of %s requests are drawn: every %dth.", len(shown), whole(float64(n)), every)}
	}
	return f
}

func (s *svg) ganttBar(x scale, y, height float64, q *runlog.Request) {
	if q.SentMS == nil || q.DoneMS == nil {
		return
	}
	part := func(from, to float64, class, what string) {
		if to > from {
			s.rect(x.at(from/1000), y, x.at(to/1000)-x.at(from/1000), height, "fill-"+class, fmt.Sprintf("request %d %s: %s", q.Index, what, millis(to-from)))
		}
	}
	part(q.DueMS, *q.SentMS, "queue", "held back")
	switch {
	case !q.OK():
		part(*q.SentMS, *q.DoneMS, "failed", "failed ("+q.Class+") after")
	case q.FirstMS == nil:
		part(*q.SentMS, *q.DoneMS, "compute", "whole answer")
	default:
		part(*q.SentMS, *q.FirstMS, "compute", "first token after")
		part(*q.FirstMS, *q.DoneMS, "decode", fmt.Sprintf("%d tokens, the others in", q.Output))
	}
}
