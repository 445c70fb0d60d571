package report

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// Charts are drawn in user units on a canvas this wide, and scaled to the column: on a phone's 360 pixels letters of 13
// units are about 11 pixels high.
const (
	chartWidth = 440.0
	letter     = 7.0 // estimated width of a letter of 13 units
	lineHeight = 16.0
)

// svg is a drawing under way.
type svg struct {
	b strings.Builder
	h float64 // height so far
	w float64 // 0: chartWidth
}

func (s *svg) width() float64 {
	if s.w > 0 {
		return s.w
	}
	return chartWidth
}

func num(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

func (s *svg) rect(x, y, w, h float64, class, title string) {
	fmt.Fprintf(&s.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s">`, class, num(x), num(y), num(max(w, 0)), num(h))
	if title != "" {
		fmt.Fprintf(&s.b, `<title>%s</title>`, template.HTMLEscapeString(title))
	}
	s.b.WriteString("</rect>\n")
}

// text anchors at "start", "middle" or "end".
func (s *svg) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(&s.b, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`+"\n", class, num(x), num(y), anchor, template.HTMLEscapeString(text))
}

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&s.b, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", class, num(x1), num(y1), num(x2), num(y2))
}

func (s *svg) circle(x, y, r float64, class, title string) {
	fmt.Fprintf(&s.b, `<circle class="%s" cx="%s" cy="%s" r="%s"><title>%s</title></circle>`+"\n", class, num(x), num(y), num(r), template.HTMLEscapeString(title))
}

// path draws a polyline.
func (s *svg) path(points [][2]float64, class string) {
	var d strings.Builder
	for i, p := range points {
		d.WriteByte("ML"[min(i, 1)])
		d.WriteString(num(p[0]) + " " + num(p[1]))
	}
	fmt.Fprintf(&s.b, `<path class="%s" d="%s"/>`+"\n", class, d.String())
}

// done closes the drawing; title is read out to those who cannot see it.
func (s *svg) done(title string) template.HTML {
	t := template.HTMLEscapeString(title)
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %s %s" role="img" aria-label="%s" xmlns="http://www.w3.org/2000/svg">`+"\n%s</svg>", num(s.width()), num(s.h), t, s.b.String()))
}

// scale maps values to user units, linearly from zero or by logarithm.
type scale struct {
	lo, hi, from, to float64
	log              bool
}

func (c scale) at(v float64) float64 {
	if c.log {
		v = math.Log(max(v, c.lo)/c.lo) / math.Log(c.hi/c.lo)
	} else {
		v = (v - c.lo) / (c.hi - c.lo)
	}
	return c.from + v*(c.to-c.from)
}

// linear is a scale from zero to a round number at or above top.
func linear(top, from, to float64) (scale, []float64) {
	if !(top > 0) {
		top = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(top)))
	for _, f := range []float64{0.1, 0.2, 0.25, 0.5, 1, 2} {
		if top/(step*f) <= 5 {
			step *= f
			break
		}
	}
	n := math.Ceil(top/step - 1e-9)
	var ticks []float64
	for i := range int(n) + 1 {
		ticks = append(ticks, float64(i)*step)
	}
	return scale{lo: 0, hi: n * step, from: from, to: to}, ticks
}

// logarithmic is a scale whose ends are 1, 2 or 5 times a power of ten around [lo, hi].
func logarithmic(lo, hi, from, to float64) (scale, []float64) {
	steps := []float64{}
	for e := math.Floor(math.Log10(lo)) - 1; e <= math.Ceil(math.Log10(hi))+2; e++ {
		for _, m := range []float64{1, 2, 5} {
			steps = append(steps, m*math.Pow(10, e))
		}
	}
	first, last := 0, len(steps)-1
	for first+1 < len(steps) && steps[first+1] <= lo*(1+1e-9) {
		first++
	}
	for last > first+1 && steps[last-1] >= hi*(1-1e-9) {
		last--
	}
	every := 1
	if last-first > 6 { // then powers of ten alone are written, and the ends are such
		first, last, every = first/3*3, (last+2)/3*3, 3
	}
	var ticks []float64
	for i := first; i <= last; i += every {
		ticks = append(ticks, steps[i])
	}
	return scale{lo: steps[first], hi: steps[last], from: from, to: to, log: true}, ticks
}

// xAxis draws vertical grid lines with their values below, and what they mean.
func (s *svg) xAxis(c scale, ticks []float64, top, bottom float64, label string) {
	width := 0.0
	for _, t := range ticks {
		width = max(width, letter*float64(len(tick(t))+1))
	}
	every := 1
	for len(ticks) > 1 && every < len(ticks) && math.Abs(c.at(ticks[every])-c.at(ticks[0])) < width {
		every++
	}
	for i, t := range ticks {
		x := c.at(t)
		class := "grid"
		if i == 0 {
			class = "axis"
		}
		s.line(x, top, x, bottom, class)
		if i%every == 0 {
			s.text(min(max(x, letter), s.width()-letter*float64(len(tick(t)))/2), bottom+lineHeight, "middle", "tick", tick(t))
		}
	}
	s.text((c.from+c.to)/2, bottom+2.2*lineHeight, "middle", "label", label)
	s.h = max(s.h, bottom+2.6*lineHeight)
}

// yAxis draws horizontal grid lines with their values to the left.
func (s *svg) yAxis(c scale, ticks []float64, left, right float64) {
	for i, t := range ticks {
		class := "grid"
		if i == 0 {
			class = "axis"
		}
		s.line(left, c.at(t), right, c.at(t), class)
		s.text(left-5, c.at(t)+4, "end", "tick", tick(t))
	}
}

// tick writes an axis value.
func tick(v float64) string {
	if v >= 1000 {
		return whole(v)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
