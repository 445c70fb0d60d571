package devicetest

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"larder/internal/arch"
	"larder/internal/device"
)

// configs are small models with every kind of remainder: head dims off the vector width, groups of 1, 2, 3 and 8
// queries, hidden sizes and vocabularies that fill no panel. Two layers each; with experts, the second is dense. A case
// takes all of them in random order, or one under the race detector.
func configs(rng *rand.Rand) []*arch.Config {
	moe := func(c arch.Config, experts, k, width int, renormalise bool) arch.Config {
		c.Architecture, c.NumExperts, c.NumExpertsPerToken, c.MoEIntermediateSize = arch.Qwen3MoE, experts, k, width
		c.NormTopKProb, c.DecoderSparseStep, c.MLPOnlyLayers = renormalise, 1, []int{1}
		return c
	}
	var out []*arch.Config
	for _, c := range []arch.Config{
		moe(arch.Config{HiddenSize: 64, NumHeads: 4, NumKVHeads: 2, HeadDim: 16, IntermediateSize: 96, VocabSize: 100}, 8, 2, 32, true),
		moe(arch.Config{HiddenSize: 40, NumHeads: 8, NumKVHeads: 1, HeadDim: 64, IntermediateSize: 50, VocabSize: 257}, 5, 3, 24, false),
		{Architecture: arch.Qwen3, HiddenSize: 33, NumHeads: 2, NumKVHeads: 2, HeadDim: 128, IntermediateSize: 37, VocabSize: 65},
		moe(arch.Config{HiddenSize: 96, NumHeads: 6, NumKVHeads: 2, HeadDim: 18, IntermediateSize: 31, VocabSize: 320}, 3, 3, 17, true),
	} {
		c.NumLayers, c.RMSNormEps, c.RopeTheta, c.MaxPositions, c.BOSTokenID = 2, 1e-6, 1e6, 600, -1
		c.Name = fmt.Sprintf("h%d-%dx%dx%d-e%d-v%d", c.HiddenSize, c.NumHeads, c.NumKVHeads, c.HeadDim, c.NumExperts, c.VocabSize)
		out = append(out, &c)
	}
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	if watched {
		return out[:1]
	}
	return out
}

// weight is a tensor and its values after rounding to bf16.
type weight struct {
	tensor device.Tensor
	values []float64
}

// newWeight makes values around offset, about scale away from it, in a random one of the forms that a tensor has.
func newWeight(rng *rand.Rand, name string, scale, offset float64, shape ...int) *weight {
	n := 1
	for _, s := range shape {
		n *= s
	}
	w := &weight{device.Tensor{Name: name, Shape: shape, DType: arch.BF16}, make([]float64, n)}
	if rng.IntN(4) == 0 {
		w.tensor.Dummy = device.Dummy{Seed: rng.Uint64(), Scale: float32(scale * math.Sqrt(3)), Offset: float32(offset)}
		bits := make([]uint16, n)
		w.tensor.Dummy.Values(bits, 0)
		for i, b := range bits {
			w.values[i] = fromBF16(b)
		}
		return w
	}
	w.tensor.DType, w.tensor.Data = []arch.DType{arch.BF16, arch.F16, arch.F32}[rng.IntN(3)], []byte{}
	for i := range w.values {
		w.values[i] = w.append(rng.NormFloat64()*scale + offset)
	}
	return w
}

// append writes one value in the tensor's type and returns it as bf16.
func (w *weight) append(v float64) float64 {
	t := &w.tensor
	switch t.DType {
	case arch.BF16:
		v = roundTo(v, 8)
		t.Data = binary.LittleEndian.AppendUint16(t.Data, uint16(math.Float32bits(float32(v))>>16))
	case arch.F16:
		var bits uint16
		bits, v = toHalf(v)
		t.Data = binary.LittleEndian.AppendUint16(t.Data, bits)
	case arch.F32:
		v = float64(float32(v))
		t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(float32(v)))
	}
	return roundTo(v, 8)
}

// roundTo rounds to so many significant bits, ties to even.
func roundTo(v float64, bits int) float64 {
	frac, exp := math.Frexp(v)
	return math.Ldexp(math.RoundToEven(math.Ldexp(frac, bits)), exp-bits)
}

func fromBF16(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }

// toHalf is the nearest IEEE 754 binary16, its bits and its value: below 2^-14 in steps of 2^-24.
func toHalf(v float64) (uint16, float64) {
	var sign uint16
	if math.Signbit(v) {
		sign = 1 << 15
	}
	if math.Abs(v) < 0x1p-14 {
		steps := math.RoundToEven(math.Abs(v) * 0x1p24)
		return sign | uint16(steps), math.Copysign(steps*0x1p-24, v)
	}
	v = roundTo(v, 11)
	frac, exp := math.Frexp(math.Abs(v)) // frac is in [1/2, 1)
	return sign | uint16(exp+14)<<10 | uint16(frac*2048-1024), v
}

// layer is one layer's weights.
type layer struct {
	norm, q, k, v, qNorm, kNorm, o *weight
	mlpNorm, router                *weight // router is nil in a dense layer
	gate, up, down                 []*weight
}

// model is random weights of a config. The head is not the embedding.
type model struct {
	cfg               *arch.Config
	embed, norm, head *weight
	layers            []*layer
}

func newModel(rng *rand.Rand, c *arch.Config) *model {
	m := &model{cfg: c,
		embed: newWeight(rng, "embed", 1, 0, c.VocabSize, c.HiddenSize),
		norm:  newWeight(rng, "norm", 0.2, 1, c.HiddenSize),
		head:  newMatrix(rng, "head", c.VocabSize, c.HiddenSize),
	}
	for l := range c.NumLayers {
		m.layers = append(m.layers, newLayer(rng, c, c.IsSparse(l)))
	}
	return m
}

// newMatrix is [n, k], scaled so that outputs are as large as inputs.
func newMatrix(rng *rand.Rand, name string, n, k int) *weight {
	return newWeight(rng, name, 1/math.Sqrt(float64(k)), 0, n, k)
}

func newLayer(rng *rand.Rand, c *arch.Config, sparse bool) *layer {
	h, q, kv := c.HiddenSize, c.NumHeads*c.HeadDim, c.NumKVHeads*c.HeadDim
	l := &layer{
		norm: newWeight(rng, "norm", 0.2, 1, h), mlpNorm: newWeight(rng, "mlp_norm", 0.2, 1, h),
		qNorm: newWeight(rng, "q_norm", 0.2, 1, c.HeadDim), kNorm: newWeight(rng, "k_norm", 0.2, 1, c.HeadDim),
		q: newMatrix(rng, "q", q, h), k: newMatrix(rng, "k", kv, h), v: newMatrix(rng, "v", kv, h), o: newMatrix(rng, "o", h, q),
	}
	experts, width := 1, c.IntermediateSize
	if sparse {
		experts, width = c.NumExperts, c.MoEIntermediateSize
		l.router = newMatrix(rng, "router", experts, h)
	}
	for range experts {
		l.gate = append(l.gate, newMatrix(rng, "gate", width, h))
		l.up = append(l.up, newMatrix(rng, "up", width, h))
		l.down = append(l.down, newMatrix(rng, "down", h, width))
	}
	return l
}

// uploaded is a model on a device.
type uploaded struct {
	embed     device.Matrix
	head      *device.HeadWeights
	attention []*device.AttentionWeights
	mlp       []*device.MLPWeights
}

// uploader keeps the first error.
type uploader struct {
	dev device.Weights
	err error
}

func (u *uploader) vector(w *weight) device.Vector {
	v, err := u.dev.Vector(w.tensor)
	u.fail(err)
	return v
}

func (u *uploader) matrix(parts ...*weight) device.Matrix {
	m, err := u.dev.Matrix(tensors(parts)...)
	u.fail(err)
	return m
}

func (u *uploader) fail(err error) {
	if u.err == nil {
		u.err = err
	}
}

func tensors(list []*weight) []device.Tensor {
	var out []device.Tensor
	for _, w := range list {
		out = append(out, w.tensor)
	}
	return out
}

func (m *model) upload(dev device.Weights) (*uploaded, error) {
	u := &uploader{dev: dev}
	out := &uploaded{embed: u.matrix(m.embed), head: &device.HeadWeights{Norm: u.vector(m.norm), Out: u.matrix(m.head)}}
	for _, l := range m.layers {
		out.attention = append(out.attention, &device.AttentionWeights{
			Norm: u.vector(l.norm), QKV: u.matrix(l.q, l.k, l.v), QNorm: u.vector(l.qNorm), KNorm: u.vector(l.kNorm), O: u.matrix(l.o),
		})
		experts, err := dev.Experts(tensors(l.gate), tensors(l.up), tensors(l.down))
		u.fail(err)
		w := &device.MLPWeights{Norm: u.vector(l.mlpNorm), Experts: experts}
		if l.router != nil {
			w.Router = u.matrix(l.router)
		}
		out.mlp = append(out.mlp, w)
	}
	return out, u.err
}
