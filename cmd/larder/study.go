package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"larder/internal/device"
	"larder/internal/device/cuda"
	"larder/internal/kvbench"
	"larder/internal/loadgen"
	"larder/internal/record"
	"larder/internal/report"
	"larder/internal/server"
	"larder/internal/study"
)

type studyCmd struct {
	Preset string `enum:"auto,smoke,quick,seed" default:"auto" help:"smoke: every code path on a tiny model; quick: one layer of the 30B, for a CPU; seed: the document's own matrix, for a GPU; auto picks by device."`
	Out    string `default:"out/study" placeholder:"DIR" help:"Folder for study.json and report.html."`
	Device string `enum:"auto,cpu,cuda" default:"auto" help:"Where to compute."`

	InputLen   *int     `name:"input-len" help:"Tokens of a prompt (none: the preset's)."`
	HitRate    *float64 `name:"hit-rate" help:"Share of the prompt that is prefix, above 0 and below 1 (none: the preset's)."`
	BatchSizes []int    `name:"batch-sizes" placeholder:"N,..." help:"Requests of a burst (none: the preset's)."`
	OutputLen  *int     `name:"output-len" help:"Tokens to make (none: the preset's)."`
	NumLayers  *int     `name:"num-layers" help:"Layers to keep (none: the preset's; 0: all)."`
	Repeats    *int     `help:"Times each arm runs each batch (none: the preset's)."`
	Prefixes   string   `placeholder:"own|one|N" help:"Each request its own prefix, one for all, or N groups (none: the preset's)."`
	Arms       []string `placeholder:"ARM,..." help:"Of recompute, host, hbm (none: all)."`
	Interleave string   `enum:",repeat,batch" default:"" help:"Turns of the arms: once per repeat, or at each batch size, which primes more (none: the preset's)."`
	NoDecode   bool     `name:"no-decode" help:"Leave the decode runs out."`
	Seed       *uint64  `help:"Seed of prompts and order (none: the preset's)."`

	ModelPath string `name:"model-path" placeholder:"NAME|DIR" help:"Built-in config or checkpoint (none: the preset's)."`
	PageSize  int    `name:"page-size" default:"64" help:"Tokens of a KV block."`
	Chunk     int    `name:"chunked-prefill-size" help:"Most tokens of one forward pass (0: 2048 on a CPU, 16384 on a GPU)."`
	Write     string `name:"hicache-write-policy" enum:"write_through,write_through_selective,write_back" default:"write_through" help:"When blocks are copied to the host."`
	DType     string `name:"dtype" enum:"auto,bfloat16,float32" default:"auto" help:"Activations and KV."`
	Threads   int    `help:"Worker threads on the CPU (0: all cores)."`
	Kernels   string `enum:"auto,avx512-bf16,avx512-f32,avx2,go" default:"auto" help:"CPU kernel family."`

	Remote serverFlags `embed:""`
}

// plan is the preset with the flags laid over it.
func (c *studyCmd) plan() (study.Config, error) {
	preset := c.Preset
	if preset == "auto" {
		preset = "quick"
		if c.Device == "cuda" || c.Device == "auto" && cuda.Present() {
			preset = "seed"
		}
	}
	cfg, err := study.Preset(preset)
	if err != nil {
		return cfg, usageError{err}
	}
	if preset == "smoke" || c.ModelPath != "" {
		cfg.NumLayers = 0 // all
	}
	over(&cfg.InputLen, c.InputLen)
	over(&cfg.HitRate, c.HitRate)
	over(&cfg.OutputLen, c.OutputLen)
	over(&cfg.NumLayers, c.NumLayers)
	over(&cfg.Repeats, c.Repeats)
	over(&cfg.Seed, c.Seed)
	if c.Prefixes != "" {
		cfg.Prefixes = c.Prefixes
	}
	if c.Interleave != "" {
		cfg.Interleave = c.Interleave
	}
	if len(c.BatchSizes) > 0 {
		cfg.BatchSizes = c.BatchSizes
	}
	if len(c.Arms) > 0 {
		cfg.Arms = c.Arms
	}
	if c.NoDecode {
		cfg.Decode = nil
	}
	var salt [8]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return cfg, err
	}
	cfg.Salt = binary.LittleEndian.Uint64(salt[:])
	if err := cfg.Validate(); err != nil {
		return cfg, usageError{err}
	}
	return cfg, nil
}

// over lays a flag over a preset's value, if the flag was given.
func over[T any](to, flag *T) {
	if flag != nil {
		*to = *flag
	}
}

// engineFlags are what the study's server runs with: pools just large enough that nothing is evicted while it measures.
func (c *studyCmd) engineFlags(cfg *study.Config) engineFlags {
	f := engineFlags{
		ModelPath: c.ModelPath, LoadFormat: "auto", NumLayers: cfg.NumLayers, Seed: 1234,
		Device: c.Device, DType: c.DType, Threads: c.Threads, Kernels: c.Kernels,
		MemFraction: 0.8, PageSize: c.PageSize, MaxRunning: 256, MaxQueued: 4096, ChunkedPrefill: c.Chunk,
		SchedulePolicy: "fcfs", Hierarchical: true, HicacheRatio: 1, HicacheWrite: c.Write, Eviction: "lru",
	}
	if f.ModelPath == "" {
		f.ModelPath = "qwen3-30b-a3b"
		if cfg.Preset == "smoke" {
			f.ModelPath = "tiny"
		}
	}
	return f
}

// Run measures, writes the record and the page, and prints the table.
func (c *studyCmd) Run(ctx context.Context, s *streams) error {
	if c.Remote.Server != "" {
		return c.runServer(ctx, s)
	}
	cfg, err := c.plan()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return usageError{err}
	}
	flags := c.engineFlags(&cfg)
	if err := flags.validate(); err != nil {
		return err
	}
	if err := sizePools(&flags, &cfg); err != nil {
		return err
	}
	rec, err := c.measure(ctx, &cfg, &flags, s)
	if rec == nil {
		return err
	}
	if werr := c.write(rec, s); werr != nil {
		return errors.Join(err, werr)
	}
	if errors.Is(err, study.ErrChecks) {
		return checksError{err}
	}
	return err
}

// sizePools makes both tiers large enough for everything that the study places.
func sizePools(f *engineFlags, cfg *study.Config) error {
	model, _, _, err := resolveModel(f)
	if err != nil {
		return err
	}
	blocks := cfg.NeedBlocks(f.layout(model))
	f.MaxTotalTokens = blocks * f.PageSize
	if need := cfg.ContextLen(); need > model.MaxPositions {
		return usagef("prompts and answers of %d tokens: %s goes to %d", need, model.Name, model.MaxPositions)
	}
	return nil
}

// measure runs the server in process and the study against it.
func (c *studyCmd) measure(ctx context.Context, cfg *study.Config, flags *engineFlags, s *streams) (*record.Study, error) {
	st, err := openStack(ctx, flags, ears{}, s.err)
	if err != nil {
		return nil, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := st.shutdown(ctx); err != nil {
			fmt.Fprintf(s.err, "larder: closing: %v\n", err)
		}
	}()
	fmt.Fprintln(s.err, "measuring this machine's ceilings")
	ceilings, err := st.device.Ceilings()
	if err != nil {
		return nil, err
	}
	tap := study.NewTap(st.engine)
	url, stop, err := serveLoopback(st, tap, flags.ModelPath)
	if err != nil {
		return nil, err
	}
	defer stop()

	rows, reason := transferRows(ctx, st, cfg, ceilings)
	line := newProgress(s.err, "study")
	defer line.done()
	env := study.Env{
		BaseURL: url, Driver: study.DriverFunc(loadgen.Run), Placer: st.engine, Control: st.engine, Tap: tap,
		Tool: "larder " + version, Host: hostInfo(), Device: st.device.Info(), Ceilings: ceilings,
		Model: st.config, FullLayers: st.full, Weights: st.weights, WeightBytes: st.bytes, Roofline: st.config,
		Layout: st.layout, WritePolicy: flags.HicacheWrite, KV: rows, KVReason: reason, Progress: barProgress{line},
	}
	return study.Run(ctx, *cfg, env)
}

// serveLoopback serves a stack on a free port of the loopback interface.
func serveLoopback(st *stack, tap *study.Tap, name string) (url string, stop func(), err error) {
	srv, err := server.New(server.Config{ServedModelName: name, Version: version})
	if err != nil {
		return "", nil, err
	}
	err = srv.Attach(server.Backend{Generator: tap, Control: st.engine, Model: server.Model{
		Path: name, LoadFormat: "dummy", Type: modelType(st.config), Architectures: []string{st.config.Architecture},
		VocabSize: st.config.VocabSize, ContextLength: st.context, MaxTotal: st.cache.DeviceBlocks * st.layout.BlockTokens,
		TokenizerNote: "the study sends exact token ids",
	}})
	if err != nil {
		return "", nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	web := srv.HTTPServer()
	go web.Serve(listener) // ends with Close; a failure before that shows as refused connections in the study
	return "http://" + listener.Addr().String(), func() { web.Close() }, nil
}

// studyHostBytes is the most host memory that a transfer row takes beside the tier's.
const studyHostBytes = 16 << 30

// transferRows measures the bare transfer of each batch's prefixes, as the document does, before anything is served.
func transferRows(ctx context.Context, st *stack, cfg *study.Config, ceilings []device.Ceiling) ([]record.KVRow, string) {
	var rows []record.KVRow
	table, err := copyTable(st.device, st.device.Info())
	if err != nil {
		return nil, err.Error()
	}
	for _, batch := range cfg.BatchSizes {
		k := kvbench.Config{
			Layout: st.layout, Tokens: cfg.SharedLen(cfg.HitRate, st.layout.BlockTokens), Requests: batch,
			InFlight: min(batch, 8), Batches: 20, Seed: cfg.Seed, Ceilings: ceilings, Table: table,
		}
		if err := fitHost(&k, st.device.Info().Kind, studyHostBytes); err != nil {
			return rows, err.Error()
		}
		res, err := kvbench.Run(ctx, st.device, k)
		if err != nil {
			return rows, fmt.Sprintf("the transfer benchmark stopped at %d requests: %v", batch, err)
		}
		rows = append(rows, kvRow(res))
	}
	return rows, ""
}

// write saves record and page, and prints the table and their paths.
func (c *studyCmd) write(rec *record.Study, s *streams) error {
	data, page := filepath.Join(c.Out, "study.json"), filepath.Join(c.Out, "report.html")
	if err := writeFile(data, func(f *os.File) error { return record.Encode(f, rec) }); err != nil {
		return err
	}
	if err := writeFile(page, func(f *os.File) error { return report.HTML(f, rec) }); err != nil {
		return err
	}
	if err := report.Text(s.out, rec); err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\n%s\n%s\n", data, page)
	return nil
}

// writeFile writes a whole file or none.
func writeFile(path string, fill func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed, which is well
	if err := errors.Join(fill(f), f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}

// barProgress shows a study's progress on a bar.
type barProgress struct{ line *progress }

// Update implements study.Progress.
func (b barProgress) Update(u study.Update) {
	b.line.update(u.Fraction, fmt.Sprintf("%s left  %s", u.ETA.Round(time.Second), u.Phase))
}

func hostInfo() record.Host {
	return record.Host{OS: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU(), GoVersion: runtime.Version()}
}
