package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"larder/internal/device"
	"larder/internal/infer"
)

// idleRunner computes nothing, so what is left is the engine's own time.
type idleRunner struct{ draws []int }

func (r *idleRunner) Launch(b *device.Batch) error {
	n := 0
	for i := range b.Seqs {
		if b.Seqs[i].Draw != nil {
			n++
		}
	}
	r.draws = append(r.draws, n)
	return nil
}

func (r *idleRunner) Wait() ([]int32, error) {
	n := r.draws[0]
	r.draws = slices.Delete(r.draws, 0, 1)
	return fives[:n], nil
}

var fives = slices.Repeat([]int32{5}, 1024)

func benchEngine(b *testing.B, running, deviceBlocks int) *Engine {
	s := setup{blockTokens: 64, deviceBlocks: deviceBlocks, stepTokens: 8192, running: running}
	cfg, _, _, _ := s.config(1)
	cfg.Runner, cfg.CheckSteps, cfg.Listener, cfg.ContextLen = &idleRunner{}, false, Listener{}, 1<<30
	e, err := New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	e.Start()
	b.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return e
}

// BenchmarkDecode makes b.N tokens in steps of batch sequences each; readers take their tokens meanwhile.
func BenchmarkDecode(b *testing.B) {
	for _, batch := range []int{1, 8, 64} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			steps := b.N/batch + 1
			e := benchEngine(b, batch, batch*(steps/64+4))
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range batch {
				wg.Go(func() {
					q := newRequest("", tokens(i, 64), steps)
					if _, err := e.Generate(context.Background(), q, func(infer.Event) error { return nil }); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			seconds := b.Elapsed().Seconds()
			b.ReportMetric(float64(batch*steps)/seconds, "rows/s")
			b.ReportMetric(seconds/float64(steps)*1e6, "us/step")
		})
	}
}

// BenchmarkRequest is the cost of a whole request, all but the last block of its prompt cached, with one new token.
func BenchmarkRequest(b *testing.B) {
	for _, n := range []int{1024, 10240} {
		b.Run(fmt.Sprint("tokens=", n), func(b *testing.B) {
			e := benchEngine(b, 16, 4096)
			prompt := tokens(3, n)
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if _, err := e.Generate(context.Background(), newRequest("", prompt, 1), func(infer.Event) error { return nil }); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}
