package cuda

import "fmt"

// gemmParams is struct Gemm of the kernels.
type gemmParams struct {
	a, w, c             uintptr
	order, tiles, count uintptr
	lda, ldw, ldc       int64
	expert              int64
	m, n, k, visits     int32
}

type gemmArgs struct{ P gemmParams }

func gemmName(what string, size int) string { return fmt.Sprintf("gemm_%s_%d", what, size) }

// gemmShape is a tile's columns and a block's threads.
func gemmShape(size int) (columns, threads int) {
	if size == 16 {
		return 64, 128
	}
	return 128, 128
}

// tileRows chooses the tile for so many rows that share a weight. The result does not depend on it.
func tileRows(rows int) int {
	switch {
	case rows <= 32:
		return 16
	case rows <= 96:
		return 64
	}
	return 128
}

// product is C = A Wᵀ over plain rows.
type product struct {
	a, c     uintptr
	lda, ldc int64
	w        *matrix
	m        int
}

// multiply queues a product; what is "store" or "add".
func (c *compute) multiply(what string, p product) error {
	size := tileRows(p.m)
	columns, threads := gemmShape(size)
	blocks := (p.m + size - 1) / size * ((p.w.n + columns - 1) / columns)
	return launch(c.dev, c.stream.handle, gemmName(what, size), blocks, 1, threads, &gemmArgs{gemmParams{
		a: p.a, w: p.w.b.ptr, c: p.c, lda: p.lda, ldw: int64(p.w.ld), ldc: p.ldc, m: int32(p.m), n: int32(p.w.n), k: int32(pad8(p.w.k))}})
}
