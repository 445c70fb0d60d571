package model

import (
	"testing"

	"larder/internal/arch"
	"larder/internal/model/modeltest"
)

// BenchmarkLoadDummy makes the weights of one layer of Qwen3-30B-A3B with embedding and head: 2.5 GB.
func BenchmarkLoadDummy(b *testing.B) {
	cfg, _ := arch.Builtin("qwen3-30b-a3b")
	cfg, err := cfg.WithLayers(1)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(cfg.WeightBytes())
	for b.Loop() {
		loadOnce(b, cfg, Dummy(cfg, 1))
	}
}

// BenchmarkLoadCheckpoint loads 270 MB of shards that are in the page cache.
func BenchmarkLoadCheckpoint(b *testing.B) {
	cfg := modeltest.MoE()
	cfg.HiddenSize, cfg.NumLayers, cfg.NumExperts, cfg.MoEIntermediateSize, cfg.VocabSize = 1024, 3, 32, 512, 16384
	dir := b.TempDir()
	if err := modeltest.WriteSharded(dir, cfg, 1, 4); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(cfg.WeightBytes())
	for b.Loop() {
		src, err := OpenCheckpoint(dir)
		if err != nil {
			b.Fatal(err)
		}
		loadOnce(b, cfg, src)
		if err := src.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// loadOnce loads onto a device of its own, which goes with its weights.
func loadOnce(b *testing.B, cfg *arch.Config, src Source) {
	b.Helper()
	dev := openCPU(b, arch.BF16)
	if _, err := Load(b.Context(), dev, cfg, src, nil); err != nil {
		b.Fatal(err)
	}
	if err := dev.Close(); err != nil {
		b.Fatal(err)
	}
}
