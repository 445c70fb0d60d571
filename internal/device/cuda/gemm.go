package cuda

import (
	"errors"
	"fmt"
	"strings"
)

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

// multiply queues a product; what is "store" (fp32) or "store16" (bf16).
func (c *compute) multiply(what string, p product) error {
	if c.dev.hasMany() && p.m >= manyRows && what != "store" {
		return c.launchMany("many_"+what, (p.m+manyTile-1)/manyTile, p.a, p.lda, p.w.tiles, manyParams{
			c: p.c, ldc: p.ldc, m: int32(p.m), n: int32(p.w.n), k: int32(pad8(p.w.k))})
	}
	if c.dev.hasMany() && p.m <= fewMost {
		return c.launchFew(what, p.a, p.lda, int64(p.m), p.w, fewParams{c: p.c, ldc: p.ldc, m: int32(p.m)})
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
	return d.mapRows(b.ptr, b.size/int64(2*ld), ld, int64(ld), manyColumns/2)
}

// launchMany queues a kernel of gemm90.cu over so many tiles of rows; a is p.m rows of p.k elements, lda apart.
func (c *compute) launchMany(name string, tiles int, a uintptr, lda int64, w tensorMap, p manyParams) error {
	rows, err := c.dev.mapRows(a, int64(p.m), int(p.k), lda, manyTile/2)
	if err != nil {
		return err
	}
	clusters := min(c.dev.units/2, tiles*((int(p.n)+manyColumns-1)/manyColumns))
	return launch(c.dev, c.stream.handle, name, 2*clusters, 1, manyThreads, &manyArgs{p, rows, w})
}

// fewParams is struct FewRows of few90.cu.
type fewParams struct {
	c             uintptr
	ldc           int64
	m, n, k, part int32
}

type fewArgs struct {
	P    fewParams
	A, W tensorMap
}

// What few90.cu is made for: up to fewMost rows, in tiles of fewTile. Wide tiles are for what fills the GPU with them.
const (
	fewMost    = 128
	fewTile    = 64
	fewColumns = 32
	fewWide    = 128
	fewThreads = 160
)

// fewNames are the kernels of few90.cu and the stages that each keeps in shared memory.
var fewNames = map[string]int{"few_store_32": 8, "few_store_128": 4, "few_store16_32": 8, "few_route_32": 16}

// fewShared is the shared memory of a kernel of few90.cu, which ends with its columns.
func fewShared(name string) int {
	columns := fewColumns
	if strings.HasSuffix(name, "_128") {
		columns = fewWide
	}
	return fewNames[name] * ((fewTile+columns)*128 + 16)
}

// launchFew queues a kernel of few90.cu; a has so many rows of as many elements as w's, lda apart.
func (c *compute) launchFew(what string, a uintptr, lda, rows int64, w *matrix, p fewParams) error {
	columns := fewColumns
	if what == "store" && w.n >= fewWide*c.dev.units {
		columns = fewWide
	}
	k := pad8(w.k)
	p.n, p.k = int32(w.n), int32(k)
	aMap, errA := c.dev.mapRows(a, rows, k, lda, fewTile)
	wMap, errW := c.dev.mapRows(w.b.ptr, int64(w.n), w.ld, int64(w.ld), columns)
	if err := errors.Join(errA, errW); err != nil {
		return err
	}
	return launch(c.dev, c.stream.handle, fmt.Sprintf("few_%s_%d", what, columns), (w.n+columns-1)/columns, (int(p.m)+fewTile-1)/fewTile,
		fewThreads, &fewArgs{p, aMap, wMap})
}
