package xfer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu"
	"larder/internal/kv"
)

// BenchmarkMove moves 9,216 tokens of one layer of Qwen3-30B-A3B, 144 blocks of 128 KiB, on the CPU device: loaded,
// stored, both at once; in runs of neighbours and block by block. "copy" is the ceiling: the same bytes by plain copies.
func BenchmarkMove(b *testing.B) {
	const blocks, requests = 144, 16 // many requests, so that no cache holds them
	l := kv.Layout{Layers: 1, KVHeads: 4, HeadDim: 128, BlockTokens: 64, DType: arch.BF16}
	dev, err := cpu.New(cpu.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	size := int64(2*blocks*requests) * l.BlockBytes()
	pool, err := dev.Alloc(size)
	host, err2 := dev.AllocHost(size)
	if err := errors.Join(err, err2); err != nil {
		b.Fatal(err)
	}
	defer pool.Free()
	defer host.Free()
	to, from := pool.(device.Mapped).Bytes(), host.(device.Mapped).Bytes()
	for i := int64(0); i < size; i += 4096 { // the system gives pages when they are written
		to[i], from[i] = 1, 1
	}
	one := int64(blocks) * l.BlockBytes()
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(one)
		for i := int64(0); b.Loop(); i = (i + 1) % requests {
			copy(to[i*one:][:one], from[i*one:][:one])
		}
	})
	for _, way := range []string{"load", "store", "duplex"} {
		for _, run := range []int{blocks, 1} {
			b.Run(fmt.Sprintf("%s/run=%d", way, run), func(b *testing.B) {
				m, err := New(Config{Layout: l, Memory: dev, DevicePool: pool, HostPool: host, MaxPieceBytes: int64(run) * l.BlockBytes()})
				if err != nil {
					b.Fatal(err)
				}
				defer m.Close()
				var moves [requests][]kv.Move
				for r := range moves {
					moves[r] = request(way, r*2*blocks, blocks)
				}
				b.SetBytes(int64(len(moves[0])) * l.BlockBytes())
				b.ReportAllocs()
				var submit time.Duration
				for i := 0; b.Loop(); i = (i + 1) % requests {
					began := time.Now()
					m.Submit(moves[i])
					submit += time.Since(began)
					for m.Pending() > 0 {
						<-m.Notify()
						m.Poll(func(_ kv.Move, err error) {
							if err != nil {
								b.Fatal(err)
							}
						})
					}
				}
				b.ReportMetric(float64(submit.Microseconds())/float64(b.N), "submit-us/op")
			})
		}
	}
}

// request is n moves each way that it names, from block first on.
func request(way string, first, n int) (moves []kv.Move) {
	for i := range n {
		lower, upper := kv.BlockID(first+i), kv.BlockID(first+n+i)
		if way != "store" {
			moves = append(moves, kv.Move{ID: kv.MoveID(2 * i), From: kv.Host, To: kv.Device, Src: lower, Dst: lower})
		}
		if way != "load" {
			moves = append(moves, kv.Move{ID: kv.MoveID(2*i + 1), From: kv.Device, To: kv.Host, Src: upper, Dst: upper})
		}
	}
	return moves
}
