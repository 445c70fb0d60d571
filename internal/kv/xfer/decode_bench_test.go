package xfer_test

import (
	"context"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/kv/xfer"
	"larder/internal/model"
	"larder/internal/sample"
)

// decoding is one layer of Qwen3-30B-A3B that decodes 64 sequences of 1,024 tokens, and a host tier.
type decoding struct {
	dev    device.Device
	layout kv.Layout
	model  *model.Model
	batch  device.Batch
	pool   device.Buffer
	host   device.Buffer
	blocks int // of each pool
}

const (
	decodeSeqs    = 64
	decodeContext = 1024
)

func newDecoding(b *testing.B) *decoding {
	dev := openCUDA(b)
	cfg, _ := arch.Builtin("qwen3-30b-a3b")
	cfg, err := cfg.WithLayers(1)
	if err != nil {
		b.Fatal(err)
	}
	d := &decoding{dev: dev, layout: kv.LayoutOf(cfg, 64, arch.BF16), blocks: 8192} // 1 GiB
	w, err := model.Load(context.Background(), dev, cfg, model.Dummy(cfg, 1), nil)
	if err != nil {
		b.Fatal(err)
	}
	if d.pool, err = dev.Alloc(int64(d.blocks) * d.layout.BlockBytes()); err != nil {
		b.Fatal(err)
	}
	if d.host, err = dev.AllocHostSlowly(int64(d.blocks)*d.layout.BlockBytes(), func(int64) {}); err != nil {
		b.Fatal(err)
	}
	d.model, err = model.New(dev, w, device.ComputeSpec{Config: cfg, Layout: d.layout, KV: d.pool, MaxTokens: 256, MaxSeqs: decodeSeqs})
	if err != nil {
		b.Fatal(err)
	}
	for i := range decodeSeqs {
		s := device.Seq{Context: decodeContext, Tokens: 1, Draw: &sample.Draw{Params: sample.Params{TopP: 1}}}
		for j := range d.layout.Blocks(decodeContext + 1) {
			s.Blocks = append(s.Blocks, kv.BlockID(i*d.layout.Blocks(decodeContext+1)+j))
		}
		d.batch.IDs = append(d.batch.IDs, int32(i))
		d.batch.Seqs = append(d.batch.Seqs, s)
	}
	b.Cleanup(func() {
		if err := d.model.Close(); err != nil {
			b.Error(err)
		}
		if err := dev.Close(); err != nil {
			b.Error(err)
		}
	})
	return d
}

// BenchmarkDecodeBesideMoves decodes while KV moves the whole time: nothing, stores, loads, both, by each method. moved
// is what moved meanwhile.
func BenchmarkDecodeBesideMoves(b *testing.B) {
	d := newDecoding(b)
	free := decodeSeqs * d.layout.Blocks(decodeContext+1) // blocks from here on are not the model's
	for _, m := range []xfer.Method{xfer.Batch, xfer.Kernel} {
		for _, what := range []string{"alone", "stores", "loads", "both"} {
			if what == "alone" && m != xfer.Batch {
				continue
			}
			b.Run(m.String()+"/"+what, func(b *testing.B) { d.beside(b, m, what, free) })
		}
	}
}

func (d *decoding) beside(b *testing.B, m xfer.Method, what string, free int) {
	mover, err := xfer.New(xfer.Config{Layout: d.layout, Memory: d.dev, DevicePool: d.pool, HostPool: d.host, Method: m, MaxPieceBytes: d.layout.BlockBytes()})
	if err != nil {
		b.Fatal(err)
	}
	var id kv.MoveID
	submit := func() { // half a gigabyte each way
		var moves []kv.Move
		n := (d.blocks - free) / 2
		for i := range n {
			id += 2
			if what != "stores" {
				moves = append(moves, kv.Move{ID: id, From: kv.Host, To: kv.Device, Src: kv.BlockID(i), Dst: kv.BlockID(free + (i*7)%n)})
			}
			if what != "loads" {
				moves = append(moves, kv.Move{ID: id + 1, From: kv.Device, To: kv.Host, Src: kv.BlockID(free + n + (i*7)%n), Dst: kv.BlockID(free + i)})
			}
		}
		mover.Submit(moves)
	}
	step := func() {
		if err := d.model.Launch(&d.batch); err != nil {
			b.Fatal(err)
		}
		if _, err := d.model.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	poll := func() {
		mover.Poll(func(_ kv.Move, err error) {
			if err != nil {
				b.Fatal(err)
			}
		})
	}
	step()
	bytes := func() uint64 { return mover.Stats(kv.Device).Bytes + mover.Stats(kv.Host).Bytes }
	before, began := bytes(), time.Now()
	for b.Loop() {
		if what != "alone" && mover.Pending() < d.blocks/4 {
			submit()
		}
		step()
		poll()
	}
	took := time.Since(began)
	b.ReportMetric(float64(bytes()-before)/took.Seconds()/(1<<30), "moved-GiB/s")
	if err := mover.Close(); err != nil {
		b.Fatal(err)
	}
	poll()
}
