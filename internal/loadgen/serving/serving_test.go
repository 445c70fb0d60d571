package serving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"larder/internal/loadgen"
	"larder/internal/stats"
	"larder/internal/workload"
)

// documentBlocks are the result blocks of the document that this project answers, byte for byte.
func documentBlocks(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("testdata/document_blocks.txt")
	if err != nil {
		t.Fatal(err)
	}
	const title = "============ Serving Benchmark Result ============\n"
	var blocks []string
	for _, part := range strings.Split(string(b), title)[1:] {
		blocks = append(blocks, title+part)
	}
	if len(blocks) != 10 {
		t.Fatalf("%d blocks, want 10", len(blocks))
	}
	return blocks
}

// rows are a block's values by label.
func rows(block string) map[string]string {
	out := map[string]string{}
	for _, line := range strings.Split(block, "\n") {
		if label, value, ok := strings.Cut(line, ": "); ok {
			out[label] = strings.TrimSpace(value)
		}
	}
	return out
}

func number(t *testing.T, rows map[string]string, label string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(rows[label], 64)
	if err != nil {
		t.Fatalf("%s: %v", label, err)
	}
	return v
}

// Every block of the document comes out byte for byte when the metrics have its numbers.
func TestDocumentBlocks(t *testing.T) {
	for i, want := range documentBlocks(t) {
		r := rows(want)
		get := func(label string) float64 { return number(t, r, label) }
		summary := func(unit string) stats.Summary {
			s := stats.Summary{N: 1}
			for name, to := range map[string]*stats.Value{"Mean ": &s.Mean, "Median ": &s.P50, "P95 ": &s.P95, "P99 ": &s.P99, "Max ": &s.Max} {
				if _, ok := r[name+unit+" (ms)"]; ok {
					*to = stats.Of(get(name + unit + " (ms)"))
				}
			}
			return s
		}
		m := &Metrics{Setup: Setup{Backend: r["Backend"], RequestRate: math.Inf(1)}}
		if c := r["Max request concurrency"]; c != "not set" {
			m.Setup.MaxConcurrency = int(get("Max request concurrency"))
		}
		m.Completed, m.Duration = int(get("Successful requests")), get("Benchmark duration (s)")
		m.Input, m.Text = int(get("Total input tokens")), int(get("Total input text tokens"))
		m.Output, m.Retokenized = int(get("Total generated tokens")), int(get("Total generated tokens (retokenized)"))
		m.RequestRate, m.InputRate = get("Request throughput (req/s)"), get("Input token throughput (tok/s)")
		m.OutputRate, m.TotalRate = get("Output token throughput (tok/s)"), get("Total token throughput (tok/s)")
		m.Concurrency = get("Concurrency")
		m.E2E, m.TTFT, m.TPOT, m.ITL = summary("E2E Latency"), summary("TTFT"), summary("TPOT"), summary("ITL")
		var b bytes.Buffer
		if err := Block(&b, m, StyleSeed); err != nil || b.String() != want {
			t.Errorf("block %d: %v\n%s\nwant\n%s", i, err, b.String(), want)
		}
	}
}

// msd is a duration of so many ms.
func msd(v float64) time.Duration { return time.Duration(math.Round(v * 1e6)) }

// spread makes n latencies with the given mean, median and 99th percentile: two medians in the middle, a tail that
// gives the percentile, and two levels below and above the median that give the mean.
func spread(t *testing.T, n int, mean, median, p99 float64) []float64 {
	t.Helper()
	x := make([]float64, n)
	rank := 0.99 * float64(n-1)
	lo, mid := int(rank), n/2
	near := median + (p99-median)*0.9 // the value just below the percentile
	for low := median; low > 0; low -= median / 1000 {
		rest := mean * float64(n)
		for i := range x {
			switch {
			case i < mid-1:
				x[i] = low
			case i <= mid:
				x[i] = median
			case i < lo:
				x[i] = 0
			case i == lo:
				x[i] = near
			default:
				x[i] = near + (p99-near)/(rank-float64(lo))
			}
			rest -= x[i]
		}
		high := rest / float64(lo-mid-1)
		if high < median || high > near {
			continue
		}
		for i := mid + 1; i < lo; i++ {
			x[i] = high
		}
		return x
	}
	t.Fatalf("no %d values have mean %v, median %v, p99 %v", n, mean, median, p99)
	return nil
}

// window is a duration that agrees with both printed token rates; each alone leaves room for the other to round
// differently.
func window(t *testing.T, r map[string]string, input, output int) time.Duration {
	t.Helper()
	rate := number(t, r, "Input token throughput (tok/s)")
	for off := -0.005; off <= 0.005; off += 0.0005 {
		d := time.Duration(float64(input) / (rate + off) * 1e9)
		in, all := float64(input)/d.Seconds(), float64(input+output)/d.Seconds()
		if fmt.Sprintf("%.2f", in) == r["Input token throughput (tok/s)"] && fmt.Sprintf("%.2f", all) == r["Total token throughput (tok/s)"] {
			return d
		}
	}
	t.Fatal("the rates of the block agree with no duration")
	return 0
}

// The prefill blocks of the document come out of outcomes: this checks the formulas, not only the layout.
func TestDocumentFromOutcomes(t *testing.T) {
	tested := 0
	for i, want := range documentBlocks(t) {
		r := rows(want)
		get := func(label string) float64 { return number(t, r, label) }
		n, input := int(get("Successful requests")), int(get("Total input tokens"))
		if int(get("Total generated tokens")) != n {
			continue // a decode block: its gaps are not determined by its rows
		}
		tested++
		ttft := spread(t, n, get("Mean TTFT (ms)"), get("Median TTFT (ms)"), get("P99 TTFT (ms)"))
		tail := get("Mean E2E Latency (ms)") - get("Mean TTFT (ms)")
		mid := get("Median E2E Latency (ms)") - get("Median TTFT (ms)")
		res := &loadgen.Result{Duration: window(t, r, input, n)}
		for k := range n {
			length := input / n
			if k == 0 {
				length = input - length*(n-1)
			}
			after := tail
			if k == n/2 || k == n/2-1 {
				after = mid
			}
			o := loadgen.Outcome{Item: &workload.Item{PromptLen: length, OutputLen: 1}, First: msd(ttft[k]), Done: msd(ttft[k] + after),
				OutputTokens: 1, TokenSource: loadgen.SourceMeta, Text: "x", PromptTokens: -1}
			o.Chunks = []loadgen.Chunk{{At: o.First, Tokens: 1}}
			res.Outcomes = append(res.Outcomes, o)
		}
		m := Compute(res, Setup{Backend: "sglang", RequestRate: math.Inf(1), Count: func(string) int { return 1 }})
		var b bytes.Buffer
		if err := Block(&b, m, StyleSeed); err != nil || b.String() != want {
			t.Errorf("block %d: %v\n%s\nwant\n%s", i, err, b.String(), want)
		}
	}
	if tested != 8 {
		t.Errorf("%d prefill blocks, want 8", tested)
	}
}

// two is a run of one four-token answer in three chunks, one one-token answer, and two failures.
func two() *loadgen.Result {
	item := &workload.Item{PromptLen: 100, OutputLen: 4}
	s := time.Second
	return &loadgen.Result{Duration: 2 * s, Outcomes: []loadgen.Outcome{
		{Item: item, Due: 0, Slot: s / 4, Sent: s / 4, First: s / 2, Done: 3 * s / 2, OutputTokens: 4, TokenSource: loadgen.SourceMeta, Text: "abcd", PromptTokens: 110,
			Cached: &loadgen.Cached{Total: 60, Device: 50, Host: 10, Storage: 0},
			Chunks: []loadgen.Chunk{{At: s / 2, Tokens: 1}, {At: s, Tokens: 2}, {At: 5 * s / 4, Tokens: 1}}},
		{Item: item, Sent: 0, First: s, Done: 2 * s, OutputTokens: 1, TokenSource: loadgen.SourceMeta, Text: "a", PromptTokens: 100,
			Cached: &loadgen.Cached{Total: 0, Device: 0, Host: 0, Storage: 0}, Chunks: []loadgen.Chunk{{At: s, Tokens: 1}}},
		{Item: item, Sent: 0, Done: s / 1000, Class: loadgen.ClassHTTP, Err: fmt.Errorf("503"), PromptTokens: -1},
		{Item: item, Sent: loadgen.NeverSent, Class: loadgen.ClassCanceled, Err: fmt.Errorf("stopped"), PromptTokens: -1},
	}}
}

func TestCompute(t *testing.T) {
	m := Compute(two(), Setup{Backend: "sglang", RequestRate: 8, Count: func(s string) int { return len(s) }, SLO: []Objective{{"ttft", 300}, {"tpot", 400}}})
	for what, c := range map[string][2]float64{
		"mean e2e": {m.E2E.Mean.Or(-1), 1625}, "mean ttft": {m.TTFT.Mean.Or(-1), 625}, "tpot": {m.TPOT.Mean.Or(-1), 1000.0 / 3},
		"mean itl": {m.ITL.Mean.Or(-1), 250}, "itl n": {float64(m.ITL.N), 3}, "chunk gap": {m.Client.ChunkGap.Mean.Or(-1), 375}, "due ttft": {m.FromDue.TTFT.Mean.Or(-1), 750},
		"concurrency": {m.Concurrency, 1.625}, "output rate": {m.OutputRate, 2.5}, "peak tokens": {m.PeakOutput, 3}, "peak requests": {float64(m.PeakRequests), 2},
		"retokenized": {float64(m.Retokenized), 5}, "failures": {float64(m.Failed["http"] + m.Failed["canceled"]), 2}, "hit rate": {m.Tokens.HitRate().Or(-1), 60.0 / 210},
		"good": {float64(m.Good), 1}, "ttft share": {m.Goodput[0].Share.Or(-1), 0.25}, "tpot share": {m.Goodput[1].Share.Or(-1), 1.0 / 3}, "short": {float64(m.Tokens.Short), 1},
	} {
		if math.Abs(c[0]-c[1]) > 1e-9 {
			t.Errorf("%s = %v, want %v", what, c[0], c[1])
		}
	}
}

// The layouts of the reference's releases, with its widths and trailing blanks.
func TestStyles(t *testing.T) {
	m := Compute(two(), Setup{Backend: "sglang", RequestRate: 8, MaxConcurrency: 16, Accept: stats.Of(2.5)})
	for s, want := range map[Style]string{Style054: "0.5.4.txt", Style056: "0.5.6.txt", StyleHead: "head.txt", StyleVLLM: "vllm.txt"} {
		var b bytes.Buffer
		if err := Block(&b, m, s); err != nil {
			t.Fatal(err)
		}
		golden, err := os.ReadFile("testdata/" + want)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(golden) {
			t.Errorf("style %s:\n%s\nwant\n%s", s, b.String(), golden)
		}
	}
}

func TestPythonFloat(t *testing.T) {
	for v, want := range map[float64]string{8: "8.0", 0.5: "0.5", math.Inf(1): "inf", 1e16: "1e+16", 1e-5: "1e-05", 123456789: "123456789.0"} {
		if got := pythonFloat(v); got != want {
			t.Errorf("%v prints as %q, want %q", v, got, want)
		}
	}
}

func TestExtra(t *testing.T) {
	var b bytes.Buffer
	m := Compute(two(), Setup{Backend: "sglang", RequestRate: math.Inf(1), SLO: []Objective{{"tpot", 400}}})
	if err := Extra(&b, m); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{"Failed requests:                         2", "  http:                                  1", "Prompt tokens (by the server):           210",
		"  device:                                50", "  host:                                  10", "Computed prompt tokens:                  150", "28.6%",
		"Answers shorter than asked:              1", "Tokens per arrival:                      1.25", "no tokenizer", "2 of 4 requests failed", "33.3%", "+5.0%"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "internal:") || strings.Contains(text, "NaN") {
		t.Errorf("an identity does not hold:\n%s", text)
	}
}

// A run in which nothing worked prints, warns, and invents no number.
func TestNothingWorked(t *testing.T) {
	res := &loadgen.Result{Outcomes: []loadgen.Outcome{{Item: &workload.Item{}, Class: loadgen.ClassConnect, Err: fmt.Errorf("refused"), PromptTokens: -1}}}
	m := Compute(res, Setup{Backend: "vllm", RequestRate: math.Inf(1)})
	var b bytes.Buffer
	for _, s := range Styles() {
		if err := Block(&b, m, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := Extra(&b, m); err != nil || !strings.Contains(b.String(), "all requests failed") || strings.Contains(b.String(), "NaN") {
		t.Errorf("%v\n%s", err, b.String())
	}
	b.Reset()
	if err := Line(&b, m, res.Outcomes, Run{Details: true}); err != nil || !strings.Contains(b.String(), `"mean_ttft_ms": null`) {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestLine(t *testing.T) {
	res := two()
	m := Compute(res, Setup{Backend: "sglang", RequestRate: math.Inf(1)})
	var b bytes.Buffer
	if err := Line(&b, m, res.Outcomes, Run{Dataset: "random-ids", RandomInput: 10, Details: true, CacheReport: true}); err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b.Bytes(), &v); err != nil || strings.Count(b.String(), "\n") != 1 {
		t.Fatalf("not one line of JSON: %v\n%s", err, b.String())
	}
	for k, want := range map[string]any{"tag": nil, "request_rate": "inf", "completed": 2.0, "mean_ttft_ms": 625.0, "max_concurrency": nil, "total_output_tokens_retokenized": nil} {
		if got, ok := v[k]; !ok || got != want {
			t.Errorf("%s = %v, want %v", k, got, want)
		}
	}
	if n := len(v["itls"].([]any)[0].([]any)); n != 3 {
		t.Errorf("%d per-token gaps, want 3", n)
	}
	keys := []string{`{"tag"`, `"backend"`, `"dataset_name"`, `"request_rate"`, `"server_info"`, `"duration"`, `"mean_e2e_latency_ms"`, `"p99_itl_ms"`, `"concurrency"`, `"accept_length"`, `"cache_report"`, `"larder"`, `"input_lens"`}
	at := 0
	for _, k := range keys {
		i := strings.Index(b.String()[at:], k)
		if i < 0 {
			t.Fatalf("%s is missing or out of order in\n%s", k, b.String())
		}
		at += i
	}
	b.Reset()
	if err := Line(&b, m, res.Outcomes, Run{BareInfinity: true, ReferenceNumbers: true}); err != nil || !strings.Contains(b.String(), `"request_rate": Infinity,`) {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestObjectives(t *testing.T) {
	if err := (Objective{"ttft", 200}).Validate(); err != nil {
		t.Error(err)
	}
	for _, o := range []Objective{{"itl", 1}, {"ttft", 0}, {"ttft", math.NaN()}, {"e2el", math.Inf(1)}} {
		if o.Validate() == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}
