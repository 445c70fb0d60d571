package report

import (
	"fmt"
	"html/template"

	"larder/internal/record"
)

// timeline draws one burst's requests as bars from send to last line, each arm on its own time scale: on one scale the
// fast arms would be slivers. What waits, loads and computes is told apart where the engine's times are known.
func timeline(s *record.Study) template.HTML {
	rows := timelineRows(s)
	if len(rows) == 0 {
		return ""
	}
	v := new(svg)
	classes, names := []string{"queue", "load", "compute"}, []string{"Waiting", "Loading", "Computing"}
	if foreign(s) {
		classes, names = []string{"compute"}, []string{"To the first token"}
	}
	if rows[0].OutputTokens > rows[0].Requests {
		classes, names = append(classes, "decode"), append(names, "More tokens")
	}
	for _, r := range rows {
		if r.Failed > 0 {
			classes, names = append(classes, "failed"), append(names, "Failed")
			break
		}
	}
	v.legend(0, 12, classes, names)
	y := 24.0
	for _, r := range rows {
		y = v.timelineOf(r, y)
	}
	v.h = y
	return v.done(fmt.Sprintf("Timeline of the requests of one burst of %d in each arm", rows[0].Batch))
}

// timelineRows are the first repeat's largest bursts, an arm each.
func timelineRows(s *record.Study) []*record.Row {
	most := 0
	for i := range s.Rows {
		most = max(most, s.Rows[i].Batch)
	}
	var out []*record.Row
	for _, arm := range armOrder {
		for i := range s.Rows {
			if r := &s.Rows[i]; r.Arm == arm && r.Batch == most {
				out = append(out, r)
				break
			}
		}
	}
	return out
}

func (v *svg) timelineOf(r *record.Row, y float64) float64 {
	end := 0.0
	for i := range r.Detail {
		end = max(end, r.Detail[i].DoneMS.Or(0))
	}
	v.text(0, y+13, "start", "group", fmt.Sprintf("%s: %s in all", armName(r.Arm), millis(1000*r.DurationS)))
	y += 20
	height, gap := 12.0, 3.0
	if len(r.Detail) > 16 {
		height, gap = 4, 1
	}
	x, ticks := linear(end, 10, chartWidth-20)
	bottom := y + float64(len(r.Detail))*(height+gap)
	v.xAxis(x, ticks, y-2, bottom, "ms since the burst began")
	for i := range r.Detail {
		v.requestBar(x, y, height, &r.Detail[i])
		y += height + gap
	}
	return bottom + 3*lineHeight
}

// requestBar draws one request; a stage whose times are unknown is drawn as part of the one after it.
func (v *svg) requestBar(x scale, y, height float64, q *record.Request) {
	from, ok := q.SentMS.Get()
	if !ok {
		return
	}
	part := func(until record.Number, class, what string) {
		to, ok := until.Get()
		if !ok || to <= from {
			return
		}
		v.rect(x.at(from), y, x.at(to)-x.at(from), height, "fill-"+class, fmt.Sprintf("request %d %s: %s to %s", q.Index, what, millis(from), millis(to)))
		from = to
	}
	if q.Error != "" {
		part(q.DoneMS, "failed", "failed: "+q.Error)
		return
	}
	part(q.Admitted, "queue", "waits")
	part(q.Loaded, "load", "loads")
	part(q.Started, "queue", "waits for a step")
	part(q.FirstMS, "compute", "computes")
	if q.Output > 1 {
		part(q.DoneMS, "decode", "makes more tokens")
	}
}
