package report

import (
	"fmt"
	"html/template"

	"larder/internal/record"
)

const (
	barHeight = 17.0
	barGap    = 5.0
	gutter    = 100.0 // room for the arms' names
)

// bars draws one value a cell as horizontal bars from zero, grouped by batch, with the repeats as dots.
func bars(cs []cell, value func(*cell) record.Number, each func(*cell) []float64, format func(float64) string, label string) template.HTML {
	top, room := 0.0, 0
	for i := range cs {
		top = max(top, value(&cs[i]).Or(0))
		for _, v := range each(&cs[i]) {
			top = max(top, v)
		}
		room = max(room, len(show(value(&cs[i]), format)))
	}
	x, ticks := linear(top, gutter, chartWidth-letter*float64(room)-18)
	s := new(svg)
	y := 4.0
	var draw []func()
	batch := 0
	for i := range cs {
		c := &cs[i]
		if c.Batch != batch {
			batch = c.Batch
			y += 8
			at := y
			draw = append(draw, func() { s.text(0, at+12, "start", "group", fmt.Sprintf("Batch %d", c.Batch)) })
			y += 20
		}
		at := y
		draw = append(draw, func() { s.bar(x, at, c, value(c), each(c), format) })
		y += barHeight + barGap
	}
	s.xAxis(x, ticks, 8, y, label)
	for _, d := range draw {
		d()
	}
	return s.done(label + ", by batch and arm")
}

func (s *svg) bar(x scale, y float64, c *cell, value record.Number, each []float64, format func(float64) string) {
	s.text(gutter-6, y+13, "end", "name", c.Name)
	v, ok := value.Get()
	if !ok {
		s.text(gutter+4, y+13, "start", "value", none+" "+value.Why())
		return
	}
	s.rect(x.at(0), y, x.at(v)-x.at(0), barHeight, "fill-"+c.Arm, fmt.Sprintf("%s, batch %d: %s", c.Name, c.Batch, format(v)))
	end := x.at(v)
	for _, e := range each {
		s.circle(x.at(e), y+barHeight/2, 2.6, "dot", format(e))
		end = max(end, x.at(e)+2.6)
	}
	s.text(end+5, y+13, "start", "value", format(v))
}

// stages are the parts of a time split, in the order in which they happen.
var stages = []struct{ name, class string }{{"queue", "queue"}, {"load", "load"}, {"compute", "compute"}, {"outside", "outside"}}

func stageValues(p *record.Split) []record.Number {
	return []record.Number{p.Queue, p.Load, p.Compute, p.Outside}
}

// splitBars draws where each cell's mean TTFT went, as parts of the whole; the whole stands behind the bar.
func splitBars(cs []cell) template.HTML {
	x := scale{lo: 0, hi: 100, from: gutter, to: chartWidth - 66}
	s := new(svg)
	s.legend(0, 12, []string{"queue", "load", "compute", "outside"}, []string{"Queue", "Load", "Compute", "Client, HTTP"})
	y, batch := 26.0, 0
	var draw []func()
	for i := range cs {
		c := &cs[i]
		if c.Batch != batch {
			batch = c.Batch
			at := y
			draw = append(draw, func() { s.text(0, at+13, "start", "group", fmt.Sprintf("Batch %d", c.Batch)) })
			y += 20
		}
		at := y
		draw = append(draw, func() { s.splitBar(x, at, c) })
		y += barHeight + barGap
	}
	s.xAxis(x, []float64{0, 25, 50, 75, 100}, 24, y, "share of the mean time to first token, %")
	for _, d := range draw {
		d()
	}
	return s.done("Where the mean time to first token went, by batch and arm")
}

func (s *svg) splitBar(x scale, y float64, c *cell) {
	s.text(gutter-6, y+13, "end", "name", c.Name)
	total := 0.0
	for _, n := range stageValues(&c.Split) {
		v, ok := n.Get()
		if !ok {
			s.text(gutter+4, y+13, "start", "value", none+" "+n.Why())
			return
		}
		total += max(v, 0)
	}
	if total == 0 {
		return
	}
	from := 0.0
	for i, n := range stageValues(&c.Split) {
		part := 100 * max(n.Or(0), 0) / total
		s.rect(x.at(from), y, x.at(from+part)-x.at(from), barHeight, "fill-"+stages[i].class, fmt.Sprintf("%s: %s of %s", stages[i].name, millis(n.Or(0)), millis(total)))
		from += part
	}
	s.text(x.to+5, y+13, "start", "value", millis(total))
}

// legend draws swatches with names in one line.
func (s *svg) legend(x, y float64, classes, names []string) {
	for i, c := range classes {
		s.rect(x, y-9, 11, 11, "fill-"+c, "")
		s.text(x+15, y+1, "start", "tick", names[i])
		x += 15 + letter*float64(len(names[i])) + 14
	}
	s.h = max(s.h, y+6)
}
