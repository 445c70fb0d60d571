package cache

import (
	"testing"

	"larder/internal/arch"
	"larder/internal/kv"
)

const promptTokens, promptHits = 10240, 9216

func benchCache(b *testing.B, device int) *Cache {
	c, err := New(Config{
		Layout:       kv.Layout{Layers: 48, KVHeads: 4, HeadDim: 128, BlockTokens: 64, DType: arch.BF16},
		DeviceBlocks: device, HostBlocks: 2 * device,
	})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

func benchPrompt(seed int32) []int32 {
	p := make([]int32, promptTokens)
	for i := range p {
		p[i] = seed*31 + int32(i)*7
	}
	return p
}

// serve runs a prompt as the scheduler does, and lets all moves succeed.
func serve(b *testing.B, c *Cache, p []int32) {
	c.Lookup("", p)
	l, err := c.Open("", p, len(p))
	if err == nil {
		err = l.Extend(len(p))
	}
	if err != nil {
		b.Fatal(err)
	}
	land(c)
	l.Commit(p, len(p))
	land(c)
	l.Close()
}

func land(c *Cache) {
	for _, m := range c.Moves() {
		c.Done(m.ID, nil)
	}
}

// BenchmarkLookup looks up prompts of 10,240 tokens in turn, all of them known: no key is remembered.
func BenchmarkLookup(b *testing.B) {
	c := benchCache(b, 1000)
	prompts := [][]int32{benchPrompt(1), benchPrompt(2)}
	for _, p := range prompts {
		serve(b, c, p)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Lookup("", prompts[i%2])
	}
}

// BenchmarkOpen opens and closes a prompt of 10,240 tokens that is known, after it was looked up.
func BenchmarkOpen(b *testing.B) {
	c := benchCache(b, 1000)
	p := benchPrompt(1)
	serve(b, c, p)
	b.ReportAllocs()
	for b.Loop() {
		c.Lookup("", p)
		l, err := c.Open("", p, 0)
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
	}
}

// BenchmarkServe takes a prompt of 10,240 tokens, of which 9,216 are known, from lookup to close, stores included.
func BenchmarkServe(b *testing.B) {
	c := benchCache(b, 1000)
	p := benchPrompt(1)
	serve(b, c, p)
	b.ReportAllocs()
	for i := int32(0); b.Loop(); i++ {
		for j := promptHits; j < len(p); j++ {
			p[j] = -i
		}
		serve(b, c, p)
	}
}

// BenchmarkServeFull does the same with nothing known, in a device tier of 100,000 blocks that is full, so that every
// block must be evicted and stored.
func BenchmarkServeFull(b *testing.B) {
	c := benchCache(b, 100_000)
	p := benchPrompt(1)
	n := int32(0)
	for range 100_000 / (promptTokens / 64) {
		n++
		p[0] = -n
		serve(b, c, p)
	}
	b.ReportAllocs()
	for b.Loop() {
		n++
		p[0] = -n
		serve(b, c, p)
	}
}
