package cuda_test

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu"
	"larder/internal/device/cuda"
	"larder/internal/device/devicetest"
	"larder/internal/kv"
	"larder/internal/model"
	"larder/internal/sample"
)

const (
	blockTokens = 64
	poolBlocks  = 256
)

// whole is a model on one device.
type whole struct {
	dev   device.Device
	model *model.Model
}

func newWhole(t *testing.T, dev device.Device, cfg *arch.Config) *whole {
	t.Helper()
	w, err := model.Load(t.Context(), dev, cfg, model.Dummy(cfg, 11), nil)
	if err != nil {
		t.Fatal(err)
	}
	layout := kv.LayoutOf(cfg, blockTokens, arch.BF16)
	pool, err := dev.Alloc(poolBlocks * layout.BlockBytes())
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(dev, w, device.ComputeSpec{Layout: layout, KV: pool, MaxTokens: 4096, MaxSeqs: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return &whole{dev, m}
}

// forward runs one pass over all sequences and copies their logits.
func (w *whole) forward(t *testing.T, b *device.Batch) (tokens []int32, logits [][]float32) {
	t.Helper()
	got, err := w.model.Forward(b)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		logits = append(logits, slices.Clone(w.model.Logits(i)))
	}
	return slices.Clone(got), logits
}

// TestAgainstCPU decodes greedily on the GPU and gives the CPU device the same tokens: the logits of every step must be
// near, and the tokens the same but for near ties.
func TestAgainstCPU(t *testing.T) {
	for _, c := range []struct {
		name                  string
		layers, prompts, most int
		visits                int // experts of a token; 0: as in the model
	}{{"tiny", 2, 48, 300, 0}, {"tiny", 2, 48, 300, 8}, {"qwen3-30b-a3b", 1, 12, 250, 0}, {"qwen3-0.6b", 2, 12, 250, 0}} {
		t.Run(c.name, func(t *testing.T) {
			cfg, _ := arch.Builtin(c.name)
			cfg.NumLayers = c.layers
			if c.visits > 0 {
				cfg.NumExpertsPerToken = c.visits
			}
			gpu := openGPU(t)
			host, err := cpu.New(cpu.Config{})
			if err != nil {
				t.Fatal(err)
			}
			seed := devicetest.Seed()
			t.Logf("seed %d (LARDER_SEED=%d repeats it)", seed, seed)
			compareModels(t, newWhole(t, gpu, cfg), newWhole(t, host, cfg), cfg, devicetest.Rand(seed, c.name), c.prompts, c.most)
		})
	}
}

// TestSameBits computes prompts whole, in random pieces in company, and but for the last token, which makes tiles of all
// kinds. The logits must be the same, bit for bit.
func TestSameBits(t *testing.T) {
	for _, name := range []string{"tiny", "qwen3-30b-a3b", "qwen3-0.6b"} {
		t.Run(name, func(t *testing.T) {
			cfg, _ := arch.Builtin(name)
			cfg.NumLayers = 1
			w := newWhole(t, openGPU(t), cfg)
			seed := devicetest.Seed()
			t.Logf("seed %d (LARDER_SEED=%d repeats it)", seed, seed)
			rng := devicetest.Rand(seed, name)
			prompts := make([][]int32, 6)
			for i, n := range []int{1, 65, 200 + rng.IntN(300), 700, 64, 17} {
				for range n {
					prompts[i] = append(prompts[i], int32(rng.IntN(cfg.VocabSize)))
				}
			}
			want := w.inPieces(t, prompts, func(left int) int { return left })
			for what, piece := range map[string]func(left int) int{
				"all but the last":  func(left int) int { return max(left-1, 1) },
				"random pieces":     func(left int) int { return 1 + rng.IntN(left) },
				"pieces of 1 and 2": func(left int) int { return min(left, 1+rng.IntN(2)+left/100*90) },
			} {
				got := w.inPieces(t, prompts, piece)
				for i := range prompts {
					for j := range got[i] {
						if math.Float32bits(got[i][j]) != math.Float32bits(want[i][j]) {
							t.Fatalf("%s: prompt of %d tokens: logit %d is %v, whole %v", what, len(prompts[i]), j, got[i][j], want[i][j])
						}
					}
				}
			}
		})
	}
}

// inPieces computes prompts together, in pieces, and gives the logits behind each.
func (w *whole) inPieces(t *testing.T, prompts [][]int32, piece func(left int) int) [][]float32 {
	t.Helper()
	logits, done := make([][]float32, len(prompts)), make([]int, len(prompts))
	for {
		b := &device.Batch{}
		var last []int
		for i, p := range prompts {
			if done[i] == len(p) {
				continue
			}
			n := piece(len(p) - done[i])
			s := device.Seq{Context: done[i], Tokens: n}
			for j := range (done[i] + n + blockTokens - 1) / blockTokens {
				s.Blocks = append(s.Blocks, kv.BlockID(j*len(prompts)+i))
			}
			b.IDs = append(b.IDs, p[done[i]:done[i]+n]...)
			if done[i] += n; done[i] == len(p) {
				s.Draw = &sample.Draw{Params: sample.Params{TopP: 1}}
				last = append(last, i)
			}
			b.Seqs = append(b.Seqs, s)
		}
		if len(b.Seqs) == 0 {
			return logits
		}
		_, got := w.forward(t, b)
		for j, i := range last {
			logits[i] = got[j]
		}
	}
}

func openGPU(t *testing.T) device.Device {
	t.Helper()
	dev, err := cuda.New(cuda.Config{CacheDir: filepath.Join(os.TempDir(), "larder-kernels")})
	if err != nil && os.Getenv("LARDER_REQUIRE_CUDA") == "1" {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip("no usable GPU: ", err)
	}
	return dev
}

// decodeSteps is how many tokens follow each prompt; maxOff is the greatest root mean square error of logits in their
// standard deviations. Where a token has a choice of experts, two may be so near in probability that the devices'
// roundings choose otherwise, and then the logits are others: that may happen to one step in mostSwaps.
const (
	decodeSteps = 6
	maxOff      = 0.05
	mostSwaps   = 50
)

func compareModels(t *testing.T, gpu, host *whole, cfg *arch.Config, rng *rand.Rand, prompts, most int) {
	b := &device.Batch{}
	free := rng.Perm(poolBlocks)
	for range prompts {
		n := 1 + rng.IntN(most)
		s := device.Seq{Tokens: n, Draw: &sample.Draw{Params: sample.Params{TopP: 1}}}
		for range (n + decodeSteps + blockTokens - 1) / blockTokens {
			s.Blocks = append(s.Blocks, kv.BlockID(free[0]))
			free = free[1:]
		}
		for range n {
			b.IDs = append(b.IDs, int32(rng.IntN(cfg.VocabSize)))
		}
		if len(free) < 8 || len(b.IDs) > 4096-most {
			break
		}
		b.Seqs = append(b.Seqs, s)
	}
	b.IDs = b.IDs[:rows(b)]
	worst, other, all, swaps := 0.0, 0, 0, 0
	routed := cfg.NumExperts > cfg.NumExpertsPerToken
	for step := range decodeSteps {
		tokens, got := gpu.forward(t, b)
		wantTokens, want := host.forward(t, b)
		for i := range tokens {
			all++
			off := rms(got[i], want[i]) / deviation(want[i])
			if off > maxOff && routed {
				swaps++
				continue
			}
			worst = max(worst, off)
			gap := float64(want[i][wantTokens[i]]-want[i][tokens[i]]) / deviation(want[i])
			if tokens[i] != wantTokens[i] {
				other++
			}
			if !(off <= maxOff) || gap > 4*maxOff {
				t.Errorf("step %d, sequence %d: logits are off by %.3g deviations; token %d, want %d, which is %.3g above", step, i, off, tokens[i], wantTokens[i], gap)
			}
		}
		b.IDs = tokens
		for i := range b.Seqs {
			s := &b.Seqs[i]
			s.Context, s.Tokens = s.Context+s.Tokens, 1
		}
	}
	if swaps > all/mostSwaps+1 {
		t.Errorf("%d of %d steps have other logits, which near ties of experts do not explain", swaps, all)
	}
	t.Logf("%d tokens, %d other than the CPU's (near ties); worst logits off by %.2g of their deviation but for %d steps of other experts", all, other, worst, swaps)
}

func rows(b *device.Batch) int {
	n := 0
	for i := range b.Seqs {
		n += b.Seqs[i].Tokens
	}
	return n
}

func rms(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		d := float64(a[i]) - float64(b[i])
		sum += d * d
	}
	return math.Sqrt(sum / float64(len(a)))
}

func deviation(x []float32) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	n := float64(len(x))
	return math.Sqrt(squares/n - sum*sum/(n*n))
}
