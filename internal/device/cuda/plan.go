package cuda

import (
	"unsafe"

	"larder/internal/device"
)

// plan is what the kernels need to know of a batch: written to pinned memory, from where a kernel takes it in one piece.
type plan struct {
	near, far         scratch
	at                []part
	wide, narrow      int // tiles of many and of up to 16 query rows
	idsAt, rowsAt     int64
	drawsAt, tablesAt int64
	wideAt, narrowAt  int64
	size              int64
}

// part is one sequence's place in a pass.
type part struct{ row, table int }

// placed is a row's position and where its sequence's blocks start: int2 of the kernels.
type placed struct{ position, table int32 }

// tile is a tile of query rows: int4 of the kernels.
type tile struct{ row, position, tokens, table int32 }

// narrowRows is the query rows of a narrow tile.
const narrowRows = 16

// tiling says how many tokens make a tile of a sequence, and whether it is a wide one.
func (c *compute) tiling(s *device.Seq) (tokens int, wide bool) {
	group := c.cfg.NumHeads / c.cfg.NumKVHeads
	if s.Tokens*group <= narrowRows {
		return narrowRows / group, false
	}
	return c.wideShape().rows / group, true
}

// measure finds how large each piece is and where it lies.
func (p *plan) measure(c *compute) {
	p.at, p.wide, p.narrow = p.at[:0], 0, 0
	row, table := 0, 0
	batch := c.slots[c.turn].batch
	for i := range batch.Seqs {
		s := &batch.Seqs[i]
		p.at = append(p.at, part{row, table})
		row += s.Tokens
		table += c.spec.Layout.Blocks(s.Context + s.Tokens)
		tokens, wide := c.tiling(s)
		n := (s.Tokens + tokens - 1) / tokens
		if wide {
			p.wide += n
		} else {
			p.narrow += n
		}
	}
	p.size = 0
	for _, piece := range []struct {
		at *int64
		n  int
	}{{&p.idsAt, row * 4}, {&p.rowsAt, row * 8}, {&p.drawsAt, c.draws * 4}, {&p.tablesAt, table * 4}, {&p.wideAt, p.wide * 16}, {&p.narrowAt, p.narrow * 16}} {
		*piece.at = p.size
		p.size += int64(piece.n+63) / 64 * 64
	}
}

// make writes the plan and queues the kernel that takes it.
func (p *plan) make(c *compute) error {
	p.measure(c)
	if p.size == 0 {
		return nil
	}
	if err := p.near.need(p.size); err != nil {
		return err
	}
	if err := p.far.need(p.size); err != nil {
		return err
	}
	copy(view[int32](p, p.idsAt, c.count), c.slots[c.turn].ids)
	p.writeRows(c)
	p.writeTiles(c)
	const threads = 256
	pieces := int(p.size / 16)
	return c.dev.on(func() error {
		return launch(c.dev, c.stream.handle, "pull", min((pieces+threads-1)/threads, c.dev.units), 1, threads, &pullArgs{p.far.b.ptr, p.near.b.ptr, int32(pieces)})
	})
}

type pullArgs struct {
	to, from uintptr
	n        int32
}

func view[T any](p *plan, off int64, n int) []T {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Add(p.near.b.host, off)), n)
}

func (p *plan) writeRows(c *compute) {
	rows, draws := view[placed](p, p.rowsAt, c.count), view[int32](p, p.drawsAt, c.draws)
	tables := view[int32](p, p.tablesAt, int((p.wideAt-p.tablesAt)/4))
	n, batch := 0, c.slots[c.turn].batch
	for i := range batch.Seqs {
		s, at := &batch.Seqs[i], p.at[i]
		for t := range s.Tokens {
			rows[at.row+t] = placed{int32(s.Context + t), int32(at.table)}
		}
		for j, b := range s.Blocks[:c.spec.Layout.Blocks(s.Context+s.Tokens)] {
			tables[at.table+j] = int32(b)
		}
		if s.Draw != nil {
			draws[n] = int32(at.row + s.Tokens - 1)
			n++
		}
	}
}

// writeTiles lists the tiles, the last of a sequence first: they have the most keys.
func (p *plan) writeTiles(c *compute) {
	wide, narrow := view[tile](p, p.wideAt, p.wide), view[tile](p, p.narrowAt, p.narrow)
	nWide, nNarrow := 0, 0
	batch := c.slots[c.turn].batch
	for i := range batch.Seqs {
		s, at := &batch.Seqs[i], p.at[i]
		tokens, isWide := c.tiling(s)
		for first := (s.Tokens - 1) / tokens * tokens; first >= 0; first -= tokens {
			t := tile{int32(at.row + first), int32(s.Context + first), int32(min(tokens, s.Tokens-first)), int32(at.table)}
			if isWide {
				wide[nWide] = t
				nWide++
			} else {
				narrow[nNarrow] = t
				nNarrow++
			}
		}
	}
}

// Where the pieces lie on the GPU.
func (p *plan) ids() uintptr      { return p.far.b.ptr + uintptr(p.idsAt) }
func (p *plan) rows() uintptr     { return p.far.b.ptr + uintptr(p.rowsAt) }
func (p *plan) drawRows() uintptr { return p.far.b.ptr + uintptr(p.drawsAt) }
func (p *plan) tables() uintptr   { return p.far.b.ptr + uintptr(p.tablesAt) }
