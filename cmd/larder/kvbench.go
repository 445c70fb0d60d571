package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/kvbench"
)

type kvbenchCmd struct {
	Model       string `default:"qwen3-30b-a3b" help:"Whose KV shape: a built-in config or a checkpoint's folder."`
	Tokens      int    `default:"9216" help:"Tokens per request and direction."`
	Layers      int    `default:"1" help:"Layers of KV."`
	TPShards    int    `name:"tp-shards" default:"1" help:"Split the KV heads over so many shards; one shard's part is moved."`
	Requests    int    `default:"8" help:"Requests of a batch."`
	InFlight    int    `name:"in-flight" default:"4" help:"Requests that move at once."`
	Batches     int    `default:"20" help:"Measured batches per phase."`
	BlockTokens int    `name:"block-tokens" default:"64" help:"Tokens of a block."`
	Scattered   bool   `help:"A request's blocks lie apart, so that no two make one copy."`
	Device      string `enum:"auto,cpu,cuda" default:"auto" help:"Whose tiers."`
	Seed        uint64 `default:"1" help:"Seed of the scattering."`
	JSON        string `name:"json" placeholder:"FILE" help:"Write everything to a file."`
}

// layout is the shape of one shard's KV.
func (c *kvbenchCmd) layout() (kv.Layout, error) {
	cfg, ok := arch.Builtin(c.Model)
	if !ok {
		var err error
		if cfg, err = arch.Load(c.Model); err != nil {
			return kv.Layout{}, usagef("--model %s: %v (built-in names: %v)", c.Model, err, arch.BuiltinNames())
		}
	}
	if c.TPShards < 1 || cfg.NumKVHeads%c.TPShards != 0 {
		return kv.Layout{}, usagef("--tp-shards %d: must divide the %d KV heads", c.TPShards, cfg.NumKVHeads)
	}
	if c.Layers < 1 {
		return kv.Layout{}, usagef("--layers %d: must be at least 1", c.Layers)
	}
	l := kv.LayoutOf(cfg, c.BlockTokens, arch.BF16)
	l.Layers, l.KVHeads = c.Layers, cfg.NumKVHeads/c.TPShards
	return l, nil
}

// Run measures and prints.
func (c *kvbenchCmd) Run(ctx context.Context, s *streams) error {
	layout, err := c.layout()
	if err != nil {
		return err
	}
	cfg := kvbench.Config{Layout: layout, Tokens: c.Tokens, Requests: c.Requests, InFlight: c.InFlight, Batches: c.Batches, Scatter: c.Scattered, Seed: c.Seed}
	if err := cfg.Validate(); err != nil {
		return usageError{err}
	}
	dev, err := openDevice(&engineFlags{Device: c.Device, DType: "bfloat16", Kernels: "auto"}, s.err)
	if err != nil {
		return err
	}
	defer dev.Close()
	info := dev.Info()
	fmt.Fprintf(s.out, "%s (%s). %s\n", info.Name, info.Kind, info.TierNote)
	need := int64(cfg.DeviceBlocks()+cfg.HostBlocks()) * layout.BlockBytes()
	if info.Kind == "cpu" && need > info.MemoryBytes*3/4 {
		return usagef("%d requests of %.1f MiB each way need %.1f GiB of %.1f: ask for fewer --requests, --tokens or --layers",
			c.Requests, float64(cfg.BytesPerRequest())/(1<<20), float64(need)/(1<<30), float64(info.MemoryBytes)/(1<<30))
	}
	if cfg.Ceilings, err = dev.Ceilings(); err != nil {
		return err
	}
	line := newProgress(s.err, "kvbench")
	cfg.Progress = func(done, total int) {
		line.update(float64(done)/float64(total), fmt.Sprintf("batch %d of %d", done, total))
	}
	res, err := kvbench.Run(ctx, dev, cfg)
	line.done()
	if res != nil {
		err = errors.Join(err, res.Text(s.out), c.write(res, info))
	}
	if errors.Is(err, kvbench.ErrChecks) {
		return checksError{err}
	}
	return err
}

// write saves the result as JSON when asked to.
func (c *kvbenchCmd) write(res *kvbench.Result, info device.Info) error {
	if c.JSON == "" {
		return nil
	}
	doc := struct {
		Schema string          `json:"schema"`
		Device device.Info     `json:"device"`
		Result *kvbench.Result `json:"result"`
	}{"larder.kvbench/1", info, res}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(c.JSON, append(b, '\n'), 0o644)
}
