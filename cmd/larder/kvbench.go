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
	"larder/internal/kv/xfer"
	"larder/internal/kvbench"
)

type kvbenchCmd struct {
	Preset      string  `enum:"none,seed" default:"none" help:"seed: the document's host rows, with the same bytes per request in each (9,216 tokens, 48 layers) and with its own."`
	Model       string  `default:"qwen3-30b-a3b" help:"Whose KV shape: a built-in config or a checkpoint's folder."`
	Tokens      int     `default:"9216" help:"Tokens per request and direction."`
	Layers      int     `default:"1" help:"Layers of KV."`
	TPShards    int     `name:"tp-shards" default:"1" help:"Split the KV heads over so many shards; one shard's part is moved."`
	Requests    int     `default:"8" help:"Requests of a batch."`
	InFlight    int     `name:"in-flight" default:"8" help:"Requests that move at once."`
	Batches     int     `default:"20" help:"Measured batches per phase."`
	BlockTokens int     `name:"block-tokens" default:"64" help:"Tokens of a block."`
	Layout      string  `enum:"block,layer" default:"block" help:"How pools lie: block holds all layers of a block together, layer all blocks of a layer."`
	Scattered   bool    `help:"A request's blocks lie apart, so that no two make one piece."`
	Method      string  `enum:"auto,run,2d,batch,kernel" default:"auto" help:"How pieces are copied; auto chooses by what was measured on this machine."`
	HostGiB     float64 `name:"host-gib" default:"16" help:"Most host memory; where it is short, requests share host blocks."`
	Device      string  `enum:"auto,cpu,cuda" default:"auto" help:"Whose tiers."`
	Seed        uint64  `default:"1" help:"Seed of the scattering."`
	JSON        string  `name:"json" placeholder:"FILE" help:"Write everything to a file."`
	Plot        string  `placeholder:"FILE" help:"Write a page with bars."`
}

// layout is the shape of one shard's KV.
func (c *kvbenchCmd) layout(shards, layers int) (kv.Layout, error) {
	cfg, ok := arch.Builtin(c.Model)
	if !ok {
		var err error
		if cfg, err = arch.Load(c.Model); err != nil {
			return kv.Layout{}, usagef("--model %s: %v (built-in names: %v)", c.Model, err, arch.BuiltinNames())
		}
	}
	if shards < 1 || cfg.NumKVHeads%shards != 0 {
		return kv.Layout{}, usagef("--tp-shards %d: must divide the %d KV heads", shards, cfg.NumKVHeads)
	}
	if layers < 1 {
		return kv.Layout{}, usagef("--layers %d: must be at least 1", layers)
	}
	l := kv.LayoutOf(cfg, c.BlockTokens, arch.BF16)
	l.Layers, l.KVHeads = layers, cfg.NumKVHeads/shards
	return l, nil
}

// kvbenchRow is a measurement to make.
type kvbenchRow struct {
	name string
	cfg  kvbench.Config
}

// rows are the measurements that the flags ask for.
func (c *kvbenchCmd) rows() ([]kvbenchRow, error) {
	if c.Preset == "none" {
		cfg, err := c.config(c.Requests, c.TPShards, c.Tokens, c.Layers)
		return []kvbenchRow{{fmt.Sprintf("%d requests", c.Requests), cfg}}, err
	}
	var rows []kvbenchRow
	for _, p := range kvbench.PublishedRows() {
		cfg, err := c.config(p.Requests, 1, kvbench.SeedTokens, kvbench.SeedLayers)
		if err != nil {
			return nil, err
		}
		rows = append(rows, kvbenchRow{p.SameName(), cfg})
	}
	for _, p := range kvbench.PublishedRows() {
		if p.Shards == 1 {
			continue // the same as above
		}
		cfg, err := c.config(p.Requests, p.Shards, kvbench.SeedTokens, kvbench.SeedLayers)
		if err != nil {
			return nil, err
		}
		rows = append(rows, kvbenchRow{p.OwnName(), cfg})
	}
	return rows, nil
}

func (c *kvbenchCmd) config(requests, shards, tokens, layers int) (kvbench.Config, error) {
	layout, err := c.layout(shards, layers)
	if err != nil {
		return kvbench.Config{}, err
	}
	cfg := kvbench.Config{
		Layout: layout, Tokens: tokens, Requests: requests, InFlight: c.InFlight, Batches: c.Batches, Scatter: c.Scattered,
		Layered: c.Layout == "layer", Seed: c.Seed,
	}
	if err := cfg.Method.UnmarshalText([]byte(c.Method)); err != nil {
		return cfg, usageError{err}
	}
	if err := cfg.Validate(); err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

// Run measures and prints.
func (c *kvbenchCmd) Run(ctx context.Context, s *streams) error {
	rows, err := c.rows()
	if err != nil {
		return err
	}
	if !(c.HostGiB > 0) {
		return usagef("--host-gib %v: must be more than 0", c.HostGiB)
	}
	dev, err := openDevice(&engineFlags{Device: c.Device, DType: "bfloat16", Kernels: "auto"}, s.err)
	if err != nil {
		return err
	}
	defer dev.Close()
	info := dev.Info()
	for i := range rows {
		if m := rows[i].cfg.Method; !m.Available(dev) {
			return usagef("--method %v: %s has %v", m, info.Name, dev.CopyMethods())
		}
		if err := fitHost(&rows[i].cfg, info.Kind, int64(c.HostGiB*(1<<30))); err != nil {
			return err
		}
	}
	fmt.Fprintf(s.out, "%s (%s). %s\n", info.Name, info.Kind, info.TierNote)
	table, err := copyTable(dev, info)
	if err != nil {
		return err
	}
	ceilings, err := dev.Ceilings()
	if err != nil {
		return err
	}
	var done []kvbench.Row
	for i := range rows {
		cfg := rows[i].cfg
		cfg.Table, cfg.Ceilings = table, ceilings
		res, failed := c.measure(ctx, s, dev, rows[i].name, cfg)
		done = append(done, kvbench.Row{Name: rows[i].name, Result: res})
		if err = errors.Join(err, failed); failed != nil && !errors.Is(failed, kvbench.ErrChecks) {
			break
		}
	}
	if c.Preset == "seed" {
		err = errors.Join(err, kvbench.SeedText(s.out, done))
	}
	err = errors.Join(err, c.write(done, info, table))
	if errors.Is(err, kvbench.ErrChecks) {
		return checksError{err}
	}
	return err
}

// measure makes one row, with a progress line, and prints it.
func (c *kvbenchCmd) measure(ctx context.Context, s *streams, dev device.Device, name string, cfg kvbench.Config) (*kvbench.Result, error) {
	line := newProgress(s.err, "kvbench")
	cfg.Progress = func(done, total int) {
		line.update(float64(done)/float64(total), fmt.Sprintf("%s: batch %d of %d", name, done, total))
	}
	res, err := kvbench.Run(ctx, dev, cfg)
	line.done()
	if res != nil {
		fmt.Fprintln(s.out)
		err = errors.Join(err, res.Text(s.out))
	}
	return res, err
}

// write saves the results as JSON and as a page when asked to.
func (c *kvbenchCmd) write(rows []kvbench.Row, info device.Info, table *xfer.Table) error {
	var errs []error
	if c.JSON != "" {
		doc := struct {
			Schema string        `json:"schema"`
			Device device.Info   `json:"device"`
			Copies *xfer.Table   `json:"copies"`
			Rows   []kvbench.Row `json:"rows"`
		}{"larder.kvbench/2", info, table, rows}
		errs = append(errs, writeFile(c.JSON, func(f *os.File) error {
			out := json.NewEncoder(f)
			out.SetIndent("", "  ")
			return out.Encode(doc)
		}))
	}
	if c.Plot != "" {
		errs = append(errs, writeFile(c.Plot, func(f *os.File) error {
			return kvbench.Plot(f, fmt.Sprintf("%s (%s)", info.Name, info.Kind), rows)
		}))
	}
	return errors.Join(errs...)
}
