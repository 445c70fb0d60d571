// The suite compares each operation of a pass with plain float64
// mathematics written here, independently of any device, and checks what package device promises beyond numbers: that
// a row depends on its sequence's tokens alone, that unused KV slots are neither read nor written, that copies keep
// their order. It refuses to know a device's kernels; those have tests of their own.
//
// Start at Run.
package cpu_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
)

// Config says what is under test.
type Config struct {
	Open  func(t testing.TB) device.Device // a fresh device; the suite closes it
	DType arch.DType                       // what the device computes in and keeps KV in
	Align int                              // the model's sizes are rounded up to multiples of it; 1 tries odd ones
}

// Run runs the whole suite.
func Run(t *testing.T, c Config) {
	t.Helper()
	c.Align = max(c.Align, 1)
	for _, test := range []struct {
		name string
		do   func(*testing.T, Config)
	}{
		{"upload", testUpload}, {"shapes", testShapes}, {"operations", testOperations}, {"router ties", testRouterTies},
		{"head", testHead}, {"independence", testIndependence}, {"dirty scratch", testDirtyScratch},
		{"empty batch", testEmptyBatch}, {"refused batches", testRefused}, {"copies", testCopies}, {"stream order", testStreamOrder},
		{"memory", testMemory},
	} {
		t.Run(test.name, func(t *testing.T) { test.do(t, c) })
	}
}

func (c Config) open(t testing.TB) device.Device {
	t.Helper()
	d := c.Open(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return d
}

// newRand is a random source whose seed a failure names.
func newRand(t testing.TB, seed uint64) *rand.Rand {
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, seed))
}

func (c Config) size(n int) int { return (n + c.Align - 1) / c.Align * c.Align }

// sparse is a small mixture of experts with awkward sizes; dense one without.
func (c Config) sparse() *arch.Config {
	cfg := c.dense()
	cfg.Architecture = arch.Qwen3MoE
	cfg.NumExperts, cfg.NumExpertsPerToken, cfg.MoEIntermediateSize = 7, 3, c.size(45)
	cfg.NormTopKProb, cfg.DecoderSparseStep = true, 1
	return cfg
}

func (c Config) dense() *arch.Config {
	return &arch.Config{
		Name: "devicetest", Architecture: arch.Qwen3, VocabSize: 131, HiddenSize: c.size(71), NumLayers: 2, NumHeads: 6, NumKVHeads: 2,
		HeadDim: c.size(40), IntermediateSize: c.size(99), RMSNormEps: 1e-6, RopeTheta: 1e4, MaxPositions: 512,
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testMemory(t *testing.T, c Config) {
	d := c.Open(t)
	if _, err := d.Alloc(1 << 55); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("2^55 bytes: %v, want ErrOutOfMemory", err)
	}
	b, err := d.Alloc(4096)
	check(t, err)
	if b.Size() != 4096 {
		t.Errorf("size %d, want 4096", b.Size())
	}
	check(t, b.Free())
	check(t, b.Free())
	check(t, d.Close())
	if _, err := d.Alloc(1); err == nil {
		t.Error("a closed device gave memory")
	}
}
