package cuda

import (
	"errors"

	"larder/internal/device"
)

// moeScratch is the routing of up to passRows rows and the experts' answers. A pair is row * visits + rank.
type moeScratch struct {
	router  *buffer // fp32 [rows][experts up to 4]
	chosen  *buffer // int32 [pairs]
	weight  *buffer // fp32 [pairs]
	count   *buffer // int32 [experts]
	start   *buffer // int32 [experts]
	order   *buffer // int32 [pairs]: the pairs sorted by expert
	tiles   *buffer // int4
	cut     *buffer // int32: how many tiles
	act     *buffer // bf16 [pairs][intermediate up to 8], sorted
	answers *buffer // bf16 [pairs][inPitch]
	sorted  *buffer // bf16 [pairs][inPitch]: rows in the order of pairs, where products of many rows want that
}

// width is the widest intermediate times visits of a row, and the most experts that a row visits.
func (c *compute) visits() int {
	return max(c.cfg.NumExpertsPerToken*min(c.cfg.NumExperts, 1), 1)
}

func (c *compute) moeBuffers(rows int64) []struct {
	to *(*buffer)
	n  int64
} {
	m, pairs, experts := &c.moe, rows*int64(c.visits()), int64(max(c.cfg.NumExperts, 1))
	act := max(rows*int64(pad8(c.cfg.IntermediateSize)), pairs*int64(pad8(c.cfg.MoEIntermediateSize)))
	return []struct {
		to *(*buffer)
		n  int64
	}{
		{&m.router, rows * c.routerPitch() * 4}, {&m.chosen, pairs * 4}, {&m.weight, pairs * 4}, {&m.count, experts * 4}, {&m.start, experts * 4},
		{&m.order, pairs * 4}, {&m.tiles, (pairs/16 + experts + 1) * 16}, {&m.cut, 4}, {&m.act, act * 2}, {&m.answers, pairs * c.inPitch() * 2}, {&m.sorted, c.sortedSize(pairs)},
	}
}

// sortedSize is what sorted takes: only these products read it.
func (c *compute) sortedSize(pairs int64) int64 {
	if !c.dev.hasMany() {
		return 0
	}
	return pairs * c.inPitch() * 2
}

type chooseArgs struct {
	chosen, weight, logits    uintptr
	ld                        int64
	rows, experts, visits, re int32
}

type oneExpertArgs struct {
	chosen, weight uintptr
	rows           int32
}

type countArgs struct {
	count, chosen  uintptr
	pairs, experts int32
}

type cutArgs struct {
	start, tiles, tileCount, count uintptr
	experts, size                  int32
}

type sortArgs struct {
	order, start, chosen uintptr
	pairs, experts       int32
}

type combineArgs struct {
	x         uintptr
	ldx       int64
	answers   uintptr
	lda       int64
	weight    uintptr
	visits, n int32
}

// MLP implements device.Compute.
func (c *compute) MLP(w *device.MLPWeights) {
	c.do(func() error {
		for lo := 0; lo < c.count; lo += passRows {
			if err := c.mlp(w, lo, min(passRows, c.count-lo)); err != nil {
				return err
			}
		}
		c.delta = false
		return nil
	})
}

func (c *compute) mlp(w *device.MLPWeights, lo, n int) error {
	e := w.Experts.(*experts)
	visits, rest := 1, uintptr(0)
	if w.Router != nil {
		visits, rest = c.cfg.NumExpertsPerToken, c.rest()
	}
	if err := c.norm(c.in, rest, w.Norm, lo, n); err != nil {
		return err
	}
	if err := c.route(w, n); err != nil {
		return err
	}
	size := c.dev.tileRows(n * visits / e.n)
	if err := c.sortPairs(n*visits, e.n, size); err != nil {
		return err
	}
	if err := c.runExperts(e, n*visits, visits, size); err != nil {
		return err
	}
	return launch(c.dev, c.stream.handle, "combine", n, 1, 256, &combineArgs{c.hidden.ptr + uintptr(int64(lo)*c.hiddenPitch()*4), c.hiddenPitch(),
		c.moe.answers.ptr, c.inPitch(), c.moe.weight.ptr, int32(visits), int32(c.cfg.HiddenSize)})
}

// route picks each row's experts. The router's input is fp32: three bf16 values whose products with W, which are exact,
// are added up from the smallest, one after another.
func (c *compute) route(w *device.MLPWeights, n int) error {
	d, s, m := c.dev, c.stream.handle, &c.moe
	if w.Router == nil {
		return launch(d, s, "one_expert", (n+255)/256, 1, 256, &oneExpertArgs{m.chosen.ptr, m.weight.ptr, int32(n)})
	}
	r := w.Router.(*matrix)
	re := int32(0)
	if c.cfg.NormTopKProb {
		re = 1
	}
	return errors.Join(
		c.score(r, n),
		launch(d, s, "choose", (n+7)/8, 1, 256, &chooseArgs{m.chosen.ptr, m.weight.ptr, m.router.ptr, c.routerPitch(), int32(n), int32(r.n), int32(c.cfg.NumExpertsPerToken), re}))
}

// sortPairs sorts the pairs by expert and cuts them into tiles.
func (c *compute) sortPairs(pairs, experts, size int) error {
	d, s, m := c.dev, c.stream.handle, &c.moe
	const threads = 512
	blocks := (pairs + threads - 1) / threads
	return errors.Join(
		d.drv.call("cuMemsetD8Async", d.drv.setAsync, m.count.ptr, 0, uintptr(experts*4), s),
		launch(d, s, "count_pairs", blocks, 1, threads, &countArgs{m.count.ptr, m.chosen.ptr, int32(pairs), int32(experts)}),
		launch(d, s, "cut_tiles", 1, 1, 256, &cutArgs{m.start.ptr, m.tiles.ptr, m.cut.ptr, m.count.ptr, int32(experts), int32(size)}),
		launch(d, s, "sort_pairs", blocks, 1, threads, &sortArgs{m.order.ptr, m.start.ptr, m.chosen.ptr, int32(pairs), int32(experts)}))
}

// runExperts takes the sorted pairs through their experts. The grids are for the most tiles that there can be.
func (c *compute) runExperts(e *experts, pairs, visits, size int) error {
	d, s, m := c.dev, c.stream.handle, &c.moe
	if size == manyTile {
		return c.runMany(e, pairs, visits)
	}
	shape := shapeOf(d.target, size)
	tiles := min(pairs/size+e.n, pairs)
	both, down := 2*e.innerPad, e.hidden
	base := gemmParams{order: m.order.ptr, tiles: m.tiles.ptr, count: m.cut.ptr}
	up, back := base, base
	up.a, up.lda, up.w, up.ldw, up.expert = c.in.ptr, c.inPitch(), e.both.ptr, int64(e.hiddenPad), e.bothStride
	up.c, up.ldc, up.n, up.k, up.visits = m.act.ptr, int64(e.innerPad), int32(both), int32(e.hiddenPad), int32(visits)
	back.a, back.lda, back.w, back.ldw, back.expert = m.act.ptr, int64(e.innerPad), e.down.ptr, int64(e.innerPad), e.downStep
	back.c, back.ldc, back.n, back.k = m.answers.ptr, c.inPitch(), int32(down), int32(e.innerPad)
	return errors.Join(
		launch(d, s, gemmName("swiglu", size), tiles*((both+shape.columns-1)/shape.columns), 1, shape.threads, &gemmArgs{up}),
		launch(d, s, gemmName("scatter", size), tiles*((down+shape.columns-1)/shape.columns), 1, shape.threads, &gemmArgs{back}))
}

type gatherArgs struct {
	out, in               uintptr
	ld                    int64
	order                 uintptr
	visits, pairs, eights int32
}

// runMany is runExperts by the kernels of gemm90.cu, which read whole rows.
func (c *compute) runMany(e *experts, pairs, visits int) error {
	d, m := c.dev, &c.moe
	const warps = 8
	err := launch(d, c.stream.handle, "gather", (pairs+warps-1)/warps, 1, warps*32,
		&gatherArgs{m.sorted.ptr, c.in.ptr, c.inPitch(), m.order.ptr, int32(visits), int32(pairs), int32(e.hiddenPad / 8)})
	if err != nil {
		return err
	}
	base := manyParams{order: m.order.ptr, tiles: m.tiles.ptr, count: m.cut.ptr, m: int32(pairs)}
	up, back := base, base
	up.c, up.ldc, up.n, up.k, up.each = m.act.ptr, int64(e.innerPad), int32(2*e.innerPad), int32(e.hiddenPad), int32(2*e.innerPad)
	back.c, back.ldc, back.n, back.k, back.each = m.answers.ptr, c.inPitch(), int32(e.hidden), int32(e.innerPad), int32(e.hidden)
	most := pairs/manyTile + e.n
	if err := c.launchMany("many_swiglu", most, m.sorted.ptr, c.inPitch(), e.bothMap, up); err != nil {
		return err
	}
	return c.launchMany("many_scatter", most, m.act.ptr, int64(e.innerPad), e.downMap, back)
}

// score takes the router's product.
func (c *compute) score(r *matrix, n int) error {
	if c.dev.hasMany() && n <= fewMost {
		return c.launchFew("route", c.in.ptr, c.inPitch(), 3*c.inRows(), r, fewParams{c: c.moe.router.ptr, ldc: c.routerPitch(), m: int32(n), part: int32(c.inRows())})
	}
	size := min(tileRows(n), 64)
	shape := shapeOf(c.dev.target, size)
	blocks := (n + size - 1) / size * ((r.n + shape.columns - 1) / shape.columns)
	return launch(c.dev, c.stream.handle, gemmName("route", size), blocks, 1, shape.threads, &gemmArgs{gemmParams{
		a: c.in.ptr, rest: c.rest(), last: c.restSize(), w: r.b.ptr, c: c.moe.router.ptr, lda: c.inPitch(), ldw: int64(r.ld), ldc: c.routerPitch(),
		m: int32(n), n: int32(r.n), k: int32(pad8(r.k))}})
}
