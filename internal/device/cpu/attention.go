package cpu

import (
	"math"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu/gemm"
)

// keyTile is how many keys attention takes at a time, counted from position 0 whatever the block size: so a row's sums
// do not depend on blocks. queryTokens is how many tokens share a tile of packed keys; each brings a row per query head
// of the group.
const (
	keyTile     = gemm.Scores
	queryTokens = 32
)

// workerScratch is what one worker needs for itself.
type workerScratch struct {
	row    []float32 // the widest row
	query  operand   // [query rows][dim]
	prob   operand   // [query rows][keyTile]
	score  []float32 // [query rows][keyTile]
	value  []float32 // [query rows][padded dim], one tile's part
	acc    []float32 // [query rows][padded dim]
	max    []float32 // by query row
	sum    []float32
	keys   []byte // one packed tile, where a tile serves one query tile only
	values []byte
	expert expertScratch
}

func (c *compute) newWorker() workerScratch {
	cfg := c.cfg
	rows := cfg.NumHeads / cfg.NumKVHeads * min(queryTokens, c.spec.MaxTokens)
	dim := pad(cfg.HeadDim)
	return workerScratch{
		row:   make([]float32, pad(max(cfg.HiddenSize, cfg.QKVRows()))),
		query: c.newOperand(rows, cfg.HeadDim), prob: c.newOperand(rows, keyTile),
		score: make([]float32, rows*keyTile), value: make([]float32, rows*dim), acc: make([]float32, rows*dim),
		max: make([]float32, rows), sum: make([]float32, rows),
		keys: make([]byte, c.keyBytes()), values: make([]byte, c.valueBytes()),
		expert: c.newExpert(),
	}
}

// packedKV is one sequence's keys and values as panels, made once and read by all its query tiles.
type packedKV struct {
	keys, values []byte // [kv head][tile]
	tiles        int
}

// keySteps and valueSteps are the steps of a packed tile of keys (over dim) and values (over keys).
func (c *compute) keySteps() int {
	if c.plain() {
		return c.cfg.HeadDim
	}
	return (c.cfg.HeadDim + 1) / 2
}

func (c *compute) valueSteps() int {
	if c.plain() {
		return keyTile
	}
	return keyTile / 2
}

// plain says that keys and values are fp32.
func (c *compute) plain() bool { return c.spec.Layout.DType == arch.F32 }

func (c *compute) keyBytes() int { return keyTile / gemm.Cols * c.keySteps() * gemm.Cols * 4 }

func (c *compute) valueBytes() int {
	return pad(c.cfg.HeadDim) / gemm.Cols * c.valueSteps() * gemm.Cols * 4
}

// Attention implements device.Compute.
func (c *compute) Attention(layer int, w *device.AttentionWeights) {
	for lo := 0; lo < len(c.rows); lo += subRows {
		c.project(layer, w, lo, min(lo+subRows, len(c.rows)))
	}
	c.attend(layer)
	o := w.O.(*matrix)
	for lo := 0; lo < len(c.rows); lo += subRows {
		hi := min(lo+subRows, len(c.rows))
		heads := operand{bytes: c.heads.bytes[lo*c.heads.pitch:], pitch: c.heads.pitch, cols: c.heads.cols}
		c.multiply(c.out, o.Padded(), heads, hi-lo, o.Packed)
		c.addOut(lo, hi, o.Padded())
	}
}

// addOut adds rows of c.out to the hidden state.
func (c *compute) addOut(lo, hi, ld int) {
	c.team.rows(hi-lo, 64, func(_, a, b int) {
		for r := a; r < b; r++ {
			x := c.x(lo + r)
			for i, v := range c.out[r*ld : r*ld+len(x)] {
				x[i] += v
			}
		}
	})
}

// project makes Q (into c.heads), K and V (into the pool) of rows [lo, hi).
func (c *compute) project(layer int, w *device.AttentionWeights, lo, hi int) {
	cfg := c.cfg
	c.team.rows(hi-lo, 64, func(worker, a, b int) {
		x := c.work[worker].row[:cfg.HiddenSize]
		for r := a; r < b; r++ {
			rmsNorm(x, c.x(lo+r), w.Norm.(vector), cfg.RMSNormEps)
			c.put(c.in.row(r), x)
		}
	})
	m := w.QKV.(*matrix)
	ld := m.Padded()
	c.multiply(c.out, ld, c.in, hi-lo, m.Packed)
	qNorm, kNorm := w.QNorm.(vector), w.KNorm.(vector)
	c.team.rows(hi-lo, 64, func(worker, a, b int) {
		for r := a; r < b; r++ {
			c.placeRow(layer, lo+r, c.out[r*ld:r*ld+cfg.QKVRows()], qNorm, kNorm)
		}
	})
}

// placeRow norms and turns one row's heads, keeps Q and writes K and V to the pool.
func (c *compute) placeRow(layer, r int, qkv []float32, qNorm, kNorm vector) {
	d, q, kvh := c.cfg.HeadDim, c.cfg.NumHeads, c.cfg.NumKVHeads
	pos := c.rows[r].pos
	for h := range q + kvh {
		head, norm := qkv[h*d:(h+1)*d], qNorm
		if h >= q {
			norm = kNorm
		}
		rmsNorm(head, head, norm, c.cfg.RMSNormEps)
		c.rope.turn(head, pos)
	}
	c.put(c.heads.row(r), qkv[:q*d])
	for h := range kvh {
		c.store(layer, r, false, h, qkv[(q+h)*d:(q+h+1)*d])
		c.store(layer, r, true, h, qkv[(q+kvh+h)*d:(q+kvh+h+1)*d])
	}
}

// slotOffset is where one token's K or V of one head lies in the pool, in bytes.
func (c *compute) slotOffset(s *device.Seq, pos, layer int, value bool, head int) int {
	l := &c.spec.Layout
	off := l.HeadOffset(s.Blocks[pos/l.BlockTokens], layer, value, head)
	return int(off) + pos%l.BlockTokens*l.HeadDim*l.DType.Size()
}

func (c *compute) store(layer, r int, value bool, head int, v []float32) {
	at := c.rows[r]
	b := c.pool[c.slotOffset(&c.batch.Seqs[at.seq], at.pos, layer, value, head):]
	if c.plain() {
		copy(slice[float32](b, 0, len(v)), v)
		return
	}
	c.family.Round(slice[uint16](b, 0, len(v)), v)
}

// short is a sequence of one query tile; first is its first row.
type short struct{ seq, first int }

// attend runs attention for all sequences. Short ones (one query tile) go together, a task each head; a long one packs
// its keys and values once and then runs its query tiles.
func (c *compute) attend(layer int) {
	c.shorts = c.shorts[:0]
	first := 0
	for i := range c.batch.Seqs {
		if s := &c.batch.Seqs[i]; s.Tokens <= queryTokens {
			c.shorts = append(c.shorts, short{i, first})
		} else {
			c.attendLong(layer, i, first)
		}
		first += c.batch.Seqs[i].Tokens
	}
	heads := c.cfg.NumKVHeads
	c.team.run(len(c.shorts)*heads, func(worker, task int) {
		s := c.shorts[task/heads]
		c.tile(worker, layer, s.seq, task%heads, s.first, 0, c.batch.Seqs[s.seq].Tokens, nil)
	})
}

func (c *compute) attendLong(layer, seq, first int) {
	s := &c.batch.Seqs[seq]
	heads := c.cfg.NumKVHeads
	p := &c.packed
	p.tiles = (s.Context + s.Tokens + keyTile - 1) / keyTile
	p.keys = grow(p.keys, heads*p.tiles*c.keyBytes())
	p.values = grow(p.values, heads*p.tiles*c.valueBytes())
	c.team.run(heads*p.tiles, func(_, task int) {
		head, tile := task/p.tiles, task%p.tiles
		c.packTile(layer, s, head, tile, p.keys[task*c.keyBytes():], p.values[task*c.valueBytes():])
	})
	tiles := (s.Tokens + queryTokens - 1) / queryTokens
	c.team.run(heads*tiles, func(worker, task int) {
		t := tiles - 1 - task/heads // the last have the most keys: they go first
		lo := t * queryTokens
		c.tile(worker, layer, seq, task%heads, first, lo, min(lo+queryTokens, s.Tokens), p)
	})
}

func grow(b []byte, n int) []byte {
	if cap(b) < n {
		return make([]byte, n+n/4)
	}
	return b[:n]
}

// tile computes the query tokens [lo, hi) of one KV head's group of one sequence; first is the row of its token 0.
// packed is nil where the tile packs for itself.
func (c *compute) tile(worker, layer, seq, head, first, lo, hi int, packed *packedKV) {
	w := &c.work[worker]
	s := &c.batch.Seqs[seq]
	group := c.cfg.NumHeads / c.cfg.NumKVHeads
	n := (hi - lo) * group
	dim := pad(c.cfg.HeadDim)
	c.gatherQueries(w, head, first+lo, hi-lo)
	clear(w.acc[:n*dim])
	for i := range n {
		w.max[i], w.sum[i] = float32(math.Inf(-1)), 0
	}
	last := s.Context + hi // keys that the last row sees
	for t := 0; t*keyTile < last; t++ {
		keys, values := w.keys, w.values
		if packed != nil {
			at := head*packed.tiles + t
			keys, values = packed.keys[at*c.keyBytes():], packed.values[at*c.valueBytes():]
		} else {
			c.packTile(layer, s, head, t, keys, values)
		}
		c.keyTileStep(w, n, group, s.Context+lo-t*keyTile, keys, values)
	}
	c.scatter(w, head, first+lo, hi-lo)
}

// gatherQueries puts the rows of a group's heads one below the other.
func (c *compute) gatherQueries(w *workerScratch, head, first, tokens int) {
	group := c.cfg.NumHeads / c.cfg.NumKVHeads
	bytes := c.cfg.HeadDim * c.family.Size()
	for t := range tokens {
		from := c.heads.row(first + t)[head*group*bytes:]
		for g := range group {
			copy(w.query.row(t*group+g), from[g*bytes:(g+1)*bytes])
		}
	}
}

// keyTileStep folds one tile of keys into the running softmax of n query rows (Milakov and Gimelshein 2018). before is
// how many of the tile's keys lie before the first token's own position.
func (c *compute) keyTileStep(w *workerScratch, n, group, before int, keys, values []byte) {
	dim := pad(c.cfg.HeadDim)
	scale := 1 / float32(math.Sqrt(float64(c.cfg.HeadDim)))
	c.panels(w.score, keyTile, w.query, n, keys, c.keySteps(), keyTile/gemm.Cols)
	skip := 0 // rows before it see no key of this tile
	for i := range n {
		seen := min(before+i/group+1, keyTile)
		if seen <= 0 {
			skip = i + 1
			continue
		}
		c.softmaxRow(w, i, seen, scale)
	}
	if skip == n {
		return
	}
	prob := operand{bytes: w.prob.bytes[skip*w.prob.pitch:], pitch: w.prob.pitch}
	c.panels(w.value[skip*dim:], dim, prob, n-skip, values, c.valueSteps(), dim/gemm.Cols)
	for i := skip; i < n; i++ {
		// score[i*keyTile] holds the factor that the running sum shrinks by; softmaxRow left it there.
		c.family.ScaleAdd(w.acc[i*dim:(i+1)*dim], w.value[i*dim:(i+1)*dim], w.score[i*keyTile])
	}
}

// softmaxRow turns row i's scores of the first seen keys into weights relative to the running maximum, and leaves the
// factor for what was summed before in the row's first score.
func (c *compute) softmaxRow(w *workerScratch, i, seen int, scale float32) {
	s := w.score[i*keyTile : (i+1)*keyTile]
	shrink := c.family.Softmax(s, seen, scale, &w.max[i], &w.sum[i])
	c.put(w.prob.row(i), s)
	s[0] = shrink
}

// panels multiplies query-side rows with a packed tile.
func (c *compute) panels(out []float32, ldc int, a operand, rows int, panels []byte, steps, n int) {
	if c.plain() {
		c.family.Plain(out, ldc, a.bytes, a.pitch, rows, panels, steps, n)
		return
	}
	c.family.Panels(out, ldc, a.bytes, a.pitch, rows, panels, steps, n)
}

// scatter divides by the sums and writes the rows back over Q.
func (c *compute) scatter(w *workerScratch, head, first, tokens int) {
	group := c.cfg.NumHeads / c.cfg.NumKVHeads
	d, dim := c.cfg.HeadDim, pad(c.cfg.HeadDim)
	bytes := d * c.family.Size()
	for i := range tokens * group {
		o := w.acc[i*dim : i*dim+d]
		inv := 1 / w.sum[i]
		for j := range o {
			o[j] *= inv
		}
		at := (head*group + i%group) * bytes
		c.put(c.heads.row(first + i/group)[at:at+bytes], o)
	}
}

// packTile lays one tile of a head's keys and values out as panels; keys and values past the sequence's end are zeros,
// and their slots are never read.
func (c *compute) packTile(layer int, s *device.Seq, head, tile int, keys, values []byte) {
	lo := tile * keyTile
	n := min(keyTile, s.Context+s.Tokens-lo)
	if n < keyTile {
		clear(keys[:c.keyBytes()])
		clear(values[:c.valueBytes()])
	}
	bt := c.spec.Layout.BlockTokens
	for j := 0; j < n; {
		run := min(n-j, bt-(lo+j)%bt) // tokens that lie together in one block
		k := c.pool[c.slotOffset(s, lo+j, layer, false, head):]
		v := c.pool[c.slotOffset(s, lo+j, layer, true, head):]
		if c.plain() {
			c.packPlain(keys, values, k, v, j, run)
		} else {
			c.packPairs(keys, values, k, v, j, run)
		}
		j += run
	}
}

// packPairs packs keys j to j+run-1 of a tile: keys by pairs of dim, values by pairs of keys.
func (c *compute) packPairs(keys, values, k, v []byte, j, run int) {
	d := c.cfg.HeadDim
	kp := slice[uint32](keys, 0, len(keys)/4)
	steps := c.keySteps()
	vp := slice[uint16](values, 0, len(values)/2)
	for t := range run {
		key := j + t
		at := key/gemm.Cols*steps*gemm.Cols + key%gemm.Cols
		row := slice[uint16](k, t*d, d)
		for i := 0; i+1 < d; i += 2 {
			kp[at] = uint32(row[i]) | uint32(row[i+1])<<16
			at += gemm.Cols
		}
		val := slice[uint16](v, t*d, d)
		for p := 0; p < d; p += gemm.Cols {
			out := vp[(p/gemm.Cols*(keyTile/2)+key/2)*gemm.Cols*2+key%2:]
			for i, x := range val[p:min(p+gemm.Cols, d)] {
				out[2*i] = x
			}
		}
	}
}

// packPlain is packPairs in fp32.
func (c *compute) packPlain(keys, values, k, v []byte, j, run int) {
	d := c.cfg.HeadDim
	kp := slice[float32](keys, 0, len(keys)/4)
	vp := slice[float32](values, 0, len(values)/4)
	for t := range run {
		key := j + t
		at := key/gemm.Cols*d*gemm.Cols + key%gemm.Cols
		for _, x := range slice[float32](k, t*d, d) {
			kp[at] = x
			at += gemm.Cols
		}
		val := slice[float32](v, t*d, d)
		for p := 0; p < d; p += gemm.Cols {
			copy(vp[(p/gemm.Cols*keyTile+key)*gemm.Cols:], val[p:min(p+gemm.Cols, d)])
		}
	}
}
