package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu"
	"larder/internal/device/cuda"
	"larder/internal/engine"
	"larder/internal/kv"
	"larder/internal/kv/cache"
	"larder/internal/kv/xfer"
	"larder/internal/model"
	"larder/internal/sched"
)

// stack is everything below the HTTP edge, wired and running. close undoes it in order.
type stack struct {
	device  device.Device
	config  *arch.Config // as served, after any cut of layers
	full    int          // layers before the cut
	weights string       // "dummy" or the checkpoint's folder
	bytes   int64        // of the weights on the device
	layout  kv.Layout
	cache   cache.Config
	context int // longest request in tokens
	engine  *engine.Engine

	closers []func() error
}

// ears hear what an engine and its mover do, on the engine's goroutine; both may be empty.
type ears struct {
	engine engine.Listener
	copies func(xfer.CopyRecord)
}

// openDevice opens the machine that the flags name. auto takes a GPU where there is one that works, and says on log why
// it does not otherwise.
func openDevice(f *engineFlags, log io.Writer) (device.Device, error) {
	if f.Device == "cuda" || f.Device == "auto" && cuda.Present() {
		if f.DType == "float32" {
			return nil, usagef("--dtype float32: the CUDA device computes in bfloat16; use --device cpu")
		}
		gpu, err := cuda.New(cuda.Config{LibraryPath: os.Getenv("LARDER_CUDA_PATH"), CacheDir: cuda.DefaultCacheDir()})
		switch {
		case err == nil:
			return gpu, nil
		case f.Device == "cuda":
			return nil, usageError{fmt.Errorf("--device cuda: %w", err)}
		}
		fmt.Fprintf(log, "the CPU computes, because the GPU cannot be used: %v\n", err)
	}
	dev, err := cpu.New(cpu.Config{Threads: f.Threads, Kernels: f.Kernels, DType: f.dtype()})
	if err != nil {
		return nil, usageError{err}
	}
	return dev, nil
}

func (f *engineFlags) dtype() arch.DType {
	if f.DType == "float32" {
		return arch.F32
	}
	return arch.BF16
}

// resolveModel finds the config and the source of weights that the flags name, with layers cut as asked.
func resolveModel(f *engineFlags) (cfg *arch.Config, full int, src model.Source, err error) {
	if builtin, ok := arch.Builtin(f.ModelPath); ok {
		if f.LoadFormat == "safetensors" {
			return nil, 0, nil, usagef("--model-path %s is a built-in config without weights: use --load-format dummy", f.ModelPath)
		}
		cfg = builtin
	} else if cfg, err = arch.Load(f.ModelPath); err != nil {
		return nil, 0, nil, usagef("--model-path %s: %v (built-in names: %v)", f.ModelPath, err, arch.BuiltinNames())
	} else if f.LoadFormat != "dummy" {
		if src, err = model.OpenCheckpoint(f.ModelPath); err != nil {
			return nil, 0, nil, usageError{err}
		}
	}
	full = cfg.NumLayers
	if f.NumLayers > full {
		return nil, 0, nil, usagef("--num-layers %d: %s has %d", f.NumLayers, cfg.Name, full)
	}
	if f.NumLayers > 0 {
		if cfg, err = cfg.WithLayers(f.NumLayers); err != nil {
			return nil, 0, nil, usageError{err}
		}
	}
	if src == nil {
		src = model.Dummy(cfg, f.Seed)
	}
	return cfg, full, src, nil
}

// openStack loads a model and starts an engine. What it prints on log is for people.
func openStack(ctx context.Context, f *engineFlags, hear ears, log io.Writer) (_ *stack, err error) {
	if err := f.validate(); err != nil {
		return nil, err
	}
	s := &stack{weights: "dummy"}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	var src model.Source
	if s.config, s.full, src, err = resolveModel(f); err != nil {
		return s, err
	}
	if _, dummy := arch.Builtin(f.ModelPath); !dummy && f.LoadFormat != "dummy" {
		s.weights = filepath.Base(f.ModelPath)
	}
	if s.device, err = openDevice(f, log); err != nil {
		return s, err
	}
	s.closers = append(s.closers, s.device.Close)
	weights, err := loadWeights(ctx, s, src, log)
	err = errors.Join(err, src.Close())
	if err != nil {
		return s, impossible(ctx, err)
	}
	return s, impossible(ctx, s.start(f, weights, hear, log))
}

// impossible marks a failed start as a matter of flags, files or the machine, unless the user ended it.
func impossible(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	return usageError{err}
}

// loadWeights puts the weights on the device, with a progress line.
func loadWeights(ctx context.Context, s *stack, src model.Source, log io.Writer) (*model.Weights, error) {
	line := newProgress(log, "weights")
	defer line.done()
	w, err := model.Load(ctx, s.device, s.config, src, func(done, total int64) {
		line.update(float64(done)/float64(total), fmt.Sprintf("%.2f of %.2f GB", float64(done)/1e9, float64(total)/1e9))
	})
	if err != nil {
		return nil, err
	}
	s.bytes = w.Bytes()
	return w, nil
}

// start makes pools, mover, model and engine, and starts the engine.
func (s *stack) start(f *engineFlags, w *model.Weights, hear ears, log io.Writer) error {
	s.layout = f.layout(s.config)
	s.context = s.config.MaxPositions
	if f.ContextLength > 0 {
		s.context = min(f.ContextLength, s.config.MaxPositions)
	}
	if f.ContextLength > s.config.MaxPositions {
		return usagef("--context-length %d: %s goes to %d", f.ContextLength, s.config.Name, s.config.MaxPositions)
	}
	s.cache = cache.Config{
		Layout:       s.layout,
		Fingerprint:  fmt.Sprintf("%s/%d layers/%s/seed %d/%+v", s.config.Name, s.config.NumLayers, s.weights, f.Seed, s.layout),
		DeviceBlocks: deviceBlocks(f, s.layout, s.device.Info(), s.bytes),
		Write:        f.writePolicy(),
		Eviction:     f.Eviction,
		NoPrefix:     f.DisableRadix,
	}
	s.cache.MaxStoring = max(s.cache.DeviceBlocks/4, 1) // so that what runs finds room while stores wait
	if f.Hierarchical {
		s.cache.HostBlocks = hostBlocks(f, s.layout, s.cache.DeviceBlocks)
		need := int64(s.cache.HostBlocks) * s.layout.BlockBytes()
		if s.device.Info().Kind == "cuda" {
			if err := checkHostBytes(need, "/", "give --hicache-size, a lower --hicache-ratio or --max-total-tokens"); err != nil {
				return err
			}
		}
	}
	pool, mover, err := s.pools(hear.copies, log)
	if err != nil {
		return err
	}
	rows := max(f.chunk(s.device.Info().Kind), f.MaxRunning)
	m, err := model.New(s.device, w, device.ComputeSpec{Config: s.config, Layout: s.layout, KV: pool, MaxTokens: rows, MaxSeqs: f.MaxRunning})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, m.Close)
	cfg := engine.Config{
		Runner: m, Vocab: s.config.VocabSize, ContextLen: s.context, EOS: s.config.EOSTokenIDs,
		Cache: s.cache, MaxRunning: f.MaxRunning, MaxQueued: f.MaxQueued, StepTokens: rows,
		Overlap:    !f.DisableOverlap,
		CheckSteps: f.CheckInvariants, Listener: hear.engine,
	}
	if f.SchedulePolicy == "lpm" {
		cfg.Policy = sched.LPM
	}
	if mover != nil {
		cfg.Mover = mover
	}
	if s.engine, err = engine.New(cfg); err != nil {
		return usageError{err}
	}
	s.engine.Start()
	info := s.device.Info()
	origin := "made-up weights"
	if s.weights != "dummy" {
		origin = "weights from " + s.weights
	}
	fmt.Fprintf(log, "%s: %d of %d layers, %s, on %s (%s, %d units)\n", s.config.Name, s.config.NumLayers, s.full, origin, info.Name, info.Kernels, info.Units)
	fmt.Fprintf(log, "KV: %d tokens on the device, %d on the host, %d tokens a block, %.1f KiB a token\n",
		s.cache.DeviceBlocks*f.PageSize, s.cache.HostBlocks*f.PageSize, f.PageSize, float64(s.layout.TokenBytes())/1024)
	return nil
}

// What the mover keeps to. While loads wait, stores get a quarter of their bytes at most: a load is delayed by no more
// than a fifth where both share one path, and by less where the link is duplex. A load that has not begun when four
// times the time of all before it has passed is computed instead, and not before a quarter of a second on a GPU, which
// computes a long prompt in less, or five on a CPU, whose cores do the copies beside all else.
const (
	storeShare = 0.25
	lateTimes  = 4
)

func lateAfter(kind string) time.Duration {
	if kind == "cuda" {
		return 250 * time.Millisecond
	}
	return 5 * time.Second
}

// pools allocates the tiers and the mover between them.
func (s *stack) pools(trace func(xfer.CopyRecord), log io.Writer) (device.Buffer, *xfer.Mover, error) {
	pool, err := s.device.Alloc(int64(s.cache.DeviceBlocks) * s.layout.BlockBytes())
	if err != nil {
		return nil, nil, fmt.Errorf("device KV pool: %w", err)
	}
	s.closers = append(s.closers, pool.Free)
	if s.cache.HostBlocks == 0 {
		return pool, nil, nil
	}
	line := newProgress(log, "host KV pool")
	host, err := allocHost(s.device, int64(s.cache.HostBlocks)*s.layout.BlockBytes(), line)
	line.done()
	if err != nil {
		return nil, nil, fmt.Errorf("host KV pool: %w", err)
	}
	s.closers = append(s.closers, host.Free)
	table, err := copyTable(s.device, s.device.Info())
	if err != nil {
		return nil, nil, err
	}
	mover, err := xfer.New(xfer.Config{
		Layout: s.layout, Memory: s.device, DevicePool: pool, HostPool: host, Trace: trace, Table: table,
		StoreShare: storeShare, LateAfter: lateAfter(s.device.Info().Kind), LateTimes: lateTimes,
	})
	if err != nil {
		return nil, nil, err
	}
	s.closers = append(s.closers, mover.Close)
	return pool, mover, nil
}

// deviceBlocks sizes the device pool: as asked; or, on a GPU, what --mem-fraction-static leaves beside the weights; or,
// on a CPU, a fifth of what the weights leave, 4 GiB at most, for others live there too.
func deviceBlocks(f *engineFlags, l kv.Layout, info device.Info, weights int64) int {
	if f.MaxTotalTokens > 0 {
		return l.Blocks(f.MaxTotalTokens)
	}
	bytes := min((info.MemoryBytes-weights)/5, 4<<30)
	if info.Kind == "cuda" {
		bytes = int64(f.MemFraction*float64(info.MemoryBytes)) - weights
	}
	return max(int(bytes/l.BlockBytes()), 16)
}

func hostBlocks(f *engineFlags, l kv.Layout, deviceBlocks int) int {
	if f.HicacheSize > 0 {
		return max(int(f.HicacheSize*1e9/float64(l.BlockBytes())), 1)
	}
	return max(int(f.HicacheRatio*float64(deviceBlocks)), 1)
}

// shutdown ends the engine: requests that run may finish until ctx is done.
func (s *stack) shutdown(ctx context.Context) error {
	return errors.Join(s.engine.Close(ctx), s.close())
}

// close frees everything, newest first.
func (s *stack) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	s.closers = nil
	return errors.Join(errs...)
}

// findTokenizer is the path of tokenizer data: as asked, the checkpoint's own, or what `make data` fetched; "" when
// there is none.
func findTokenizer(asked, modelPath string) string {
	if asked != "" {
		return asked
	}
	for _, dir := range []string{modelPath, filepath.Join("data", "tokenizer"), beside("data", "tokenizer")} {
		if _, err := os.Stat(filepath.Join(dir, "tokenizer.json")); err == nil {
			return dir
		}
	}
	return ""
}

// beside is a path next to the program's folder, so that bin/larder finds the data of its checkout from anywhere.
func beside(elem ...string) string {
	exe, err := os.Executable()
	if err != nil {
		return filepath.Join(elem...)
	}
	return filepath.Join(append([]string{filepath.Dir(filepath.Dir(exe))}, elem...)...)
}

// layout is the shape of cfg's blocks.
func (f *engineFlags) layout(cfg *arch.Config) kv.Layout {
	return kv.LayoutOf(cfg, f.PageSize, f.dtype())
}
