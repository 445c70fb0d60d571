package xfer

import (
	"cmp"
	"slices"
	"time"

	"larder/internal/device"
	"larder/internal/kv"
)

// piece carries out some moves: n blocks that are neighbours on both sides, and one contiguous piece on both, because a
// block holds all layers in every tier.
type piece struct {
	from, to kv.Tier
	src, dst kv.BlockID // of the first block
	moves    []kv.Move  // in the order of the blocks
	first    int        // the earliest of them in the list of orders
}

// batch is some pieces of one order that are handed over together, with one point behind them.
type batch struct {
	tag      uint64
	from, to kv.Tier
	moves    []kv.Move
	pieces   []device.Span
	bytes    int64
	method   Method
	deadline time.Time
	last     bool // of its order

	lane            *lane // nil: it never started
	start, end      device.Event
	began, finished time.Duration
	err             error
	over            bool
}

func (b *batch) record(block int64) CopyRecord {
	r := CopyRecord{Tag: b.tag, From: b.from, To: b.to, Blocks: len(b.moves), Pieces: len(b.pieces), Method: b.method,
		Start: b.began, End: b.finished, Err: b.err}
	if b.err == nil {
		r.Bytes = int64(len(b.moves)) * block
	}
	return r
}

// mine are the order's moves that go its way.
func (o *order) mine() []kv.Move {
	if o.count == len(o.moves) {
		return o.moves
	}
	list := make([]kv.Move, 0, o.count)
	for i := range o.moves {
		if o.moves[i].To == o.to {
			list = append(list, o.moves[i])
		}
	}
	return list
}

// batches plans an order. Its batches are of about one size: a small one at the end would be over before the next
// order's first is handed over.
func (m *Mover) batches(o order) []*batch {
	var out []*batch
	var b *batch
	total := int64(o.count) * m.size
	limit := min(m.cfg.BatchBytes, (total/((total+m.cfg.BatchBytes-1)/m.cfg.BatchBytes)+m.size-1)/m.size*m.size)
	for _, p := range plan(o.mine(), max(int(min(m.cfg.MaxPieceBytes, limit)/m.size), 1)) {
		n := int64(len(p.moves)) * m.size
		if b == nil || b.bytes+n > limit {
			b = &batch{tag: o.tag, from: p.from, to: p.to, deadline: o.deadline}
			out = append(out, b)
		}
		b.moves = append(b.moves, p.moves...)
		b.pieces = append(b.pieces, device.Span{Dst: int64(p.dst) * m.size, Src: int64(p.src) * m.size, N: n})
		b.bytes += n
	}
	for _, b := range out {
		b.method = m.cfg.method(b)
	}
	b.last = true
	return out
}

// handOver puts a batch on its lane. before is the one that is under way there: the new one starts where it ends.
func (m *Mover) handOver(b, before *batch) {
	s := b.lane.stream
	if before != nil {
		b.start = before.end
	} else {
		b.start = s.Record()
	}
	dst, src := m.pool(b.to), m.pool(b.from)
	if b.method == Rows {
		for _, g := range grids(b.pieces) {
			s.Copy2D(dst, g.Dst, g.dstPitch, src, g.Src, g.srcPitch, g.N, g.rows)
		}
	} else {
		s.CopyMany(dst, src, b.pieces, b.method.copies())
	}
	b.end = s.Record()
}

// grid is pieces of one size at equal distances on both sides: one 2-D copy.
type grid struct {
	device.Span
	dstPitch, srcPitch int64
	rows               int
}

// grids finds what 2-D copies can carry pieces out, by taking each piece to the grid before it where it goes on.
func grids(pieces []device.Span) (out []grid) {
	for _, p := range pieces {
		if len(out) > 0 {
			g := &out[len(out)-1]
			dst, src := p.Dst-g.Dst-int64(g.rows-1)*g.dstPitch, p.Src-g.Src-int64(g.rows-1)*g.srcPitch
			if p.N == g.N && min(dst, src) >= p.N && (g.rows == 1 || dst == g.dstPitch && src == g.srcPitch) {
				g.dstPitch, g.srcPitch = dst, src
				g.rows++
				continue
			}
		}
		out = append(out, grid{Span: p, rows: 1})
	}
	return out
}

// plan turns moves into the fewest copies: those that go the same way by the same distance, from neighbour to
// neighbour, become one, of maxBlocks blocks at most, so that a later order does not wait for ever behind a long one.
// Pieces come in the order of their earliest move: what was ordered first starts first.
func plan(moves []kv.Move, maxBlocks int) []piece {
	order := make([]int, len(moves))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := &moves[i], &moves[j]
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Dst-a.Src, b.Dst-b.Src), cmp.Compare(a.Src, b.Src), cmp.Compare(i, j))
	})
	sorted := make([]kv.Move, len(moves))
	var pieces []piece
	for at, i := range order {
		m := moves[i]
		sorted[at] = m
		if len(pieces) > 0 && len(pieces[len(pieces)-1].moves) < maxBlocks && pieces[len(pieces)-1].continues(m) {
			p := &pieces[len(pieces)-1]
			p.moves = sorted[at-len(p.moves) : at+1]
			p.first = min(p.first, i)
			continue
		}
		pieces = append(pieces, piece{from: m.From, to: m.To, src: m.Src, dst: m.Dst, moves: sorted[at : at+1], first: i})
	}
	slices.SortFunc(pieces, func(a, b piece) int { return cmp.Compare(a.first, b.first) })
	return pieces
}

// continues says whether m moves the neighbour of the piece's last block to the neighbour of where that one goes.
func (p *piece) continues(m kv.Move) bool {
	n := kv.BlockID(len(p.moves))
	return m.From == p.from && m.To == p.to && m.Src == p.src+n && m.Dst == p.dst+n
}
