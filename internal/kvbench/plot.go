package kvbench

import (
	"fmt"
	"html/template"
	"io"

	"larder/internal/device"
)

// Plot writes a page of its own, with no outside parts: for each row and direction a bar of the bandwidth against the
// ceiling of the same run, with the range of the batches, and the figures below.
func Plot(w io.Writer, machine string, rows []Row) error {
	page := plotPage{Machine: machine}
	for _, r := range rows {
		if r.Result == nil {
			continue
		}
		f := plotFigure{Name: r.Name, About: about(&r.Result.Config), Checks: "all checks passed"}
		top := 0.0
		for _, c := range r.Result.Config.Ceilings {
			if c.Name == device.CeilingCopyDuplex {
				top = c.Value / gib
			}
		}
		for i := range r.Result.Phases {
			p := &r.Result.Phases[i]
			m, _ := p.Find(batchRateName(p.Direction))
			mean, ok := m.Mean().Get()
			if !ok {
				continue
			}
			low, _ := m.Percentile(0).Get()
			high, _ := m.Percentile(100).Get()
			b := plotBar{Name: p.Direction.String(), Mean: mean, Low: low, High: high, Share: m.Share, Y: i * barStep}
			if m.Share > 0 {
				b.Ceiling = mean / m.Share
			}
			top = max(top, high, b.Ceiling)
			f.Bars = append(f.Bars, b)
		}
		for _, c := range r.Result.Checks {
			if !c.OK {
				f.Checks = "FAILED: " + c.Name + ": " + c.Detail
			}
		}
		f.scale(top)
		page.Figures = append(page.Figures, f)
	}
	return plotTemplate().Execute(w, page)
}

func about(c *Config) string {
	return fmt.Sprintf("%d requests x %d tokens x %d layers, %d in flight, %d batches, blocks of %d tokens, %.1f MiB per request and direction, method %v",
		c.Requests, c.Tokens, c.Layout.Layers, c.inFlight(), c.Batches, c.Layout.BlockTokens, float64(c.BytesPerRequest())/(1<<20), c.Method)
}

type plotPage struct {
	Machine string
	Figures []plotFigure
}

type plotFigure struct {
	Name, About, Checks string
	Bars                []plotBar
	Height              int
}

// plotBar has values in GiB/s, and where they are drawn.
type plotBar struct {
	Name                     string
	Mean, Low, High, Ceiling float64
	Share                    float64
	Y                        int
	W, LowX, HighX, CeilingX float64
}

const (
	barStep   = 30
	barLeft   = 90.0
	barLength = 440.0
)

// scale places the bars: top GiB/s are the whole length.
func (f *plotFigure) scale(top float64) {
	if top <= 0 {
		top = 1
	}
	x := func(v float64) float64 { return v / top * barLength }
	for i := range f.Bars {
		b := &f.Bars[i]
		b.W, b.LowX, b.HighX, b.CeilingX = x(b.Mean), barLeft+x(b.Low), barLeft+x(b.High), barLeft+x(b.Ceiling)
	}
	f.Height = len(f.Bars)*barStep + 6
}

// Label is the text behind a bar.
func (b plotBar) Label() string {
	if b.Share == 0 {
		return fmt.Sprintf("%.1f GiB/s", b.Mean)
	}
	return fmt.Sprintf("%.1f GiB/s, %.0f %%", b.Mean, 100*b.Share)
}

func plotTemplate() *template.Template { return template.Must(template.New("plot").Parse(plotText)) }

const plotText = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>larder kvbench</title>
<style>:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:48rem;margin:1rem auto;padding:0 1rem}
svg{width:100%;height:auto;display:block}text{font-size:13px;fill:currentColor}.bar{fill:#1d63b8}.range{stroke:currentColor;stroke-width:1.5}
.ceiling{stroke:#c2410c;stroke-width:2;stroke-dasharray:4 3}p{margin:.2rem 0;color:gray}h2{font-size:1.1rem;margin:1.6rem 0 .2rem}</style>
<h1>KV loads and stores</h1>
<p>{{.Machine}}. Bars: all bytes of a batch over its makespan, mean of the batches; thin line: lowest to highest batch; dashed: the ceiling that was measured in the same run.</p>
{{range .Figures}}<h2>{{.Name}}</h2>
<p>{{.About}}; {{.Checks}}</p>
<svg viewBox="0 0 680 {{.Height}}" role="img" aria-label="{{.Name}}">
{{range .Bars}}<text x="84" y="{{.Y}}" dy="20" text-anchor="end">{{.Name}}</text>
<rect class="bar" x="90" y="{{.Y}}" width="{{printf "%.1f" .W}}" height="20" transform="translate(0 5)"><title>{{.Label}}</title></rect>
<line class="range" x1="{{printf "%.1f" .LowX}}" x2="{{printf "%.1f" .HighX}}" y1="{{.Y}}" y2="{{.Y}}" transform="translate(0 15)"/>
{{if .Ceiling}}<line class="ceiling" x1="{{printf "%.1f" .CeilingX}}" x2="{{printf "%.1f" .CeilingX}}" y1="0" y2="26" transform="translate(0 {{.Y}})"/>
{{end}}<text x="540" y="{{.Y}}" dy="20">{{.Label}}</text>
{{end}}</svg>
{{end}}</html>
`
