package cost

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"larder/internal/arch"
	"larder/internal/kv"
)

func bursts(m Model, noise func() float64) []Burst {
	var out []Burst
	for batch, name := range map[float64]string{1: "1", 2: "2", 4: "4"} {
		for range 3 {
			for _, w := range [][2]float64{{0.34, 0}, {0.04, 0}, {0.04, 0.0044}} {
				b := Burst{Name: name, Requests: int(batch), TFLOP: w[0] * batch, GiB: w[1] * batch}
				b.Seconds = m.Predict(b) * noise()
				out = append(out, b)
			}
		}
	}
	return out
}

func TestFitFindsTheModel(t *testing.T) {
	want := Model{0.02, 0.004, 3.1, 0.5}
	got, err := Fit(bursts(want, func() float64 { return 1 }))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []float64{got.Fixed/want.Fixed - 1, got.PerRequest/want.PerRequest - 1, got.PerTFLOP/want.PerTFLOP - 1, got.PerGiB/want.PerGiB - 1} {
		if math.Abs(d) > 1e-6 {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	}
}

// Whatever the noise, no coefficient is negative and no subset of coefficients that is allowed fits better.
func TestFitIsNonNegative(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 200 {
		bs := bursts(Model{0.02 * r.Float64(), 0.001, 3, 0}, func() float64 { return 1 + 0.2*(r.Float64()-0.5) })
		m, err := Fit(bs)
		if err != nil {
			t.Fatal(err)
		}
		if m.Fixed < 0 || m.PerRequest < 0 || m.PerTFLOP < 0 || m.PerGiB < 0 {
			t.Fatalf("negative: %+v", m)
		}
		if e := squaredError(m, bs); e > squaredError(Model{m.Fixed, m.PerRequest, m.PerTFLOP * 1.001, m.PerGiB}, bs) || e > squaredError(Model{m.Fixed * 1.001, m.PerRequest, m.PerTFLOP, m.PerGiB}, bs) {
			t.Fatalf("a neighbour of %+v fits better", m)
		}
	}
}

func TestLeaveOut(t *testing.T) {
	exact := LeaveOut(bursts(Model{0.02, 0.004, 3.1, 0.5}, func() float64 { return 1 }))
	mean, largest, ok := Errors(exact)
	if len(exact) != 27 || !ok || mean > 1e-6 || largest > 1e-6 {
		t.Errorf("%d predictions, mean error %v, largest %v", len(exact), mean, largest)
	}
	// One batch is off by half: predicting it from the others must show that.
	bs := bursts(Model{0.02, 0.004, 3.1, 0.5}, func() float64 { return 1 })
	for i := range bs {
		if bs[i].Name == "4" {
			bs[i].Seconds *= 2
		}
	}
	for _, p := range LeaveOut(bs) {
		if p.Burst.Name == "4" && math.Abs(p.Error()+0.5) > 1e-6 {
			t.Errorf("error %v, want -0.5", p.Error())
		}
	}
	if _, _, ok := Errors(nil); ok {
		t.Error("no predictions have an error")
	}
}

func TestFitRefuses(t *testing.T) {
	same := []Burst{{Name: "a", TFLOP: 1, Seconds: 1}, {Name: "a", TFLOP: 1, Seconds: 1}, {Name: "a", TFLOP: 1, Seconds: 1}}
	if _, err := Fit(same); !errors.Is(err, ErrTooFew) {
		t.Errorf("same work: %v", err)
	}
	if _, err := Fit(nil); !errors.Is(err, ErrTooFew) {
		t.Errorf("nothing: %v", err)
	}
	for _, bad := range []Burst{{TFLOP: 1}, {TFLOP: math.NaN(), Seconds: 1}, {TFLOP: 1, GiB: -1, Seconds: 1}, {TFLOP: 1, Seconds: math.Inf(1)}} {
		if _, err := Fit(append([]Burst{{Name: "a", TFLOP: 1, Seconds: 1}, {Name: "a", TFLOP: 2, Seconds: 1}}, bad)); err == nil || errors.Is(err, ErrTooFew) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// The published figures: b = 96 KiB/token and R = 102.7k tok/s need 10.1 GB/s.
func TestBreakEven(t *testing.T) {
	layout := kv.Layout{Layers: 48, KVHeads: 4, HeadDim: 128, BlockTokens: 64, DType: arch.BF16}
	r := Rates{Layout: layout, Recompute: 102723, Anchor: 9216, Load: 51.4 * (1 << 30), Fixed: 0.005}
	if b := r.NeedBandwidth() / 1e9; math.Abs(b-10.098) > 0.001 {
		t.Errorf("B* = %v GB/s", b)
	}
	if m := r.Margin(); math.Abs(m-5.465) > 0.01 {
		t.Errorf("margin %v", m)
	}
	n, ok := r.MinPrefix(1 << 20)
	exact := 0.005 / (1/r.Recompute - float64(layout.TokenBytes())/r.Load)
	if want := int(math.Ceil(exact/64)) * 64; !ok || n != want {
		t.Errorf("n* = %d %v, want %d (%.1f)", n, ok, want, exact)
	}
	r.Load = r.NeedBandwidth() * 0.9
	if n, ok := r.MinPrefix(1 << 20); ok {
		t.Errorf("a slow link has a break-even at %d", n)
	}
	r.Work = func(n int) float64 { return float64(n) + float64(n)*float64(n)/20000 } // attention: long prefixes are worth loading
	if n, ok := r.MinPrefix(1 << 20); !ok || r.LoadSeconds(n) >= r.RecomputeSeconds(n) || r.LoadSeconds(n-64) < r.RecomputeSeconds(n-64) {
		t.Errorf("n* = %d %v is not the first", n, ok)
	}
	if r.LoadSeconds(0) != 0 || math.Abs(r.RecomputeSeconds(9216)-9216/102723.0) > 1e-12 {
		t.Error("the ends of the curve are off")
	}
}
