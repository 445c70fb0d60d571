package arch

import (
	"math"
	"testing"
)

// oneLayer is the case that the figures below were worked out for by hand.
func oneLayer(t *testing.T) *Config {
	c, _ := Builtin("qwen3-30b-a3b")
	c, err := c.WithLayers(1)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func near(t *testing.T, what string, got, want, relative float64) {
	t.Helper()
	if math.Abs(got-want) > relative*want {
		t.Errorf("%s = %.6g, want %.6g", what, got, want)
	}
}

func TestPrefillFLOPs(t *testing.T) {
	c := oneLayer(t)
	near(t, "matrix products per token", c.layerFLOPs(0), 113.77e6, 1e-4)
	near(t, "head", c.HeadFLOPs(), 0.62e9, 5e-3)
	near(t, "full prompt of 10,778", c.PrefillFLOPs(10778, 0)-c.HeadFLOPs(), 2.178e12, 3e-4)
	near(t, "1,078 after 9,700", c.PrefillFLOPs(1078, 9700)-c.HeadFLOPs(), 0.304e12, 2e-3)
	near(t, "one token", c.PrefillFLOPs(1, 99), 113.77e6+16384*100+0.6223e9, 1e-4)
}

// Chunking a prompt does not change its attention or its matrix products, only the number of head rows.
func TestPrefillFLOPsAddUp(t *testing.T) {
	c := oneLayer(t)
	parts := c.PrefillFLOPs(300, 0) + c.PrefillFLOPs(700, 300) + c.PrefillFLOPs(24, 1000)
	near(t, "three chunks", parts-3*c.HeadFLOPs(), c.PrefillFLOPs(1024, 0)-c.HeadFLOPs(), 1e-12)
}

func TestDecodeBytes(t *testing.T) {
	c := oneLayer(t)
	for _, tt := range []struct {
		batch   int
		experts float64
		bytes   float64
	}{{1, 8, 0.758e9}, {8, 51.6, 1.324e9}, {16, 82.4, 1.792e9}, {32, 111.8, 2.422e9}, {64, 125.9, 3.262e9}} {
		near(t, "experts hit", c.expectedExperts(tt.batch), tt.experts, 1e-3)
		near(t, "bytes", c.DecodeBytes(tt.batch, 10778), tt.bytes, 5e-4)
	}
}

func TestWeightBytes(t *testing.T) {
	c := oneLayer(t)
	// Attention and router 38.27 MB, experts 1,207.96 MB, embedding and head 622.3 MB each, norms 12.8 kB.
	near(t, "one layer", float64(c.WeightBytes()), 38.273e6+1207.960e6+2*622.330e6+12.8e3, 1e-6)
	whole, _ := Builtin("qwen3-30b-a3b")
	near(t, "30.5 billion parameters", float64(whole.WeightBytes()), 2*30.532e9, 1e-4)
	small, _ := Builtin("qwen3-0.6b")
	near(t, "0.596 billion parameters", float64(small.WeightBytes()), 2*0.59605e9, 1e-4)
}

// A dense layer reads and computes its one MLP, whatever the batch.
func TestDenseLayers(t *testing.T) {
	c := oneLayer(t)
	c.MLPOnlyLayers = []int{0}
	near(t, "dense layer", c.layerFLOPs(0), 2*2048*(5120+4096+3*6144), 1e-12)
	grow := c.DecodeBytes(64, 1000) - c.DecodeBytes(1, 1000)
	near(t, "only KV grows with the batch", grow, 63*1000*2048, 1e-12)
}
