package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"unicode"

	"larder/internal/record"
)

//go:embed page.html
var pageSource string

//go:embed style.css
var styleSource string

// page is what the template shows: all formatting is done before.
type page struct {
	Title, Machine, Workload, Tiers string
	Style                           template.CSS
	OK                              bool
	Limits                          bool // the ceilings of the machine are known
	Headline                        []string
	Verdict, FitError               string
	Groups                          []group
	Repeats                         string
	Figures                         []figure
	Tables                          []figure
	Checks                          []record.Check
	Notes                           []string
	Tool, Date, Wall                string
}

// group is the main table's rows of one batch size.
type group struct {
	Batch int
	Rows  []mainRow
}

type mainRow struct {
	Arm, Name, InputPerS, TTFT, P99, Share, LimitBy, Speedup, Span string
}

// figure is a chart with its numbers below it, or a table alone.
type figure struct {
	Title, Text string
	Chart       template.HTML
	Head        []string
	Rows        [][]string
	Notes       []string
	Tall        bool // takes the page's whole width, its numbers beside the chart
}

// Words says whether column i holds words, which stand to the left; numbers stand to the right.
func (f figure) Words(i int) bool {
	for _, r := range f.Rows {
		if r[i] != none {
			if i == 0 {
				return strings.ContainsFunc(r[i], unicode.IsLetter)
			}
			return !strings.ContainsAny(r[i][:1], "0123456789+-")
		}
	}
	return false
}

// HTML writes one page that needs nothing else: no script, no network, no font.
func HTML(w io.Writer, s *record.Study) error {
	t, err := template.New("page").Parse(pageSource)
	if err != nil {
		return fmt.Errorf("report: the page's own template: %w", err)
	}
	var b strings.Builder
	if err := t.Execute(&b, newPage(s)); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

func newPage(s *record.Study) *page {
	p := &page{
		Title: "Where should KV cache live? " + s.Model.Name, Style: template.CSS(styleSource), OK: s.OK(), Limits: !foreign(s),
		Headline: headline(s), Verdict: s.BreakEven.Verdict, Checks: s.Checks, Notes: s.Notes,
		Tool: s.Tool, Date: s.Started.UTC().Format("2 January 2006, 15:04 UTC"), Wall: short(s.WallS) + " s",
		Repeats: count(s.Workload.Repeats, "repeat"),
	}
	if p.Verdict != "" {
		p.FitError = fitError(s)
	}
	p.Machine, p.Workload = subject(s)
	p.Tiers = s.Host.TierNote
	cs := cells(s)
	p.Groups = groups(cs)
	for _, f := range []figure{throughputFigure(cs), ttftFigure(cs), distributionFigure(cs), breakEvenFigure(s), splitFigure(cs), timelineFigure(s)} {
		if f.Chart != "" {
			p.Figures = append(p.Figures, f)
		}
	}
	for _, f := range []figure{decodeTable(s), kvTable(s), comparisonTable(s), mapTable(s), fitTable(s), publishedTable(s, cs), ceilingTable(s), aboutTable(s)} {
		if len(f.Rows) > 0 || f.Text != "" {
			p.Tables = append(p.Tables, f)
		}
	}
	return p
}

func groups(cs []cell) []group {
	var out []group
	for i := range cs {
		c := &cs[i]
		if len(out) == 0 || out[len(out)-1].Batch != c.Batch {
			out = append(out, group{Batch: c.Batch})
		}
		ratio, span := speedup(c.Speedup)
		g := &out[len(out)-1]
		g.Rows = append(g.Rows, mainRow{
			Arm: c.Arm, Name: c.Name, InputPerS: show(c.InputPerS, whole), TTFT: show(c.TTFT.Mean, short), P99: show(c.TTFT.P99, short),
			Share: show(c.Share, percent), LimitBy: limitName(c.LimitBy), Speedup: ratio, Span: span,
		})
	}
	return out
}
