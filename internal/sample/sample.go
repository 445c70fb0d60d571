// Package sample turns logits into a token. It is plain mathematics on one row of float32 logits, the oracle for
// every device's sampler; it owns no state: the same logits, parameters, seed and position give the same token, so
// batch company and preemption cannot change what a request says. Nor can the machine: weights are whole numbers,
// their sums are exact in any order, and the exponential is our own, so that no fused multiply-add and no other
// rounding of a library enters. It refuses to know about requests, text and devices.
//
// Start at Pick.
package sample

import (
	"errors"
	"fmt"
	"sync"
)

// Params are a request's sampling parameters, already validated. Temperature 0 is greedy.
//
// The filters apply one after another: the TopK most likely ids; of these the fewest that hold at least TopP of what
// they have together; of these the ids at least MinP times as likely as the most likely one. Of equally likely ids the
// lower goes first. The most likely id passes every filter.
type Params struct {
	Temperature float32
	TopK        int     // 0: all
	TopP        float32 // in (0, 1]; 1: all
	MinP        float32 // in [0, 1]; 0: all
	Seed        uint64
}

// Draw asks for one token.
type Draw struct {
	Params
	Position int     // index of the token in the request's output; with Seed it names the random number
	Banned   []int32 // ids that may not come (stop tokens before min_new_tokens)
}

// MinTemperature is the lowest temperature that still samples; below it the draw is greedy, as at the peers.
const MinTemperature = 1e-6

// ErrParams is wrapped by every error of Validate.
var ErrParams = errors.New("sampling parameters")

// Validate reports the first parameter that is not a number or out of its range.
func (p *Params) Validate() error {
	// The comparisons are written so that a NaN fails them.
	switch {
	case !(p.Temperature >= 0 && p.Temperature <= maxFloat):
		return fmt.Errorf("%w: temperature %v is not a finite number of at least 0", ErrParams, p.Temperature)
	case p.TopK < 0:
		return fmt.Errorf("%w: top_k %d is negative (0 means all)", ErrParams, p.TopK)
	case !(p.TopP > 0 && p.TopP <= 1):
		return fmt.Errorf("%w: top_p %v is not in (0, 1]", ErrParams, p.TopP)
	case !(p.MinP >= 0 && p.MinP <= 1):
		return fmt.Errorf("%w: min_p %v is not in [0, 1]", ErrParams, p.MinP)
	}
	return nil
}

const maxFloat = 0x1p127 * (1 + (1 - 0x1p-23))

// Greedy says whether the draw takes the most likely id whatever the seed.
func (p *Params) Greedy() bool { return p.Temperature < MinTemperature || p.TopK == 1 }

// Pick chooses a token id. Greedy takes the largest logit, the lowest id among equals. A NaN never wins, nor does a
// banned id; -Inf is the least of values and wins only where there is nothing else; ids at +Inf share all probability.
// When no id may come, all being banned or NaN, Pick returns -1. It does not change logits or d, costs a few passes
// over the logits at most, allocates nothing once warm, and is safe for concurrent use.
func Pick(logits []float32, d *Draw) int32 {
	s := scratch.Get().(*sampler)
	id := s.pick(logits, d)
	scratch.Put(s)
	return id
}

// scratch keeps samplers' buffers between calls: a cache, no state.
var scratch = sync.Pool{New: func() any { return new(sampler) }}

// uniform is the random number of (seed, position): 64 bits from two rounds of SplitMix64's finaliser (Steele, Lea
// and Flood 2014), so neighbouring seeds and positions are unrelated.
func uniform(seed uint64, position int) uint64 {
	return mix(mix(seed+golden) + uint64(position)*golden)
}

const golden = 0x9E3779B97F4A7C15

func mix(z uint64) uint64 {
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}
