package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"larder/internal/kv/cache"
)

// engineFlags shape the engine; serve and study share them. Names and meanings are SGLang's where it has them.
type engineFlags struct {
	ModelPath  string `name:"model-path" default:"qwen3-30b-a3b" placeholder:"NAME|DIR" help:"A built-in config (qwen3-30b-a3b, qwen3-0.6b, tiny; needs --load-format dummy) or the folder of a Hugging Face checkpoint."`
	LoadFormat string `name:"load-format" enum:"auto,safetensors,dummy" default:"auto" help:"dummy makes seeded weights; auto is safetensors for a folder and dummy for a built-in config."`
	NumLayers  int    `name:"num-layers" help:"Keep the first N layers (0: all)."`
	Seed       uint64 `name:"random-seed" default:"1234" help:"Seed of dummy weights."`

	Device  string `enum:"auto,cpu,cuda" default:"auto" help:"Where to compute."`
	DType   string `name:"dtype" enum:"auto,bfloat16,float32" default:"auto" help:"Activations and KV; weights stay bf16."`
	Threads int    `help:"Worker threads on the CPU (0: all cores)."`
	Kernels string `enum:"auto,avx512-bf16,avx512-f32,avx2,go" default:"auto" help:"CPU kernel family."`

	ContextLength  int     `name:"context-length" help:"Longest request in tokens, prompt and output (0: the model's)."`
	PageSize       int     `name:"page-size" default:"64" help:"Tokens of one KV block, a power of two."`
	MemFraction    float64 `name:"mem-fraction-static" default:"0.8" help:"Share of a GPU's memory for weights and KV."`
	MaxTotalTokens int     `name:"max-total-tokens" help:"Tokens that the device KV pool holds (0: sized from memory)."`
	MaxRunning     int     `name:"max-running-requests" default:"256" help:"Most requests that hold KV at once."`
	MaxQueued      int     `name:"max-queued-requests" default:"4096" help:"Most requests that wait; more get 503."`
	ChunkedPrefill int     `name:"chunked-prefill-size" help:"Most tokens of one forward pass (0: 2048 on a CPU, 16384 on a GPU)."`

	SchedulePolicy  string  `name:"schedule-policy" enum:"fcfs,lpm" default:"fcfs" help:"Order of waiting requests: first come, or longest cached prefix (with aging)."`
	DisableOverlap  bool    `name:"disable-overlap-schedule" help:"Prepare no step while the one before is computed."`
	DisableRadix    bool    `name:"disable-radix-cache" help:"Reuse no prefix."`
	Hierarchical    bool    `name:"enable-hierarchical-cache" help:"Keep a second KV tier in host memory."`
	HicacheRatio    float64 `name:"hicache-ratio" default:"2" help:"Host tier's size as a multiple of the device tier's."`
	HicacheSize     float64 `name:"hicache-size" help:"Host tier's size in GB of 1e9 bytes; overrides the ratio."`
	HicacheWrite    string  `name:"hicache-write-policy" enum:"write_through,write_through_selective,write_back" default:"write_through" help:"When blocks are copied to the host."`
	Eviction        string  `name:"radix-eviction-policy" enum:"lru,lfu,slru" default:"lru" help:"Which cached block goes first."`
	CheckInvariants bool    `name:"check-invariants" help:"Check every invariant after every step (slow; for finding faults)."`
}

// validate reports contradictions that no enum catches.
func (f *engineFlags) validate() error {
	switch {
	case f.NumLayers < 0:
		return usagef("--num-layers %d: must not be negative", f.NumLayers)
	case f.PageSize < 1 || f.PageSize&(f.PageSize-1) != 0 || f.PageSize > 1024:
		return usagef("--page-size %d: must be a power of two, 1024 at most", f.PageSize)
	case f.MaxTotalTokens < 0 || f.ContextLength < 0 || f.Threads < 0:
		return usagef("--max-total-tokens, --context-length and --threads must not be negative")
	case !(f.MemFraction > 0 && f.MemFraction < 1):
		return usagef("--mem-fraction-static %v: must lie between 0 and 1", f.MemFraction)
	case f.MaxRunning < 1 || f.MaxQueued < 1:
		return usagef("--max-running-requests and --max-queued-requests must be at least 1")
	case f.ChunkedPrefill < 0:
		return usagef("--chunked-prefill-size %d: must not be negative", f.ChunkedPrefill)
	case f.Hierarchical && f.DisableRadix:
		return usagef("--enable-hierarchical-cache needs the prefix cache: drop --disable-radix-cache")
	case !(f.HicacheRatio > 0 && f.HicacheRatio <= 1e6) || !(f.HicacheSize >= 0 && f.HicacheSize <= 1e6):
		return usagef("--hicache-ratio must be a number above 0 and --hicache-size one that is not negative")
	}
	return nil
}

// chunk is the most rows of a pass: as asked, or enough to fill a GPU's tiles, or a CPU's cores without much scratch
// memory.
func (f *engineFlags) chunk(kind string) int {
	switch {
	case f.ChunkedPrefill > 0:
		return f.ChunkedPrefill
	case kind == "cuda":
		return 16384
	}
	return 2048
}

// writePolicy maps the flag; its values are checked by the parser.
func (f *engineFlags) writePolicy() cache.WritePolicy {
	switch f.HicacheWrite {
	case "write_through":
		return cache.WriteThrough
	case "write_through_selective":
		return cache.WriteThroughSelective
	case "write_back":
		return cache.WriteBack
	}
	panic(fmt.Sprintf("write policy %q passed the parser", f.HicacheWrite))
}

// withChoices is a flag's help that also names its values where the text does not.
func withChoices(v *kong.Value) string {
	help := kong.DefaultHelpValueFormatter(v)
	choices := slices.DeleteFunc(v.EnumSlice(), func(s string) bool { return s == "" })
	if !slices.ContainsFunc(choices, func(s string) bool { return !strings.Contains(help, s) }) {
		return help
	}
	return help + " One of " + strings.Join(choices, ", ") + "."
}
