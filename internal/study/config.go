package study

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"larder/internal/kv"
	"larder/internal/record"
)

// Config says what to measure. Copy one of the presets and change it; Run does not change it.
type Config struct {
	Preset     string  // name for the record
	InputLen   int     // tokens of a prompt, exactly
	HitRate    float64 // share of the prompt that is prefix, rounded down to whole blocks
	BatchSizes []int   // requests of a burst, largest first is customary
	OutputLen  int     // tokens to make in the paired bursts
	NumLayers  int     // for the record; the server decides
	Repeats    int     // times each arm runs each batch; intervals need 2, 3 is the least to take seriously
	Prefixes   string  // "own": each request its own; "one": one for all; a number: so many groups
	Arms       []string
	Interleave string // "repeat" (default): the arms take turns each repeat; "batch": at each batch size of a repeat, which primes more
	Decode     []record.DecodeRun
	HeldOut    []float64 // further hit rates, measured once and predicted by the model of the rest
	Seed       uint64
	Salt       uint64 // its lower 32 bits: another salt shares no prefix with this run, on a server that was not emptied
}

// Preset returns smoke, quick or seed.
//
//   - quick: 2,560 tokens of which 2,304 shared, one layer of the 30B. Recompute: (4+2+1) x 3 repeats = 21 prompts of
//     0.34 TFLOP. Priming: 4 x 2 arms x 3 repeats, 4 for the decode run, 1 warm-up = 29 prefixes of 0.30 TFLOP. Hits: 48
//     of 0.04 TFLOP. Held out: 4 halves of 0.16 TFLOP. 18 TFLOP in all: 61 s at 300 GFLOP/s, 92 s at 200; the decode run
//     adds about 2 s.
//   - smoke: every code path on the tiny model.
//   - seed: the document's matrix.
func Preset(name string) (Config, error) {
	arms := []string{record.Recompute, record.HostArm, record.HBMArm}
	c := Config{Preset: name, HitRate: 0.9, OutputLen: 1, NumLayers: 1, Repeats: 3, Prefixes: "own", Arms: arms, Seed: 1, HeldOut: []float64{0.5}}
	switch name {
	case "smoke":
		c.InputLen, c.BatchSizes, c.Repeats, c.Interleave = 640, []int{4, 2, 1}, 4, "batch"
		c.Decode = []record.DecodeRun{{Requests: 4, OutputLen: 8}}
	case "quick":
		c.InputLen, c.BatchSizes = 2560, []int{4, 2, 1}
		c.Decode = []record.DecodeRun{{Requests: 4, OutputLen: 24}}
	case "seed":
		c.InputLen, c.BatchSizes, c.Interleave = 10240, []int{64, 32, 16, 8}, "batch"
		c.Decode = []record.DecodeRun{{Requests: 64, OutputLen: 256}, {Requests: 256, Concurrency: 16, OutputLen: 256}}
	default:
		return Config{}, fmt.Errorf("preset %q: there are smoke, quick and seed", name)
	}
	return c, nil
}

// Validate reports what cannot be measured.
func (c *Config) Validate() error {
	switch {
	case c.InputLen < 2:
		return fmt.Errorf("input length %d: at least 2 tokens, one to share and one to compute", c.InputLen)
	case !(c.HitRate > 0 && c.HitRate < 1):
		return fmt.Errorf("hit rate %v: must lie between 0 and 1", c.HitRate)
	case len(c.BatchSizes) == 0 || slices.Min(c.BatchSizes) < 1:
		return fmt.Errorf("batch sizes %v: at least one, each at least 1", c.BatchSizes)
	case c.OutputLen < 1:
		return fmt.Errorf("output length %d: at least 1", c.OutputLen)
	case c.Repeats < 1:
		return fmt.Errorf("%d repeats: at least 1", c.Repeats)
	case !slices.Contains([]string{"", "repeat", "batch"}, c.Interleave):
		return fmt.Errorf("interleave %q: repeat or batch", c.Interleave)
	case len(c.Arms) == 0:
		return errors.New("no arms to measure")
	}
	for i, a := range c.Arms {
		if !slices.Contains([]string{record.Recompute, record.HostArm, record.HBMArm}, a) || slices.Contains(c.Arms[:i], a) {
			return fmt.Errorf("arms %v: each of recompute, host and hbm once at most", c.Arms)
		}
	}
	for i, b := range c.BatchSizes {
		if slices.Contains(c.BatchSizes[:i], b) {
			return fmt.Errorf("batch sizes %v: %d twice", c.BatchSizes, b)
		}
	}
	for _, h := range c.HeldOut {
		if !(h > 0 && h < 1) {
			return fmt.Errorf("held-out hit rate %v: must lie between 0 and 1", h)
		}
	}
	for _, d := range c.Decode {
		if d.Requests < 1 || d.OutputLen < 2 || d.Concurrency < 0 {
			return fmt.Errorf("decode run %+v: at least 1 request and 2 output tokens", d)
		}
	}
	_, err := c.groups(1)
	return err
}

// groups is the number of distinct prefixes of n requests.
func (c *Config) groups(n int) (int, error) {
	switch c.Prefixes {
	case "", "own":
		return n, nil
	case "one":
		return 1, nil
	}
	g, err := strconv.Atoi(c.Prefixes)
	if err != nil || g < 1 {
		return 0, fmt.Errorf("prefixes %q: own, one or a number of groups", c.Prefixes)
	}
	return min(g, n), nil
}

// own says whether no two requests of a burst share a prefix.
func (c *Config) own() bool { return c.Prefixes == "" || c.Prefixes == "own" }

// SharedLen is the length of the prefix at a hit rate: whole blocks of blockTokens, and never the whole prompt. The
// small allowance keeps 0.9 x 2,560 at 2,304 whatever the rounding of 0.9.
func (c *Config) SharedLen(hitRate float64, blockTokens int) int {
	n := int(math.Floor(float64(c.InputLen)*hitRate + 1e-6))
	return min(n, c.InputLen-1) / blockTokens * blockTokens
}

// NeedBlocks is how many blocks each tier must have so that nothing the study placed is evicted while it measures.
func (c *Config) NeedBlocks(l kv.Layout) int {
	shared := c.SharedLen(c.HitRate, l.BlockTokens)
	most := slices.Max(c.BatchSizes)
	own := func(out int) int { return l.Blocks(c.InputLen+out) - shared/l.BlockTokens }
	bursts := most * shared / l.BlockTokens
	for _, b := range c.BatchSizes {
		bursts += b * own(c.OutputLen)
	}
	need := max(bursts, most*l.Blocks(c.InputLen+c.OutputLen))
	for _, d := range c.Decode {
		need = max(need, d.Requests*(shared/l.BlockTokens+own(d.OutputLen)))
	}
	return need + 8
}

// ContextLen is the context length that the server must allow.
func (c *Config) ContextLen() int {
	out := c.OutputLen
	for _, d := range c.Decode {
		out = max(out, d.OutputLen)
	}
	return c.InputLen + out + 1
}
