package cuda

import "fmt"

// gemmParams is struct Gemm of the kernels.
type gemmParams struct {
	a, w, c             uintptr
	order, tiles, count uintptr
	lda, ldw, ldc       int64
	expert              int64
	m, n, k, visits     int32
	rest                uintptr
	last                int64
}

type gemmArgs struct{ P gemmParams }

func gemmName(what string, size int) string { return fmt.Sprintf("gemm_%s_%d", what, size) }

// gemmShape is a tile's columns, a block's threads and its shared memory in bytes. The first number of a tile's name is
// its rows.
type gemmShape struct{ columns, threads, shared int }

// shapeOf is the shape that gemm.cu has for a target: compute capability 9.0a multiplies by warpgroups.
func shapeOf(target string, rows int) gemmShape {
	columns, threads, stages := 128, 128, 3
	switch group := target == "sm_90a"; {
	case rows == 16 && group:
		columns, stages = 64, 6
	case rows == 16:
		columns, stages = 64, 4
	case rows == 128 && group:
		columns, threads, stages = 256, 256, 4
	case group:
		stages = 4
	}
	return gemmShape{columns, threads, stages * (rows + columns) * 128}
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

// multiply queues a product; what is "store" (fp32), "store16" (bf16) or "add" (to fp32).
func (c *compute) multiply(what string, p product) error {
	if c.dev.hasMany() && p.m >= manyRows && what != "store" {
		return c.launchMany("many_"+what, (p.m+manyTile-1)/manyTile, p.a, p.w.tiles, manyParams{
			c: p.c, ldc: p.ldc, m: int32(p.m), n: int32(p.w.n), k: int32(pad8(p.w.k))})
	}
	size := tileRows(p.m)
	s := shapeOf(c.dev.target, size)
	blocks := (p.m + size - 1) / size * ((p.w.n + s.columns - 1) / s.columns)
	return launch(c.dev, c.stream.handle, gemmName(what, size), blocks, 1, s.threads, &gemmArgs{gemmParams{
		a: p.a, w: p.w.b.ptr, c: p.c, lda: p.lda, ldw: int64(p.w.ld), ldc: p.ldc, m: int32(p.m), n: int32(p.w.n), k: int32(pad8(p.w.k))}})
}

// manyParams is struct Many of gemm90.cu.
type manyParams struct {
	c, order, tiles, count uintptr
	ldc                    int64
	m, n, k, each          int32
}

type manyArgs struct {
	P    manyParams
	A, W tensorMap
}

// What gemm90.cu is made for: a cluster takes manyTile rows by manyColumns columns. It pays from manyRows rows on.
const (
	manyTile    = 256
	manyColumns = 256
	manyRows    = 512
	manyShared  = 4*(128+256)*128 + 4*16
	manyThreads = 384
)

// hasMany says that the kernels of gemm90.cu run here.
func (d *Device) hasMany() bool { return d.target == "sm_90a" }

// tileRows is tileRows where rows of experts may be many.
func (d *Device) tileRows(rows int) int {
	if d.hasMany() && rows >= manyTile/2 {
		return manyTile
	}
	return tileRows(rows)
}

// mapWeight describes a weight to the kernels of gemm90.cu: half of its columns of a tile are one box.
func (d *Device) mapWeight(b *buffer, ld int) (tensorMap, error) {
	if !d.hasMany() {
		return tensorMap{}, nil
	}
	return d.mapRows(b.ptr, b.size/int64(2*ld), ld, manyColumns/2)
}

// launchMany queues a kernel of gemm90.cu over so many tiles of rows; a is p.m rows of p.k elements.
func (c *compute) launchMany(name string, tiles int, a uintptr, w tensorMap, p manyParams) error {
	rows, err := c.dev.mapRows(a, int64(p.m), int(p.k), manyTile/2)
	if err != nil {
		return err
	}
	clusters := min(c.dev.units/2, tiles*((int(p.n)+manyColumns-1)/manyColumns))
	return launch(c.dev, c.stream.handle, name, 2*clusters, 1, manyThreads, &manyArgs{p, rows, w})
}
