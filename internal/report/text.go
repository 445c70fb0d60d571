package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"larder/internal/record"
)

// Text writes the terminal's table: the arms side by side for each batch size, the verdict, and the checks.
func Text(w io.Writer, s *record.Study) error {
	var b strings.Builder
	machine, workload := subject(s)
	fmt.Fprintf(&b, "larder study: %s\n%s\n\n", machine, workload)
	if s.Host.TierNote != "" {
		fmt.Fprintf(&b, "%s\n\n", s.Host.TierNote)
	}
	textArms(&b, s)
	textDecode(&b, s)
	for _, v := range headline(s) {
		fold(&b, v)
	}
	if v := s.BreakEven.Verdict; v != "" {
		fold(&b, v+fitError(s))
	}
	b.WriteString("\n")
	textChecks(&b, s)
	_, err := io.WriteString(w, b.String())
	return err
}

func textArms(b *strings.Builder, s *record.Study) {
	all := cells(s)
	if len(all) == 0 {
		return
	}
	limits := !foreign(s)
	cut := func(cells []string) []string {
		if limits {
			return cells
		}
		return slices.Delete(cells, 5, 6)
	}
	t := table{cut([]string{"batch", "arm", "input tok/s", "TTFT mean", "TTFT p99", "of limit", "speedup", "95 % interval"})}
	last := all[0].Batch
	for _, c := range all {
		if c.Batch != last {
			t = append(t, nil)
			last = c.Batch
		}
		ratio, span := speedup(c.Speedup)
		t = append(t, cut([]string{fmt.Sprint(c.Batch), c.Name, show(c.InputPerS, whole), show(c.TTFT.Mean, millis), show(c.TTFT.P99, millis), show(c.Share, percent), ratio, span}))
	}
	t.write(b, 1)
	note := fmt.Sprintf("Speedup: of the whole burst against recompute, paired over %s.", count(s.Workload.Repeats, "repeat"))
	if limits {
		note += " Of limit: share of what this machine's measured ceilings allow."
	}
	fold(b, note)
	b.WriteString("\n")
}

func textDecode(b *strings.Builder, s *record.Study) {
	if len(s.Decode) == 0 {
		return
	}
	cut := func(cells []string) []string {
		if foreign(s) {
			return cells[:len(cells)-1]
		}
		return cells
	}
	t := table{cut([]string{"decode (HBM)", "in flight", "output tok/s", "TTFT mean", "TPOT mean", "ITL p99", "of limit"})}
	for i := range s.Decode {
		r := &s.Decode[i]
		t = append(t, cut([]string{decodeName(r), inFlight(r), show(r.OutputPerS, whole), show(r.TTFT.Mean, millis), show(r.TPOT.Mean, millis), show(r.ITL.P99, millis), show(r.Share, percent)}))
	}
	t.write(b, 0)
	b.WriteString("\n")
}

func decodeName(r *record.Row) string {
	return fmt.Sprintf("%d × %d tokens", r.Requests, r.OutputTokens/max(r.Requests-r.Failed, 1))
}

func inFlight(r *record.Row) string {
	if r.Concurrency == 0 {
		return "all at once"
	}
	return fmt.Sprint(r.Concurrency)
}

// fitError is how far the break-even's model was off, in a sentence.
func fitError(s *record.Study) string {
	f := &s.BreakEven.Fit
	mean, ok := f.MeanError.Get()
	switch {
	case foreign(s):
		return ""
	case !ok:
		return " The duration model has no error to show: " + f.MeanError.Why() + "."
	}
	return fmt.Sprintf(" A duration model fitted to these bursts was off by %s on average, %s at most, on bursts it had not seen.", percent(mean), show(f.MaxError, percent))
}

func textChecks(b *strings.Builder, s *record.Study) {
	failed := 0
	for _, c := range s.Checks {
		if !c.OK {
			failed++
			fmt.Fprintf(b, "FAILED  %s: %s\n", c.Name, c.Detail)
		}
	}
	switch {
	case len(s.Checks) == 0:
		b.WriteString("No check was made.\n")
	case failed == 0:
		var names []string
		for _, c := range s.Checks {
			names = append(names, c.Name)
		}
		hold := fmt.Sprintf("All %d checks hold", len(names))
		if len(names) == 1 {
			hold = "The one check made holds"
		}
		fold(b, hold+": "+strings.Join(names, "; ")+".")
	default:
		fmt.Fprintf(b, "%d of %s failed.\n", failed, count(len(s.Checks), "check"))
	}
}

// foldAt is the width of running text.
const foldAt = 110

// fold writes a paragraph in lines of at most foldAt letters.
func fold(b *strings.Builder, text string) {
	n := 0
	for _, word := range strings.Fields(text) {
		w := utf8.RuneCountInString(word)
		switch {
		case n == 0:
		case n+1+w > foldAt:
			b.WriteString("\n")
			n = 0
		default:
			b.WriteString(" ")
			n++
		}
		b.WriteString(word)
		n += w
	}
	b.WriteString("\n")
}

// table is rows of cells, the header first; an empty row is a blank line.
type table [][]string

// write aligns the columns: the one numbered left to the left, all others to the right.
func (t table) write(b *strings.Builder, left int) {
	width := make([]int, len(t[0]))
	for _, row := range t {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	for _, row := range t {
		var line strings.Builder
		for i, c := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i > 0 {
				line.WriteString("  ")
			}
			if i == left {
				line.WriteString(c + pad)
			} else {
				line.WriteString(pad + c)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}
