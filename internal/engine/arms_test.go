package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cuda"
	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/kv/xfer"
	"larder/internal/model"
	"larder/internal/model/modeltest"
	"larder/internal/sample"
)

// arms runs requests on a device with their prefix recomputed, on the host, and on the device.
type arms struct {
	t        *testing.T
	dev      device.Device
	cfg      *arch.Config
	weights  *model.Weights
	requests []*infer.Request
}

const (
	armBlock   = 16 // tokens
	armLongest = 12 // blocks
	armAtOnce  = 32
)

func newArms(t *testing.T, dev device.Device, cfg *arch.Config, n int, rng *rand.Rand) *arms {
	w, err := model.Load(context.Background(), dev, cfg, model.Dummy(cfg, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	a := &arms{t: t, dev: dev, cfg: cfg, weights: w}
	for i := range n {
		tokens := make([]int32, armBlock*(2+rng.IntN(armLongest-2))+1+rng.IntN(armBlock))
		for j := range tokens {
			tokens[j] = int32(rng.IntN(cfg.VocabSize))
		}
		a.requests = append(a.requests, &infer.Request{
			ID: strconv.Itoa(i), Tokens: tokens, MaxNew: 6, IgnoreEOS: true, Sampling: sample.Params{TopP: 1},
		})
	}
	return a
}

// served is what one arm said, and how much of the prompts came from where.
type served struct {
	tokens       [][]int32
	device, host int
}

// each calls f for all requests, a few at once.
func (a *arms) each(f func(i int, q *infer.Request) error) {
	a.t.Helper()
	next := make(chan int)
	var wait sync.WaitGroup
	for range armAtOnce {
		wait.Go(func() {
			for i := range next {
				if err := f(i, a.requests[i]); err != nil {
					a.t.Errorf("request %d: %v", i, err)
				}
			}
		})
	}
	for i := range a.requests {
		next <- i
	}
	close(next)
	wait.Wait()
}

func (a *arms) serve(e *Engine) served {
	out := served{tokens: make([][]int32, len(a.requests))}
	var mu sync.Mutex
	a.each(func(i int, q *infer.Request) error {
		u, err := e.Generate(context.Background(), q, func(ev infer.Event) error {
			out.tokens[i] = append(out.tokens[i], ev.Tokens...)
			return nil
		})
		mu.Lock()
		defer mu.Unlock()
		out.device += u.Cached.Device
		out.host += u.Cached.Host
		return err
	})
	return out
}

func (a *arms) place(e *Engine, to infer.Placement) {
	a.each(func(_ int, q *infer.Request) error { return e.Place(context.Background(), "", q.Tokens, to) })
}

// with runs f on an engine that has room for all prefixes in each tier.
func (a *arms) with(noPrefix bool, f func(*Engine)) {
	a.t.Helper()
	blocks := len(a.requests)*(armLongest+2) + armAtOnce*2
	layout := kv.LayoutOf(a.cfg, armBlock, arch.BF16)
	pool, err := a.dev.Alloc(layout.BlockBytes() * int64(blocks))
	host, err2 := a.dev.AllocHost(layout.BlockBytes() * int64(blocks))
	table, err3 := xfer.Measure(a.dev, "arms")
	if err := errors.Join(err, err2, err3); err != nil {
		a.t.Fatal(err)
	}
	mover, err := xfer.New(xfer.Config{Layout: layout, Memory: a.dev, DevicePool: pool, HostPool: host, Table: table, StoreShare: 0.25})
	if err != nil {
		a.t.Fatal(err)
	}
	const step = 1024
	runner, err := model.New(a.dev, a.weights, device.ComputeSpec{Config: a.cfg, Layout: layout, KV: pool, MaxTokens: step, MaxSeqs: armAtOnce})
	if err != nil {
		a.t.Fatal(err)
	}
	cfg, _, _, _ := setup{blockTokens: armBlock, deviceBlocks: blocks, hostBlocks: blocks, stepTokens: step, running: armAtOnce, noPrefix: noPrefix}.config(1)
	cfg.Runner, cfg.Mover, cfg.Vocab, cfg.EOS, cfg.Listener, cfg.CheckSteps = runner, mover, a.cfg.VocabSize, nil, Listener{}, false
	cfg.Cache.Layout = layout
	e, err := New(cfg)
	if err != nil {
		a.t.Fatal(err)
	}
	e.Start()
	f(e)
	if err := errors.Join(e.Close(context.Background()), mover.Close(), runner.Close(), pool.Free(), host.Free()); err != nil {
		a.t.Error(err)
	}
}

// testArms: whether a prefix is computed again, loaded or found on the device, each request says the same.
func testArms(t *testing.T, dev device.Device, cfg *arch.Config, n int) {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("LARDER_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("seed %d (LARDER_SEED=%d repeats it)", seed, seed)
	a := newArms(t, dev, cfg, n, rand.New(rand.NewPCG(seed, 3)))
	var want, first, host, hbm served
	a.with(true, func(e *Engine) { want = a.serve(e) })
	a.with(false, func(e *Engine) {
		first = a.serve(e)
		a.place(e, infer.OnlyHost)
		host = a.serve(e)
		a.place(e, infer.OnlyDevice)
		hbm = a.serve(e)
	})
	prefixes := 0
	for _, q := range a.requests {
		prefixes += (len(q.Tokens) - 1) / armBlock * armBlock
	}
	t.Logf("%d requests, %d tokens of prefixes: host arm %d from the host, HBM arm %d from the device", n, prefixes, host.host, hbm.device)
	if want.host+want.device+first.host+first.device != 0 || host.host != prefixes || hbm.device != prefixes {
		t.Errorf("hits: recompute %d and %d, host arm %d and %d, HBM arm %d and %d of %d tokens",
			want.device, want.host, host.device, host.host, hbm.device, hbm.host, prefixes)
	}
	for name, got := range map[string]served{"cold": first, "host": host, "HBM": hbm} {
		if err := sameTokens(want, got); err != nil {
			t.Errorf("%s arm: %v", name, err)
		}
	}
}

func sameTokens(want, got served) error {
	bad := 0
	var which error
	for i := range want.tokens {
		if len(want.tokens[i]) == 0 || !slices.Equal(want.tokens[i], got.tokens[i]) {
			bad++
			which = fmt.Errorf("request %d said %v recomputed and %v now", i, want.tokens[i], got.tokens[i])
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d requests differ: %w", bad, len(want.tokens), which)
	}
	return nil
}

// TestArms compares the arms on the CPU device.
func TestArms(t *testing.T) {
	cfg := modeltest.MoE()
	testArms(t, newMachine(t, cfg).dev, cfg, 24)
}

// TestArmsCUDA compares 1,000 requests of one layer of Qwen3-30B-A3B on the GPU.
func TestArmsCUDA(t *testing.T) {
	dev, err := cuda.New(cuda.Config{CacheDir: filepath.Join(os.TempDir(), "larder-kernels")})
	if err != nil {
		if os.Getenv("LARDER_REQUIRE_CUDA") == "1" {
			t.Fatal(err)
		}
		t.Skip("no usable GPU: ", err)
	}
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	cfg, _ := arch.Builtin("qwen3-30b-a3b")
	if cfg, err = cfg.WithLayers(1); err != nil {
		t.Fatal(err)
	}
	testArms(t, dev, cfg, 1000)
}
