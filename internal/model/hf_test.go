package model

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu"
	"larder/internal/safetensors"
)

// The folders of testdata/hf hold what Hugging Face transformers computes in float32 on the same bf16 weights;
// scripts/make_hf_fixtures.py makes them and says how prompts were chosen.

// precision is a way to compute and the largest error of a logit that its roundings explain, relative to the spread
// (standard deviation) of the row's logits.
type precision struct {
	name     string
	open     func(t testing.TB) device.Device
	kv       arch.DType
	relative float64
}

// precisions derives the bounds. A sum of n products that are each off by a relative u, independently, is off by u of
// its own size, whatever n; each of the layers' operations adds one such error to the hidden state, and a matrix
// behind a norm neither grows nor shrinks it. With r rounded operations in a row the error is near u√r, and the worst
// of a few thousand logits is 4 standard deviations away. The models have up to 4 layers of 8 operations: r = 32.
//
// plain: only the reference rounds, u = 2⁻²⁴ times √128 for its sums: 4·√32·11·2⁻²⁴ = 1.5e-5.
//
// cpu-f32: the device rounds like the reference, and its exponential is good to a few 2⁻²⁴ of scores up to 10: ten
// times that, 1.5e-4.
//
// cpu-bf16: activations are rounded to 8 bits before each product, and K, V and probabilities with them: u = 2⁻⁹/√3 =
// 1.1e-3 (weights are exact): 4·√32·1.1e-3 = 2.5e-2. What q and k lose moves a score by √2·u of itself, 5e-3 for the
// scores of 3 that count most, which a softmax passes on as a relative error in each layer: 4·√4·5e-3 = 4e-2. Both
// together: 5e-2. (transformers itself, run in bf16, is off by up to 6e-2 here: it rounds the hidden state as well.)
func precisions() []precision {
	return []precision{
		{"plain", func(testing.TB) device.Device { return &plainDevice{} }, arch.F32, 1.5e-5},
		{"cpu-f32", func(t testing.TB) device.Device { return openCPU(t, arch.F32) }, arch.F32, 1.5e-4},
		cpuBF16(),
	}
}

// cpuBF16 is the quickest, and what people run.
func cpuBF16() precision {
	return precision{"cpu-bf16", func(t testing.TB) device.Device { return openCPU(t, arch.BF16) }, arch.BF16, 5e-2}
}

func openCPU(t testing.TB, compute arch.DType) device.Device {
	t.Helper()
	dev, err := cpu.New(cpu.Config{DType: compute})
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// goldenCase is one prompt and what the reference says about it.
type goldenCase struct {
	Prompt    []int32 `json:"prompt"`
	Positions []int   `json:"positions"` // prompt positions whose logits are in Rows
	Greedy    []int32 `json:"greedy"`

	rows   [][]float32 // by Positions
	greedy [][]float32 // logits that each greedy token was chosen from
}

// fixture is one folder of testdata/hf.
type fixture struct {
	name  string
	dir   string
	cfg   *arch.Config
	cases []goldenCase
}

func fixtures(t *testing.T) []fixture {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join("testdata", "hf", "*"))
	if err != nil || len(dirs) < 5 {
		t.Fatalf("%d fixtures, %v", len(dirs), err)
	}
	var all []fixture
	for _, dir := range dirs {
		f := fixture{name: filepath.Base(dir), dir: dir}
		if f.cfg, err = arch.Load(dir); err != nil {
			t.Fatal(err)
		}
		f.readGolden(t)
		all = append(all, f)
	}
	return all
}

func (f *fixture) readGolden(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	golden := struct {
		Cases *[]goldenCase `json:"cases"`
	}{&f.cases}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	file, err := safetensors.OpenFile(filepath.Join(f.dir, "golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for i := range f.cases {
		c := &f.cases[i]
		c.rows = floatRows(t, file, fmt.Sprintf("prompt.%d", i), len(c.Positions))
		c.greedy = floatRows(t, file, fmt.Sprintf("greedy.%d", i), len(c.Greedy))
	}
}

func (f *fixture) open(t *testing.T) Source {
	t.Helper()
	src, err := OpenCheckpoint(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}

func floatRows(t *testing.T, file *safetensors.File, name string, rows int) [][]float32 {
	t.Helper()
	x, err := file.Tensor(name)
	if err != nil {
		t.Fatal(err)
	}
	if x.DType != arch.F32 || len(x.Shape) != 2 || x.Shape[0] != rows {
		t.Fatalf("%s: %v of %v, want %d rows", name, x.DType, x.Shape, rows)
	}
	all := make([][]float32, rows)
	for r := range all {
		all[r] = make([]float32, x.Shape[1])
		for i := range all[r] {
			all[r][i] = math.Float32frombits(binary.LittleEndian.Uint32(x.Data[4*(r*x.Shape[1]+i):]))
		}
	}
	return all
}

// logitError is the largest difference in units of the reference row's standard deviation.
func logitError(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if !(d <= worst) { // a NaN is the worst
			worst = d
		}
	}
	return worst / deviation(want)
}

func argmax(x []float32) int32 {
	best := 0
	for i := range x {
		if x[i] > x[best] {
			best = i
		}
	}
	return int32(best)
}

// TestHuggingFaceLogits feeds each prompt whole, up to each position that has logits.
func TestHuggingFaceLogits(t *testing.T) {
	forEachFixture(t, func(t *testing.T, f fixture, p precision) {
		r := newRig(t, f.cfg, f.open(t), p)
		worst := 0.0
		for _, c := range f.cases {
			for i, pos := range c.Positions {
				r.reset()
				worst = max(worst, r.check(t, c.Prompt[:pos+1], c.rows[i], "whole"))
			}
		}
		t.Logf("worst error %.2g of a standard deviation, %.2g allowed", worst, p.relative)
	})
}

// TestHuggingFaceGreedy feeds each prompt in chunks of several sizes, then decodes one token at a time along the
// reference's continuation.
func TestHuggingFaceGreedy(t *testing.T) {
	forEachFixture(t, func(t *testing.T, f fixture, p precision) {
		r := newRig(t, f.cfg, f.open(t), p)
		for _, c := range f.cases {
			for _, chunk := range []int{1, 3, 16, len(c.Prompt)} {
				r.reset()
				prompt := c.Prompt
				for len(prompt) > chunk {
					r.feed(t, prompt[:chunk])
					prompt = prompt[chunk:]
				}
				for i, token := range c.Greedy {
					r.check(t, prompt, c.greedy[i], fmt.Sprintf("chunks of %d, token %d", chunk, i))
					prompt = []int32{token}
				}
			}
		}
	})
}

func forEachFixture(t *testing.T, test func(*testing.T, fixture, precision)) {
	for _, f := range fixtures(t) {
		for _, p := range precisions() {
			t.Run(f.name+"/"+p.name, func(t *testing.T) { test(t, f, p) })
		}
	}
}
