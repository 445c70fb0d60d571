package study

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/loadgen"
	"larder/internal/record"
	"larder/internal/workload"
)

// world is an engine, a server and a load generator in one, on a clock of its own: it holds which prompt's blocks are
// in which tier, and charges time by a simple cost model with a little seeded noise. Faults are switched on by name.
type world struct {
	layout kv.Layout
	tiers  map[string][2]bool // by salt and token prefix of whole blocks: on the device, on the host
	stats  infer.Stats
	tap    *Tap
	now    time.Time
	start  time.Time // of the burst
	noise  *rand.Rand

	rate   float64 // computed tokens a second
	link   float64 // bytes a second
	fault  string
	bursts int
	places int
	stop   func() // called at the burst stopAt
	stopAt int
}

func newWorld(blockTokens int) *world {
	w := &world{
		layout: kv.Layout{Layers: 1, KVHeads: 4, HeadDim: 128, BlockTokens: blockTokens, DType: arch.BF16},
		tiers:  map[string][2]bool{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), noise: rand.New(rand.NewPCG(7, 7)),
		rate: 2500, link: 8e9,
	}
	w.stats.BlockTokens = blockTokens
	for t := range w.stats.Tiers {
		w.stats.Tiers[t] = infer.TierStats{Total: 1 << 20, Free: 1 << 20}
	}
	w.tap = NewTap(w)
	return w
}

func (w *world) keys(salt string, tokens []int32) []string {
	var keys []string
	k := kv.RootKey("fake", salt)
	for b := w.layout.BlockTokens; b <= len(tokens); b += w.layout.BlockTokens {
		k = k.Child(tokens[b-w.layout.BlockTokens : b])
		keys = append(keys, string(k[:]))
	}
	return keys
}

func (w *world) Place(_ context.Context, salt string, tokens []int32, to infer.Placement) error {
	if w.places++; w.places%7 == 0 {
		return infer.ErrInUse // a request that has just ended holds its blocks for a moment
	}
	for _, k := range w.keys(salt, tokens) {
		if w.tiers[k] == [2]bool{} {
			return infer.ErrNotCached
		}
		switch {
		case to == infer.Nowhere:
			delete(w.tiers, k)
		case w.fault == "misplace":
			w.tiers[k] = [2]bool{true, true}
		default:
			w.tiers[k] = [2]bool{to == infer.OnlyDevice, to == infer.OnlyHost}
		}
	}
	return nil
}

func (w *world) Residency(_ context.Context, salt string, tokens []int32) (infer.Residency, error) {
	r := infer.Residency{BlockBytes: w.layout.BlockBytes()}
	for _, k := range w.keys(salt, tokens) {
		r.Blocks++
		switch w.tiers[k] {
		case [2]bool{true, false}:
			r.Device++
		case [2]bool{false, true}:
			r.Host++
		case [2]bool{true, true}:
			r.Both++
		default:
			r.Missing++
		}
	}
	return r, nil
}

func (w *world) Flush(context.Context) error {
	if w.fault != "leak" {
		clear(w.tiers)
	}
	w.stats.Tiers[kv.Device].Cached = len(w.tiers)
	return nil
}

func (w *world) Stats(context.Context) (infer.Stats, error) { return w.stats, nil }
func (w *world) Health(context.Context) error               { return nil }
func (w *world) Check(context.Context) error {
	if w.fault == "invariant" {
		return errors.New("free + leased + cached is 3, total 4")
	}
	return nil
}

// Generate makes tokens that depend on the prompt alone and counts like an engine.
func (w *world) Generate(_ context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
	u := infer.Usage{PromptTokens: len(r.Tokens), CompletionTokens: r.MaxNew, Timing: infer.Timing{Queued: w.start.Add(time.Millisecond), Admitted: w.now.Add(time.Millisecond)}}
	keys := w.keys(r.Salt, r.Tokens)
	hit := 0
	for _, k := range keys {
		if (hit+1)*w.layout.BlockTokens >= len(r.Tokens) || w.tiers[k] == [2]bool{} {
			break
		}
		hit++
		if w.tiers[k][0] {
			u.Cached.Device += w.layout.BlockTokens
		} else {
			u.Cached.Host += w.layout.BlockTokens
		}
	}
	for _, k := range keys {
		w.tiers[k] = [2]bool{true, true} // write_through
	}
	u.Computed = len(r.Tokens) - u.Cached.Total()
	loaded := uint64(u.Cached.Host) * uint64(w.layout.TokenBytes())
	w.stats.Tiers[kv.Host].LoadedBytes += loaded
	if w.fault == "short load" && loaded > 0 {
		w.stats.Tiers[kv.Host].LoadedBytes--
	}
	w.stats.Tiers[kv.Host].StoredBytes += uint64(u.Computed) * uint64(w.layout.TokenBytes())
	w.stats.ComputedTokens += uint64(u.Computed)
	u.Timing.Loaded = u.Timing.Admitted.Add(time.Duration(float64(loaded) / w.link * 1e9))
	u.Timing.Computing = u.Timing.Loaded
	took := (0.01 + float64(u.Computed)/w.rate) * (1 + 0.02*w.noise.Float64())
	u.Timing.FirstToken = u.Timing.Computing.Add(time.Duration(took * 1e9))
	out := make([]int32, r.MaxNew)
	for i := range out {
		out[i] = r.Tokens[len(r.Tokens)-1-i%8] + int32(i)
	}
	if w.fault == "wrong token" && u.Cached.Host > 0 {
		out[0]++
	}
	return u, emit(infer.Event{Tokens: out, Finish: infer.FinishLength, Usage: u})
}

// Run is the server and the client: one request after another on the world's clock.
func (w *world) Run(ctx context.Context, cfg loadgen.Config, list []workload.Item) (*loadgen.Result, error) {
	w.bursts++
	if w.stop != nil && w.bursts == w.stopAt {
		w.stop()
	}
	res := &loadgen.Result{Start: w.now}
	w.start = w.now
	start := w.now
	for i := range list {
		o, err := w.serve(ctx, start, &list[i])
		if err != nil {
			return nil, err
		}
		if w.fault == "refuse" && w.bursts > 3 && i == 0 {
			o = loadgen.Outcome{Class: "http", Err: errors.New("503"), OutputTokens: -1, PromptTokens: -1}
		}
		res.Outcomes = append(res.Outcomes, o)
		if cfg.OnDone != nil {
			cfg.OnDone(i, &o)
		}
	}
	res.Duration = w.now.Sub(start)
	w.now = w.now.Add(time.Second)
	return res, nil
}

const tokenTime = 5 * time.Millisecond

func (w *world) serve(ctx context.Context, start time.Time, it *workload.Item) (loadgen.Outcome, error) {
	salt, _ := it.Extra["cache_salt"].(string)
	req := &infer.Request{ID: fmt.Sprint(w.bursts), Tokens: it.IDs, Salt: salt, MaxNew: it.OutputLen}
	var o loadgen.Outcome
	_, err := w.tap.Generate(ctx, req, func(e infer.Event) error {
		o.OutputIDs = append(o.OutputIDs, e.Tokens...)
		u := e.Usage
		o.PromptTokens, o.OutputTokens = u.PromptTokens, u.CompletionTokens
		o.Cached = &loadgen.Cached{Total: u.Cached.Total(), Device: u.Cached.Device, Host: u.Cached.Host, Storage: -1}
		o.First = u.Timing.FirstToken.Sub(start) + time.Millisecond
		return nil
	})
	if w.fault == "silent" {
		o.Cached = nil
	}
	for i := range o.OutputTokens {
		o.Chunks = append(o.Chunks, loadgen.Chunk{At: o.First + time.Duration(i)*tokenTime, Tokens: 1})
	}
	if w.fault == "lost chunk" && len(o.Chunks) > 2 {
		o.Chunks = o.Chunks[:len(o.Chunks)-1]
		o.Chunks[len(o.Chunks)-1].At += 20 * tokenTime
	}
	o.Done = o.First + time.Duration(o.OutputTokens-1)*tokenTime + time.Millisecond
	w.now = start.Add(o.Done)
	return o, err
}

// roof is a model of 1e8 operations a token and 1e6 bytes a step.
type roof struct{}

func (roof) PrefillFLOPs(n, context int) float64 {
	return float64(n)*1e8 + float64(n)*(float64(context)+float64(n)/2)*16384
}
func (roof) DecodeBytes(batch, context int) float64 { return 1e6 + float64(batch*context)*2048 }

func (w *world) env() Env {
	return Env{
		BaseURL: "http://127.0.0.1:1", Driver: w, Placer: w, Control: w, Tap: w.tap, Tool: "larder test",
		Host:   record.Host{OS: "linux", Arch: "amd64", CPU: "Example CPU", Cores: 2, MemoryBytes: 16 << 30, GoVersion: "go1.26"},
		Device: device.Info{Kind: "cpu", Name: "Example CPU", Units: 2, Kernels: "avx512-bf16", TierNote: "On this CPU the device and host tiers are two pools of the same RAM."},
		Ceilings: []device.Ceiling{{Name: device.CeilingGEMM, Value: 5e11, Unit: "FLOP/s", How: "M=1024"}, {Name: device.CeilingMemory, Value: 2e10, Unit: "B/s"},
			{Name: device.CeilingHostToDev, Value: 8e9, Unit: "B/s"}, {Name: device.CeilingDevToHost, Value: 8e9, Unit: "B/s"}, {Name: device.CeilingCopyDuplex, Value: 9e9, Unit: "B/s"}},
		Model:      &arch.Config{Name: "fake", VocabSize: 5000, NumLayers: 1, NumKVHeads: 4, HeadDim: 128, EOSTokenIDs: []int32{4990}},
		FullLayers: 48, Weights: "dummy", WeightBytes: 1 << 30, Roofline: roof{}, Layout: w.layout, WritePolicy: "write_through",
	}
}
