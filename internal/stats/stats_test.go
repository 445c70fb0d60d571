package stats

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func near(t *testing.T, what string, got, want, rel float64) {
	t.Helper()
	if math.Abs(got-want) > rel*math.Max(1, math.Abs(want)) {
		t.Errorf("%s = %.15g, want %.15g", what, got, want)
	}
}

// The expected values are numpy's (percentile, std, median) for the same input.
func TestLikeNumpy(t *testing.T) {
	xs := []float64{0.3, 9.25, 4.5, 4.5, 1.125, 7.75, 2.0}
	s := slices.Sorted(slices.Values(xs))
	for _, c := range []struct{ p, want float64 }{{0, 0.3}, {25, 1.5625}, {50, 4.5}, {90, 8.35}, {95, 8.8}, {99, 9.16}, {100, 9.25}} {
		near(t, "percentile", Percentile(s, c.p).Or(-1), c.want, 1e-14)
	}
	near(t, "mean", Mean(xs).Or(-1), 4.203571428571428, 1e-14)
	near(t, "std", StdPopulation(xs).Or(-1), 3.1119707975651, 1e-14)
	near(t, "median", Median(xs).Or(-1), 4.5, 0)
	near(t, "one sample p99", Percentile([]float64{7}, 99).Or(-1), 7, 0)
}

func TestStudentQuantiles(t *testing.T) {
	for _, c := range []struct{ p, df, want float64 }{
		{0.975, 1, 12.706204736432095}, {0.975, 2, 4.302652729696142}, {0.975, 4, 2.7764451051977987},
		{0.975, 10, 2.2281388519649385}, {0.975, 30, 2.0422724563012373}, {0.975, 1000, 1.9623390808264078},
		{0.95, 5, 2.015048373333024}, {0.025, 10, -2.2281388519649385}, {0.5, 3, 0},
	} {
		near(t, "t quantile", TQuantile(c.p, c.df), c.want, 1e-9)
	}
	for _, bad := range [][2]float64{{0, 3}, {1, 3}, {0.9, 0}, {math.NaN(), 3}, {0.9, math.NaN()}} {
		if got := TQuantile(bad[0], bad[1]); got != 0 {
			t.Errorf("TQuantile%v = %v, want 0", bad, got)
		}
	}
}

func TestPairedDiff(t *testing.T) {
	i := PairedDiff([]float64{5, 7, 9}, []float64{4, 5, 6})
	near(t, "mean", i.Mean, 2, 1e-15)
	near(t, "lo", i.Lo, -0.4841377118, 1e-9)
	near(t, "hi", i.Hi, 4.4841377118, 1e-9)
	if !i.OK() || i.N != 3 || i.ExcludesZero() {
		t.Errorf("interval %+v", i)
	}
	if same := PairedDiff([]float64{3, 4}, []float64{1, 2}); !same.ExcludesZero() || same.Lo != 2 || same.Hi != 2 {
		t.Errorf("equal differences: %+v", same)
	}
}

func TestNotEnough(t *testing.T) {
	for name, i := range map[string]Interval{
		"none":     PairedDiff(nil, nil),
		"one":      PairedDiff([]float64{3}, []float64{1}),
		"unequal":  PairedDiff([]float64{3, 4}, []float64{1}),
		"nan":      PairedDiff([]float64{3, math.NaN()}, []float64{1, 2}),
		"negative": PairedRatio([]float64{3, 4}, []float64{1, -1}),
	} {
		b, err := json.Marshal(i)
		if err != nil || i.OK() || i.Reason == "" || !strings.Contains(string(b), `"lo":null`) {
			t.Errorf("%s: %+v marshals to %s, %v", name, i, b, err)
		}
	}
	if i := PairedDiff([]float64{3}, []float64{1}); i.Mean != 2 || i.N != 1 {
		t.Errorf("one pair keeps its mean: %+v", i)
	}
	s := Summarize("ms", nil, "one output token")
	b, err := json.Marshal(s)
	if err != nil || s.P99.Why() != "one output token" || !strings.Contains(string(b), `"p99":null`) || !strings.Contains(string(b), "one output token") {
		t.Errorf("empty summary: %s, %v", b, err)
	}
}

func TestPairedRatio(t *testing.T) {
	r := PairedRatio([]float64{2, 8}, []float64{1, 2})
	near(t, "ratio", r.Mean, math.Sqrt(8), 1e-14)
	if !r.OK() || r.Lo <= 0 || r.Lo >= r.Mean || r.Hi <= r.Mean {
		t.Errorf("ratio interval %+v", r)
	}
}

func TestJSONRoundTrip(t *testing.T) {
	want := PairedDiff([]float64{5, 7, 9}, []float64{4, 5, 6})
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Interval
	if err := json.Unmarshal(b, &got); err != nil || got != want {
		t.Errorf("interval came back as %+v, %v", got, err)
	}
	var v Value
	if err := json.Unmarshal([]byte("null"), &v); err != nil || v.ok {
		t.Errorf("null came back as %+v, %v", v, err)
	}
	if err := json.Unmarshal([]byte("2.5"), &v); err != nil || v.Or(0) != 2.5 {
		t.Errorf("2.5 came back as %+v, %v", v, err)
	}
}

// Whatever comes in, nothing that goes out is NaN or infinite, and order statistics are ordered.
func TestNeverNaN(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	odd := []float64{0, -1, math.MaxFloat64, -math.MaxFloat64, math.Inf(1), math.NaN(), 1e-320}
	for range 300 {
		xs := make([]float64, r.IntN(6))
		for i := range xs {
			xs[i] = odd[r.IntN(len(odd))]
		}
		s := Summarize("", xs, "")
		for _, v := range []Value{s.Mean, s.Std, s.Min, s.P50, s.P99, s.Max} {
			if x, ok := v.Get(); ok && (math.IsNaN(x) || math.IsInf(x, 0)) {
				t.Fatalf("%v gives %v", xs, x)
			}
		}
		if _, err := json.Marshal(s); err != nil {
			t.Fatalf("%v: %v", xs, err)
		}
		if _, err := json.Marshal(MeanInterval(xs)); err != nil {
			t.Fatalf("%v: %v", xs, err)
		}
	}
}
