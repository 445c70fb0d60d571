package kvbench

import (
	"flag"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/kv"
	"larder/internal/kv/xfer"
)

var update = flag.Bool("update", false, "rewrite testdata")

// copied adds copies that begin and end at the given milliseconds.
func copied(bytes int64, times ...float64) (s span) {
	at := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	for i := 0; i < len(times); i += 2 {
		s.add(&xfer.CopyRecord{Start: at(times[i]), End: at(times[i+1]), Bytes: bytes, Pieces: 1})
	}
	return s
}

// twoBatches are two requests that overlap, and then one alone.
func twoBatches() []batch {
	const mib = 1 << 20
	return []batch{
		{wall: 60 * time.Millisecond, requests: []request{
			// loads from 10 to 30, of which 15 in copies; stores from 12 to 40, of which 20
			{load: copied(64*mib, 10, 20, 25, 30), store: copied(32*mib, 12, 22, 30, 40), submit: time.Millisecond},
			// the later copy is reported first
			{load: copied(128*mib, 40, 50, 20, 30), store: copied(64*mib, 20, 40), submit: 3 * time.Millisecond},
		}},
		{wall: 20 * time.Millisecond, requests: []request{{load: copied(256*mib, 100, 110), store: copied(256*mib, 105, 115), submit: 2 * time.Millisecond}}},
	}
}

// TestDefinitions computes every figure by hand: span = first start to last end of one direction; active_sum = sum of the
// single copies; bw = bytes / span; duplex_bw = both directions' bytes / e2e; makespan = first start to last end over the
// batch; batch_duplex_bw = all bytes / makespan.
func TestDefinitions(t *testing.T) {
	p := Phase{Metrics: metrics(Duplex, twoBatches(), 40*gib)}
	for _, c := range []struct {
		name string
		want []float64
	}{
		{"load_span_ms", []float64{20, 30, 10}},
		{"store_span_ms", []float64{28, 20, 10}},
		{"e2e_ms", []float64{30, 30, 15}},
		{"load_active_sum_ms", []float64{15, 20, 10}},
		{"store_active_sum_ms", []float64{20, 20, 10}},
		{"load_bw_gib_s", []float64{0.125 / 0.020, 0.25 / 0.030, 0.25 / 0.010}},
		{"store_bw_gib_s", []float64{0.0625 / 0.028, 0.0625 / 0.020, 0.25 / 0.010}},
		{"duplex_bw_gib_s", []float64{0.1875 / 0.030, 0.3125 / 0.030, 0.5 / 0.015}},
		{"batch_makespan_ms", []float64{40, 15}},
		{"batch_duplex_bw_gib_s", []float64{0.5 / 0.040, 0.5 / 0.015}},
		{"in_flight", []float64{60.0 / 40, 1}},
		{"submit_ms", []float64{1, 3, 2}},
		{"batch_wall_ms", []float64{60, 20}},
	} {
		got := mustFind(t, &p, c.name).Samples
		if len(got) != len(c.want) {
			t.Fatalf("%s has samples %v, want %v", c.name, got, c.want)
		}
		for i := range got {
			if math.Abs(got[i]-c.want[i]) > 1e-9*c.want[i] {
				t.Errorf("%s of %d is %g, want %g", c.name, i, got[i], c.want[i])
			}
		}
	}
	rate := mustFind(t, &p, "batch_duplex_bw_gib_s")
	if want := (0.5/0.040 + 0.5/0.015) / 2 / 40; math.Abs(rate.Share-want) > 1e-12 {
		t.Errorf("share of the ceiling is %g, want %g", rate.Share, want)
	}
}

// TestOneDirection: a figure that needs the other direction does not exist, and e2e is the direction's span.
func TestOneDirection(t *testing.T) {
	b := twoBatches()
	for i := range b {
		for j := range b[i].requests {
			b[i].requests[j].load = span{}
		}
	}
	p := Phase{Metrics: metrics(Store, b, 0)}
	var names []string
	for _, m := range p.Metrics {
		names = append(names, m.Name)
		if m.Share != 0 {
			t.Errorf("%s has a share of a ceiling that was not measured", m.Name)
		}
	}
	want := "store_span_ms e2e_ms store_active_sum_ms store_bw_gib_s batch_makespan_ms batch_store_bw_gib_s in_flight submit_ms batch_wall_ms"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("metrics are %s", got)
	}
	if e := mustFind(t, &p, "e2e_ms").Samples; e[0] != 28 || e[1] != 20 || e[2] != 10 {
		t.Errorf("e2e %v", e)
	}
	if m := mustFind(t, &p, makespanName).Samples; m[0] != 28 || m[1] != 10 {
		t.Errorf("makespan %v", m)
	}
}

// TestDocumentsLines: names, order and digits are the document's.
func TestDocumentsLines(t *testing.T) {
	document := []string{
		"load_span_ms mean=34.446 p50=34.446 p99=34.446",
		"store_span_ms mean=34.375 p50=34.375 p99=34.375",
		"e2e_ms mean=35.254 p50=35.254 p99=35.254",
		"load_active_sum_ms mean=22.532 p50=22.532 p99=22.532",
		"store_active_sum_ms mean=21.729 p50=21.729 p99=21.729",
		"load_bw_gib_s mean=6.18 p50=6.18 p99=6.18",
		"store_bw_gib_s mean=6.19 p50=6.19 p99=6.19",
		"duplex_bw_gib_s mean=12.07 p50=12.07 p99=12.07",
		"batch_makespan_ms mean=233.095 p50=233.095 p99=233.095",
		"batch_duplex_bw_gib_s mean=115.83 p50=115.83 p99=115.83",
	}
	values := []float64{34.446, 34.375, 35.254, 22.532, 21.729, 6.18, 6.19, 12.07, 233.095, 115.83}
	for i, m := range metrics(Duplex, twoBatches(), 0)[:10] {
		m.Samples = []float64{values[i]}
		if got, _, _ := strings.Cut(m.line(), "  "); got != document[i] {
			t.Errorf("line %d is %q, the document's %q", i, got, document[i])
		}
	}
	m := Metric{Name: "x", Unit: "ms", Samples: []float64{1, 2, 3, 4}} // percentiles are by linear interpolation
	if got := m.line(); got != "x mean=2.500 p50=2.500 p99=3.970  n=4" {
		t.Errorf("line is %q", got)
	}
	m.Samples = nil
	if got := m.line(); got != "x mean=- p50=- p99=-  n=0" {
		t.Errorf("without samples the line is %q", got)
	}
}

// TestText compares the whole output with testdata/duplex.txt.
func TestText(t *testing.T) {
	l := kv.Layout{Layers: 1, KVHeads: 4, HeadDim: 128, BlockTokens: 64, DType: arch.BF16}
	res := Result{
		Config: Config{Layout: l, Tokens: 9216, Requests: 2, InFlight: 8, Batches: 2, Scatter: true},
		Phases: []Phase{{Direction: Duplex, Metrics: metrics(Duplex, twoBatches(), 40*gib), Bytes: gib, Pieces: 9, HandOvers: 6, Methods: map[string]int{"batch": 4, "run": 2}}},
		Checks: []Check{{"duplex: bytes moved = bytes planned", true, "1 bytes counted, 1 planned"}, {"duplex: the rest", false, "request 1, block 2 differs"}},
	}
	var out strings.Builder
	if err := res.Text(&out); err != nil {
		t.Fatal(err)
	}
	const file = "testdata/duplex.txt"
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("the text is now:\n%s", out.String())
	}
}
