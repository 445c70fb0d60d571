package report

import (
	"fmt"
	"html/template"
	"math"

	"larder/internal/record"
)

// plotHeight is the height of the area of a line chart.
const plotHeight = 190.0

// distribution draws the share of requests that had their first token by a time, for the largest batch.
func distribution(cs []cell) template.HTML {
	lo, hi := math.Inf(1), 0.0
	batch := 0
	for i := range cs {
		batch = max(batch, cs[i].Batch)
	}
	var shown []*cell
	for i := range cs {
		if c := &cs[i]; c.Batch == batch && len(c.TTFTs) > 0 && c.TTFTs[0] > 0 {
			shown = append(shown, c)
			lo, hi = min(lo, c.TTFTs[0]), max(hi, c.TTFTs[len(c.TTFTs)-1])
		}
	}
	if len(shown) == 0 {
		return ""
	}
	s := new(svg)
	s.armLegend(shown)
	x, xt := logarithmic(lo, hi*1.0001, 40, chartWidth-14)
	y := scale{lo: 0, hi: 100, from: 26 + plotHeight, to: 26}
	s.yAxis(y, []float64{0, 25, 50, 75, 100}, x.from, x.to)
	s.xAxis(x, xt, y.to, y.from, "time to first token, ms (logarithmic)")
	for _, c := range shown {
		s.path(steps(c.TTFTs, x, y), "curve stroke-"+c.Arm)
	}
	return s.done(fmt.Sprintf("Share of requests with their first token by a time, batch %d", batch))
}

// steps is the empirical distribution of sorted values as a staircase.
func steps(xs []float64, x, y scale) [][2]float64 {
	points := [][2]float64{{x.at(xs[0]), y.at(0)}}
	for i, v := range xs {
		share := 100 * float64(i+1) / float64(len(xs))
		points = append(points, [2]float64{x.at(v), points[len(points)-1][1]}, [2]float64{x.at(v), y.at(share)})
	}
	return append(points, [2]float64{x.to, y.at(100)})
}

func (s *svg) armLegend(cs []*cell) {
	x := 40.0
	for _, c := range cs {
		s.path([][2]float64{{x, 10}, {x + 24, 10}}, "curve stroke-"+c.Arm)
		s.text(x+30, 14, "start", "tick", c.Name)
		x += 30 + letter*float64(len(c.Name)) + 18
	}
	s.h = max(s.h, 18)
}

// breakEvenCurve draws what having a prefix's KV costs one request, by computing and by loading it.
func breakEvenCurve(b *record.BreakEven, input int) template.HTML {
	lo, hi, longest := math.Inf(1), 0.0, 0
	for _, list := range [][]record.Point{b.Curve, b.Measured} {
		for _, p := range list {
			longest = max(longest, p.PrefixTokens)
			for _, n := range []record.Number{p.RecomputeMS, p.LoadMS} {
				if v, ok := n.Get(); ok && v > 0 {
					lo, hi = min(lo, v), max(hi, v)
				}
			}
		}
	}
	if len(b.Curve) == 0 || hi == 0 {
		return ""
	}
	s := new(svg)
	x, xt := linear(float64(longest), 56, chartWidth-14)
	y, yt := logarithmic(lo, hi, 26+plotHeight, 26)
	s.path([][2]float64{{66, 10}, {90, 10}}, "curve stroke-recompute")
	s.text(96, 14, "start", "tick", "Recompute it")
	s.path([][2]float64{{182, 10}, {206, 10}}, "curve stroke-host")
	s.text(211, 14, "start", "tick", "Load it")
	s.circle(264, 10, 4, "point", "measured")
	s.text(272, 14, "start", "tick", "measured")
	s.yAxis(y, yt, x.from, x.to)
	s.xAxis(x, xt, y.to, y.from, "prefix length, tokens")
	s.text(51, 14, "end", "tick", "ms")
	if n, ok := b.PrefixTokens.Get(); ok && n <= x.hi {
		s.line(x.at(n), y.to, x.at(n), y.from, "mark")
		s.line(342, 10, 361, 10, "mark")
		s.text(366, 14, "start", "tick", "break-even")
	}
	s.path(pointsOf(b.Curve, x, y, recomputeMS), "curve stroke-recompute")
	s.path(pointsOf(b.Curve, x, y, loadMS), "curve stroke-host")
	for _, p := range b.Measured {
		for _, get := range []func(record.Point) record.Number{recomputeMS, loadMS} {
			if v, ok := get(p).Get(); ok && v > 0 {
				s.circle(x.at(float64(p.PrefixTokens)), y.at(v), 4, "point", fmt.Sprintf("%s tokens: %s", whole(float64(p.PrefixTokens)), millis(v)))
			}
		}
	}
	return s.done(fmt.Sprintf("Time to have a prefix's KV, by its length, up to %s tokens; logarithmic", whole(float64(input))))
}

func recomputeMS(p record.Point) record.Number { return p.RecomputeMS }
func loadMS(p record.Point) record.Number      { return p.LoadMS }

func pointsOf(ps []record.Point, x, y scale, get func(record.Point) record.Number) [][2]float64 {
	var out [][2]float64
	for _, p := range ps {
		if v, ok := get(p).Get(); ok && v > 0 {
			out = append(out, [2]float64{x.at(float64(p.PrefixTokens)), y.at(v)})
		}
	}
	return out
}
