package kvbench

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/kv/xfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLayout has blocks of 36 bytes: they do not end at a word.
var testLayout = kv.Layout{Layers: 3, KVHeads: 1, HeadDim: 3, BlockTokens: 1, DType: arch.BF16}

func small() Config {
	return Config{Layout: testLayout, Tokens: 5, Requests: 7, InFlight: 3, Batches: 4, Seed: 1}
}

func mustFind(t *testing.T, p *Phase, name string) Metric {
	t.Helper()
	m, ok := p.Find(name)
	if !ok {
		t.Fatalf("%v has no %s", p.Direction, name)
	}
	return m
}

// TestRun measures for real, with blocks in runs and scattered, with fewer requests than may move at once and with more.
func TestRun(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"runs":                 func(*Config) {},
		"scattered":            func(c *Config) { c.Scatter = true },
		"layer by layer":       func(c *Config) { c.Layered = true },
		"layers scattered":     func(c *Config) { c.Layered, c.Scatter = true, true },
		"two host regions":     func(c *Config) { c.Regions = 2 },
		"two for all at once":  func(c *Config) { c.Regions, c.InFlight = 2, 7 },
		"one host region":      func(c *Config) { c.Regions, c.Scatter = 1, true },
		"more regions than it": func(c *Config) { c.Regions = 100 },
		"2d":                   func(c *Config) { c.Method = xfer.Rows },
		"one at a time":        func(c *Config) { c.InFlight = 1 },
		"all at once":          func(c *Config) { c.InFlight = 100 },
		"one request":          func(c *Config) { c.Requests, c.Tokens = 1, 1 },
		"a block of many":      func(c *Config) { c.Layout.BlockTokens = 4 },
	} {
		t.Run(name, func(t *testing.T) {
			c := small()
			change(&c)
			steps := 0
			c.Progress = func(done, total int) {
				if steps++; done != steps || total != 3*c.Batches {
					t.Errorf("step %d is reported as %d of %d", steps, done, total)
				}
			}
			res, err := Run(t.Context(), newMemory(t), c)
			if err != nil {
				t.Fatal(err)
			}
			if steps != 3*c.Batches || len(res.Phases) != 3 || len(res.Checks) != 10 {
				t.Fatalf("%d steps, %d phases, %d checks", steps, len(res.Phases), len(res.Checks))
			}
			for i, d := range []Direction{Load, Store, Duplex} {
				p, ways := &res.Phases[i], 1
				if d == Duplex {
					ways = 2
				}
				pieces := ways * c.Batches * c.Requests
				switch {
				case c.Scatter:
					pieces *= c.units()
				case c.Layered:
					pieces *= c.Layout.Layers
				}
				if want := int64(ways*c.Batches*c.Requests) * c.BytesPerRequest(); p.Direction != d || p.Bytes != want || p.Pieces != pieces {
					t.Errorf("%v: %d bytes in %d copies, want %d in %d", p.Direction, p.Bytes, p.Pieces, want, pieces)
				}
				if n := len(mustFind(t, p, "e2e_ms").Samples); n != c.Batches*c.Requests {
					t.Errorf("%v: %d samples of e2e", d, n)
				}
				if m := mustFind(t, p, makespanName); len(m.Samples) != c.Batches {
					t.Errorf("%v: %d samples of the makespan", d, len(m.Samples))
				}
				for _, in := range mustFind(t, p, "in_flight").Samples {
					if in <= 0 || in > float64(c.inFlight())+1e-9 {
						t.Errorf("%v: %g requests were in flight of %d", d, in, c.inFlight())
					}
				}
			}
		})
	}
}

// TestScattered: whatever the shuffle brings together by chance, each block is a copy of its own.
func TestScattered(t *testing.T) {
	m := newMemory(t)
	for seed := range uint64(20) {
		c := small()
		c.Scatter, c.Seed, c.Batches = true, seed, 1
		res, err := Run(t.Context(), m, c)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := res.Phases[2].Pieces, 2*c.Requests*c.BlocksPerRequest(); got != want {
			t.Errorf("seed %d: %d copies of %d blocks", seed, got, want)
		}
	}
}

// TestChecksCatch proves that a mover that lies is found out: by which check, in which phase.
func TestChecksCatch(t *testing.T) {
	for name, c := range map[string]struct {
		stream string
		fault  fault
		want   string
	}{
		"loads do nothing":         {"kv load", skip, "load alone: what was loaded is what the host held: request"},
		"stores do nothing":        {"kv store", skip, "store alone: what was stored is what the device held: request 0, block 0"},
		"a byte is missing":        {"kv load", short, "load alone: what was loaded"},
		"a stored byte is missing": {"kv store", short, "store alone: what was stored"},
		"another block":            {"kv load", crossed, "load alone: what was loaded"},
		"another block is stored":  {"kv store", crossed, "store alone: what was stored"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(t)
			m.stream, m.fault = c.stream, c.fault
			res, err := Run(t.Context(), m, small())
			if !errors.Is(err, ErrChecks) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("run says %v", err)
			}
			if res == nil || len(res.Phases) != 3 {
				t.Fatal("the result does not come with the error")
			}
		})
	}
}

// TestDuplexIsCheckedAnew: what an earlier phase moved rightly does not hide that the last one moved nothing.
func TestDuplexIsCheckedAnew(t *testing.T) {
	for _, stream := range []string{"kv load", "kv store"} {
		m := newMemory(t)
		phases := 0
		m.stream = stream
		c := small()
		c.InFlight = 1 // so that each phase ends with the same request
		c.Progress = func(done, _ int) { phases = done / c.Batches }
		m.fault = func(s device.Stream, dst device.Buffer, dstOff int64, src device.Buffer, srcOff, n int64) {
			if phases < 2 {
				s.Copy(dst, dstOff, src, srcOff, n)
			}
		}
		if _, err := Run(t.Context(), m, c); !errors.Is(err, ErrChecks) || !strings.Contains(err.Error(), "duplex: what was") {
			t.Errorf("%s stops in the third phase: %v", stream, err)
		}
	}
}

// TestMiscounted: a byte more or less than planned, or than bandwidth x time gives, fails the checks of counts.
func TestMiscounted(t *testing.T) {
	c := Config{Layout: testLayout, Tokens: 1, Requests: 1, InFlight: 1, Batches: 1}
	b := []batch{{requests: []request{{store: copied(c.BytesPerRequest(), 10, 20)}}}}
	for _, tc := range []struct {
		moved         int64
		planned, rate bool
	}{{36, true, true}, {35, false, false}, {72, false, false}, {0, false, false}} {
		r := &rig{cfg: c, moved: tc.moved}
		if got := r.countCheck(Store, b); got.OK != tc.planned {
			t.Errorf("%d bytes moved: %+v", tc.moved, got)
		}
		if got := r.rateCheck(Store, b); got.OK != tc.rate {
			t.Errorf("%d bytes moved: %+v", tc.moved, got)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Run("a copy fails", func(t *testing.T) {
		m := newMemory(t)
		m.stream, m.fault = "kv store", outside
		res, err := Run(t.Context(), m, small())
		if err == nil || !strings.Contains(err.Error(), "from device to host") || errors.Is(err, ErrChecks) || len(res.Phases) != 1 {
			t.Errorf("run says %v", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := small()
		c.Progress = func(done, _ int) {
			if done == c.Batches+1 {
				cancel()
			}
		}
		res, err := Run(ctx, newMemory(t), c)
		if !errors.Is(err, context.Canceled) || len(res.Phases) != 1 || res.Phases[0].Direction != Load {
			t.Errorf("run says %v", err)
		}
	})
	t.Run("no memory", func(t *testing.T) {
		for call, want := range map[int]string{1: "device pool of 30 blocks", 2: "host pool of 70 blocks", 3: ""} {
			m := newMemory(t)
			m.refuse = func(n int) error {
				if n == call {
					return errRefused
				}
				return nil
			}
			if _, err := Run(t.Context(), m, small()); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), want) {
				t.Errorf("call %d: run says %v", call, err)
			}
		}
	})
	t.Run("opaque memory", func(t *testing.T) {
		m := newMemory(t)
		m.opaque = true
		if _, err := Run(t.Context(), m, small()); err == nil || !strings.Contains(err.Error(), "contents could not be checked") {
			t.Errorf("run says %v", err)
		}
	})
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"at least 1":   func(c *Config) { c.Tokens = 0 },
		"requests":     func(c *Config) { c.Requests = -1 },
		"in-flight":    func(c *Config) { c.InFlight = 0 },
		"batches":      func(c *Config) { c.Batches = 0 },
		"power of two": func(c *Config) { c.Layout.BlockTokens = 3 },
		"layers":       func(c *Config) { c.Layout.Layers = 0 },
	} {
		c := small()
		change(&c)
		if _, err := Run(t.Context(), nil, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: run says %v", want, err)
		}
	}
}

// TestDocumentsBytes: the document's 9,216 shared tokens are 864 MiB of Qwen3-30B-A3B's KV each way, 18 in one layer.
func TestDocumentsBytes(t *testing.T) {
	l := kv.Layout{Layers: 48, KVHeads: 4, HeadDim: 128, BlockTokens: 64, DType: arch.BF16}
	c := Config{Layout: l, Tokens: 9216, Requests: 64, InFlight: 8, Batches: 1}
	if got := c.BytesPerRequest(); got != 864<<20 {
		t.Errorf("%d bytes over 48 layers", got)
	}
	c.Layout.Layers = 1
	if got := c.BytesPerRequest(); got != 18<<20 || c.BlocksPerRequest() != 144 || c.DeviceBlocks() != 2*8*144 || c.HostBlocks() != 2*64*144 {
		t.Errorf("%d bytes in %d blocks; pools of %d and %d", got, c.BlocksPerRequest(), c.DeviceBlocks(), c.HostBlocks())
	}
	c.Tokens = 9217 // whole blocks are moved
	if c.BlocksPerRequest() != 145 {
		t.Errorf("%d blocks", c.BlocksPerRequest())
	}
}

// TestJSON pins the shape that docs/kvbench.md describes.
func TestJSON(t *testing.T) {
	res, err := Run(t.Context(), newMemory(t), small())
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Config struct {
			Layout   map[string]any
			Tokens   int
			InFlight int `json:"in_flight"`
			Ceilings []device.Ceiling
		}
		Phases []struct {
			Direction string
			Bytes     int64
			Pieces    int
			Metrics   []struct {
				Name, Unit     string
				N              int
				Mean, P50, P99 *float64
				Share          *float64
				Samples        []float64
			}
		}
		Checks []Check
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if got.Config.InFlight != 3 || len(got.Checks) != 10 || got.Phases[2].Direction != "duplex" || got.Phases[0].Direction != "load alone" {
		t.Errorf("%s", b)
	}
	m := got.Phases[2].Metrics[0]
	if m.Name != "load_span_ms" || m.Unit != "ms" || m.N != 28 || len(m.Samples) != 28 || m.Mean == nil || m.P50 == nil || m.P99 == nil || m.Share != nil {
		t.Errorf("%+v", m)
	}
}
