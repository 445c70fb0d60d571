package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"larder/internal/device"
)

type placeParams struct {
	qkv, q, pool               uintptr
	qNorm, kNorm, cosine, sine uintptr
	tables, at                 uintptr
	ld, ldq                    int64
	block, layer, head, value  int64
	heads, kvHeads, dim, shift int32
	eps                        float32
}

type placeArgs struct{ P placeParams }

type attendParams struct {
	q, out, pool, tables, tiles uintptr
	ld                          int64
	block, layer, head, value   int64
	heads, kvHeads, dim, shift  int32
	scale                       float32
}

type attendArgs struct{ P attendParams }

// attendGroupsArgs are those of the kernel that reads the pool through a tensor map.
type attendGroupsArgs struct {
	P   attendParams
	Map tensorMap
}

func attendName(dim int, wide bool) string {
	if wide {
		return fmt.Sprintf("attend_%d_wide", dim)
	}
	return fmt.Sprintf("attend_%d_narrow", dim)
}

// attendShape is a tile's query rows, a block's threads and its shared memory in bytes.
type attendShape struct{ rows, threads, shared int }

// attendShapeOf is the shape that attention.cu has for heads of dim.
func attendShapeOf(target string, dim int, wide bool) attendShape {
	stage := 2 * 64 * dim * 2 // 64 keys and values
	switch {
	case !wide && dim == 128 && smallShared(target):
		return attendShape{narrowRows, 128, 2*stage + narrowRows*64*4}
	case wide:
		return attendShape{128, 256, 2 * stage}
	case dim >= 64: // four warps share the rows
		return attendShape{narrowRows, 128, 3*stage + narrowRows*64*4}
	}
	return attendShape{narrowRows, 32, 2 * stage}
}

// groupsName is the kernel of attend90.cu.
const groupsName = "attend_groups"

// groupsShape is its shape: 4 stages, and four barriers of each.
var groupsShape = attendShape{128, 384, 4*2*64*128*2 + 4*32}

// oneName and twoName are the kernels of decode90.cu for few rows: by one block, or by a cluster of two.
const (
	oneName = "attend_one"
	twoName = "attend_two"
)

// Their shapes: stages of keys and values, four slots of scores, barriers.
var (
	oneShape = attendShape{narrowRows, 160, 3*2*64*128*2 + 4*64*16*4 + 3*16 + 4*8}
	twoShape = attendShape{narrowRows, 160, 4*2*64*128*2 + 4*2*64*16*4 + 4*16 + 4*8}
)

// byGroups says that warpgroups attend: they are made for one size of heads.
func (c *compute) byGroups() bool { return c.dev.target == "sm_90a" && c.cfg.HeadDim == 128 }

// wideShape is the shape of tiles of many rows.
func (c *compute) wideShape() attendShape {
	if c.byGroups() {
		return groupsShape
	}
	return attendShapeOf(c.dev.target, kernelDim(c.cfg.HeadDim), true)
}

// kernelDim is the head size that a kernel is made for: the smallest that holds dim.
func kernelDim(dim int) int {
	n := 16
	for n < dim {
		n *= 2
	}
	return n
}

// Attention implements device.Compute.
func (c *compute) Attention(layer int, w *device.AttentionWeights) {
	c.settle()
	c.do(func() error {
		for lo := 0; lo < c.count; lo += passRows {
			if err := c.project(layer, w, lo, min(passRows, c.count-lo)); err != nil {
				return err
			}
		}
		if err := c.attend(layer); err != nil {
			return err
		}
		c.delta = true
		return c.multiply("store16", product{a: c.mixed.ptr, lda: c.headsPitch(), w: w.O.(*matrix), c: c.heads.ptr, ldc: c.headsPitch(), m: c.count})
	})
}

// project makes Q, K and V of n rows from row lo on; K and V go to the pool.
func (c *compute) project(layer int, w *device.AttentionWeights, lo, n int) error {
	l, cfg := &c.spec.Layout, c.cfg
	return errors.Join(
		c.norm(c.in, 0, w.Norm, lo, n),
		c.multiply("store16", product{a: c.in.ptr, lda: c.inPitch(), w: w.QKV.(*matrix), c: c.out.ptr, ldc: c.outPitch(), m: n}),
		launch(c.dev, c.stream.handle, "place_heads", n, 1, 256, &placeArgs{placeParams{
			qkv: c.out.ptr, q: c.heads.ptr + uintptr(int64(lo)*c.headsPitch()*2), pool: c.pool.ptr,
			qNorm: w.QNorm.(*vector).b.ptr, kNorm: w.KNorm.(*vector).b.ptr, cosine: c.cosine.ptr, sine: c.sine.ptr,
			tables: c.plan.tables(), at: c.plan.rows() + uintptr(lo*8), ld: c.outPitch(), ldq: c.headsPitch(),
			block: l.BlockBytes(), layer: int64(layer) * l.LayerBytes(), head: l.HeadBytes(), value: int64(l.KVHeads) * l.HeadBytes(),
			heads: int32(cfg.NumHeads), kvHeads: int32(cfg.NumKVHeads), dim: int32(cfg.HeadDim), shift: int32(bits.TrailingZeros(uint(l.BlockTokens))),
			eps: cfg.RMSNormEps}}))
}

// attend runs attention over all tiles, wide and narrow.
func (c *compute) attend(layer int) error {
	l, cfg := &c.spec.Layout, c.cfg
	args := attendArgs{attendParams{
		q: c.heads.ptr, out: c.mixed.ptr, pool: c.pool.ptr, tables: c.plan.tables(), ld: c.headsPitch(),
		block: l.BlockBytes(), layer: int64(layer) * l.LayerBytes(), head: l.HeadBytes(), value: int64(l.KVHeads) * l.HeadBytes(),
		heads: int32(cfg.NumHeads), kvHeads: int32(cfg.NumKVHeads), dim: int32(cfg.HeadDim), shift: int32(bits.TrailingZeros(uint(l.BlockTokens))),
		scale: float32(math.Log2E / math.Sqrt(float64(cfg.HeadDim)))}}
	dim := kernelDim(cfg.HeadDim)
	wide, narrow := args, args
	wide.P.tiles, narrow.P.tiles = c.plan.far.b.ptr+uintptr(c.plan.wideAt), c.plan.far.b.ptr+uintptr(c.plan.narrowAt)
	if !c.byGroups() {
		return errors.Join(attendTiles(c, attendName(dim, true), cfg.NumKVHeads, c.plan.wide, c.wideShape().threads, &wide, &wide.P.tiles),
			attendTiles(c, attendName(dim, false), cfg.NumKVHeads, c.plan.narrow, attendShapeOf(c.dev.target, dim, false).threads, &narrow, &narrow.P.tiles))
	}
	many, few := attendGroupsArgs{wide.P, c.poolMap}, attendGroupsArgs{narrow.P, c.poolMap}
	err := attendTiles(c, groupsName, cfg.NumKVHeads, c.plan.wide, groupsShape.threads, &many, &many.P.tiles)
	switch blocks := cfg.NumKVHeads * c.plan.narrow; {
	case 2*blocks <= c.dev.units:
		return errors.Join(err, attendTiles(c, twoName, 2*cfg.NumKVHeads, c.plan.narrow, oneShape.threads, &few, &few.P.tiles))
	case blocks <= c.dev.units:
		return errors.Join(err, attendTiles(c, oneName, cfg.NumKVHeads, c.plan.narrow, oneShape.threads, &few, &few.P.tiles))
	}
	// Two blocks of the portable kernel share a multiprocessor and hide each other's waits.
	return errors.Join(err, attendTiles(c, attendName(dim, false), cfg.NumKVHeads, c.plan.narrow, attendShapeOf(c.dev.target, dim, false).threads, &narrow, &narrow.P.tiles))
}

// mostTiles is how many tiles one launch takes: the grid's second side is limited.
const mostTiles = 65535

// attendTiles launches so many blocks of a kernel for each of so many tiles; at is where args say that they begin.
func attendTiles[T any](c *compute, name string, blocks, tiles, threads int, args *T, at *uintptr) error {
	for tiles > 0 {
		n := min(tiles, mostTiles)
		if err := launch(c.dev, c.stream.handle, name, blocks, n, threads, args); err != nil {
			return err
		}
		*at += uintptr(n) * 16
		tiles -= n
	}
	return nil
}
