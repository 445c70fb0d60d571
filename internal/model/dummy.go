package model

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"larder/internal/arch"
	"larder/internal/device"
)

// Gains of dummy weights: what a matrix does to the root mean square (rms) of its input.
const (
	// qkGain is the mean of the weights of the per-head norms. Scores then spread by its square, and a query looks at
	// few keys even among ten thousand: with 1 a long context averages out, and a wrong block of KV would change no
	// token.
	qkGain     = 2.0
	routerGain = 1.5 // spread of router logits: a clear order, no expert starved
	headGain   = 3.0 // spread of logits when the head is a matrix of its own
	mlpGain    = 1.6 // makes up for silu(g)*u, whose rms is 0.6 of its inputs'
	normSpread = 0.1 // norm weights lie in 1 ± this (for the per-head norms: times qkGain)
)

// dummy is a Source of generated weights.
type dummy struct {
	cfg  *arch.Config
	seed uint64
}

// Dummy is a Source of weights made from a seed and the tensors' names: identical on every machine and device, with
// no files. They are scaled so that the hidden state keeps an rms near 1 at any depth, every layer and every visible
// token matters to the result, experts are used evenly, and greedy text is neither constant nor an echo of the input.
func Dummy(cfg *arch.Config, seed uint64) Source { return &dummy{cfg, seed} }

func (d *dummy) Tensor(name string, shape []int) (device.Tensor, error) {
	gen := device.Dummy{Seed: d.tensorSeed(name)}
	if len(shape) == 1 {
		gen.Offset = 1
		if strings.HasSuffix(name, "q_norm.weight") || strings.HasSuffix(name, "k_norm.weight") {
			gen.Offset = qkGain
		}
		gen.Scale = normSpread * gen.Offset
	} else {
		gain, err := d.gain(name)
		if err != nil {
			return device.Tensor{}, err
		}
		// A uniform number in [-s, s) has variance s²/3.
		gen.Scale = float32(gain * math.Sqrt(3/float64(shape[1])))
	}
	return device.Tensor{Name: name, Shape: shape, DType: arch.BF16, Dummy: gen}, nil
}

// gain is the factor beyond 1/√(inputs) of a matrix's weights.
func (d *dummy) gain(name string) (float64, error) {
	// The layers together add about as much to the hidden state as one of them would alone.
	depth := 1 / math.Sqrt(float64(d.cfg.NumLayers))
	name = strings.TrimSuffix(name, ".weight")
	switch name[strings.LastIndexByte(name, '.')+1:] {
	case "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj":
		return 1, nil
	case "o_proj":
		return depth, nil
	case "down_proj":
		// A weighted mean of k experts is √k times smaller than one of them.
		if strings.Contains(name, ".experts.") {
			depth *= math.Sqrt(float64(d.cfg.NumExpertsPerToken))
		}
		return depth * mlpGain, nil
	case "gate":
		return routerGain, nil
	case "lm_head":
		return headGain, nil
	case "embed_tokens":
		return d.embedGain(), nil
	}
	return 0, fmt.Errorf("dummy weights: tensor %s: no such weight in a %s", name, d.cfg.Architecture)
}

// embedGain makes rows of rms 1, unless they are the head as well: then a token's own row in the hidden state would
// make it its own successor, so the rows are 1/√hidden small, which leaves that pull at one standard deviation of the
// logits.
func (d *dummy) embedGain() float64 {
	if d.cfg.TieWordEmbeddings {
		return 1
	}
	return math.Sqrt(float64(d.cfg.HiddenSize))
}

// tensorSeed depends on the seed and the name alone.
func (d *dummy) tensorSeed(name string) uint64 {
	sum := sha256.Sum256(append(binary.LittleEndian.AppendUint64(nil, d.seed), name...))
	return binary.LittleEndian.Uint64(sum[:])
}

func (d *dummy) Release(string) {}

func (d *dummy) Close() error { return nil }
