package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"larder/internal/record"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func sample(t *testing.T) *record.Study {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "sample.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := record.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func render(t *testing.T, s *record.Study) (text, page string) {
	t.Helper()
	var a, b bytes.Buffer
	if err := Text(&a, s); err != nil {
		t.Fatal(err)
	}
	if err := HTML(&b, s); err != nil {
		t.Fatal(err)
	}
	return a.String(), b.String()
}

func TestGolden(t *testing.T) {
	text, page := render(t, sample(t))
	for name, got := range map[string]string{"sample.txt": text, "sample.html": page} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from the golden file; run with -update, look at the page, and read the diff", name)
		}
	}
}

// The page stands alone: nothing is fetched, and no script is needed.
func TestSelfContained(t *testing.T) {
	_, page := render(t, sample(t))
	page = strings.ReplaceAll(page, `xmlns="http://www.w3.org/2000/svg"`, "")
	for _, bad := range []string{"http://", "https://", "<script", "<link", "src=", "@import", "url("} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{"<h2>Verdict</h2>", "Throughput", "Time to first token", "Distribution", "Timeline", "Where the time went", "Break-even", "Checks", "✓", "@media print", "prefers-color-scheme:dark", `name="viewport"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if n := strings.Count(page, "<svg "); n != 6 {
		t.Errorf("%d charts, want 6", n)
	}
}

// Charts are well-formed, stay on their canvas, and no number in them is NaN.
func TestChartsStayInside(t *testing.T) {
	studies := map[string]*record.Study{"sample": sample(t), "64 requests": wide(t)}
	for name, s := range studies {
		_, page := render(t, s)
		chartsStayInside(t, name, page)
	}
}

func chartsStayInside(t *testing.T, name, page string) {
	t.Helper()
	number := regexp.MustCompile(`^-?[0-9.]+$`)
	for i, chart := range regexp.MustCompile(`(?s)<svg .*?</svg>`).FindAllString(page, -1) {
		width, height := 0.0, 0.0
		fmt.Sscanf(chart, `<svg viewBox="0 0 %f %f"`, &width, &height)
		dec := xml.NewDecoder(strings.NewReader(chart))
		for {
			tok, err := dec.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s, chart %d: %v", name, i, err)
			}
			el, ok := tok.(xml.StartElement)
			if !ok {
				continue
			}
			for _, a := range el.Attr {
				switch a.Name.Local {
				case "x", "x1", "x2", "cx", "y", "y1", "y2", "cy":
					var v float64
					fmt.Sscan(a.Value, &v)
					limit := width
					if strings.Contains(a.Name.Local, "y") {
						limit = height
					}
					if !number.MatchString(a.Value) || v < 0 || v > limit {
						t.Errorf("%s, chart %d: %s %s=%q outside 0..%v", name, i, el.Name.Local, a.Name.Local, a.Value, limit)
					}
				}
			}
		}
	}
	if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
		t.Errorf("%s: a number is not finite", name)
	}
}

// wide is the sample as if its largest bursts had 64 requests, some of them failed.
func wide(t *testing.T) *record.Study {
	s := sample(t)
	for i := range s.Rows {
		if r := &s.Rows[i]; r.Batch == 4 {
			r.Batch, r.Requests = 64, 64
			for len(r.Detail) < 64 {
				q := r.Detail[len(r.Detail)%4]
				q.Index = len(r.Detail)
				r.Detail = append(r.Detail, q)
			}
			r.Detail[7].Error, r.Failed = "http: 503", 1
		}
	}
	return s
}

// Only an interval that excludes a tie makes anybody win.
func TestWinsNeedAnInterval(t *testing.T) {
	for verdict, want := range map[string]string{
		record.VerdictOpen: "cannot be told apart", record.VerdictNone: "not enough repeats",
	} {
		s := sample(t)
		for i := range s.Comparisons {
			s.Comparisons[i].Verdict = verdict
		}
		text := strings.Join(headline(s), " ")
		if strings.Contains(text, "beats") || strings.Contains(text, "faster") || !strings.Contains(text, want) {
			t.Errorf("%s: %s", verdict, text)
		}
	}
	s := sample(t)
	for i := range s.Comparisons {
		if s.Comparisons[i].Batch == 1 {
			s.Comparisons[i].Verdict = record.VerdictB
			s.Comparisons[i].Speedup.Mean = record.Of(0.5)
		}
	}
	text := strings.Join(headline(s), " ")
	for _, want := range []string{"beats recomputing at batches 4 and 2", "Recomputing beats keeping KV in HBM at batch 1: 2.00 times as fast"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
}

func TestTroubleComesFirst(t *testing.T) {
	s := sample(t)
	s.Complete, s.Stopped = false, "interrupted"
	s.Checks[1].OK, s.Checks[1].Detail = false, "26 of 27 hold: host batch 4 <b>request</b> 2"
	text, page := render(t, s)
	h := headline(s)
	if !strings.Contains(h[0], "did not finish") || !strings.Contains(h[1], "Do not rely") || !strings.Contains(h[1], s.Checks[1].Name) {
		t.Errorf("%q", h)
	}
	if !strings.Contains(text, "FAILED  "+s.Checks[1].Name) || !strings.Contains(text, "1 of 14 checks failed") {
		t.Errorf("text:\n%s", text)
	}
	if !strings.Contains(page, `class="verdict bad"`) || !strings.Contains(page, "✗ FAILED") || strings.Contains(page, "<b>request</b>") {
		t.Error("the page hides a failed check, or does not escape it")
	}
}

// Whatever is missing, both renderings come out, and say so.
func TestMissingParts(t *testing.T) {
	full := sample(t)
	for name, cut := range map[string]func(*record.Study){
		"all":  func(s *record.Study) { *s = record.Study{Schema: record.Schema, KVReason: "interrupted"} },
		"rows": func(s *record.Study) { s.Rows, s.Comparisons = nil, nil },
		"two arms": func(s *record.Study) {
			s.Rows = slices.DeleteFunc(s.Rows, func(r record.Row) bool { return r.Arm == record.HBMArm })
		},
		"decode":      func(s *record.Study) { s.Decode = nil },
		"kv":          func(s *record.Study) { s.KV, s.KVReason = nil, "not asked for" },
		"ceilings":    func(s *record.Study) { s.Ceilings = nil },
		"all failed":  func(s *record.Study) { failAll(s) },
		"engine time": func(s *record.Study) { blind(s) },
	} {
		s := sample(t)
		cut(s)
		text, page := render(t, s)
		if len(text) < 40 || !strings.Contains(page, "</html>") || strings.Contains(page+text, "NaN") {
			t.Errorf("%s: text %d bytes, page %d bytes", name, len(text), len(page))
		}
		if name == "kv" && !strings.Contains(page, "Not measured: not asked for.") {
			t.Error("the page does not say why KV is missing")
		}
		if name == "engine time" && !strings.Contains(page, "not seen") {
			t.Error("the page does not say why the split is missing")
		}
	}
	if !full.OK() {
		t.Error("the sample itself is not sound")
	}
}

func failAll(s *record.Study) {
	none := record.Absent("no request succeeded")
	for i := range s.Rows {
		r := &s.Rows[i]
		r.Failed, r.InputTokens, r.InputPerS, r.Share, r.LimitS = r.Requests, 0, none, none, none
		r.TTFT = record.Summary{Mean: none, Min: none, P50: none, P90: none, P99: none, Max: none, Reason: none.Why()}
		for k := range r.Detail {
			r.Detail[k].Error, r.Detail[k].FirstMS = "http: 503", none
		}
	}
	s.Comparisons = nil
}

func blind(s *record.Study) {
	none := record.Absent("the engine's own times were not seen")
	for i := range s.Rows {
		s.Rows[i].Split = record.Split{Queue: none, Load: none, Compute: none, Outside: none}
		for k := range s.Rows[i].Detail {
			q := &s.Rows[i].Detail[k]
			q.Admitted, q.Loaded, q.Started = none, none, none
		}
	}
}

func TestNumbers(t *testing.T) {
	for got, want := range map[string]string{
		whole(0): "0", whole(999.6): "1,000", whole(1234567): "1,234,567", whole(-1234): "-1,234", whole(-0.2): "0",
		short(0): "0", short(0.0123): "0.012", short(1.234): "1.23", short(45.67): "45.7", short(456.7): "457", short(12345): "12,345",
		percent(0.0051): "0.5 %", percent(0.62): "62 %", times(9.018): "9.02×", bytesOf(4718592): "4.50 MiB",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestScales(t *testing.T) {
	for _, top := range []float64{0, 1e-7, 0.3, 1, 9.9, 24999, 25000, 25001, 3e12} {
		c, ticks := linear(top, 100, 400)
		if c.at(0) != 100 || len(ticks) < 2 || len(ticks) > 12 || ticks[0] != 0 || ticks[len(ticks)-1] < top*(1-1e-9) {
			t.Errorf("linear to %v: ticks %v", top, ticks)
		}
	}
	for _, r := range [][2]float64{{1, 1}, {115, 4199}, {0.016, 1054}, {99, 101}, {1e-6, 1e6}} {
		c, ticks := logarithmic(r[0], r[1], 40, 400)
		if c.lo > r[0] || c.hi < r[1] || c.lo >= c.hi || len(ticks) == 0 || len(ticks) > 20 || math.IsNaN(c.at(r[1])) {
			t.Errorf("logarithmic %v: %v to %v, ticks %v", r, c.lo, c.hi, ticks)
		}
	}
}

// Whatever record can be decoded can be rendered.
func FuzzRender(f *testing.F) {
	b, err := os.ReadFile(filepath.Join("testdata", "sample.json"))
	if err != nil {
		f.Fatal(err)
	}
	s, err := record.Decode(bytes.NewReader(b))
	if err != nil {
		f.Fatal(err)
	}
	s.Rows, s.Decode, s.HeldOut, s.Comparisons, s.Published = s.Rows[3:5], nil, s.HeldOut[:1], s.Comparisons[:2], record.Published{}
	s.BreakEven.Curve, s.BreakEven.Map, s.BreakEven.Fit.HeldOut = s.BreakEven.Curve[:2], s.BreakEven.Map[:3], s.BreakEven.Fit.HeldOut[:1]
	var small bytes.Buffer // a short seed leaves the fuzzer more to change in less time
	if err := record.Encode(&small, s); err != nil {
		f.Fatal(err)
	}
	f.Add(small.Bytes())
	f.Add([]byte(`{"schema":"larder.study/1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := record.Decode(bytes.NewReader(b))
		if err != nil {
			return
		}
		if err := errors.Join(Text(io.Discard, s), HTML(io.Discard, s)); err != nil {
			t.Fatal(err)
		}
	})
}
