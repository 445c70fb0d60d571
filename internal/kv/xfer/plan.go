package xfer

import (
	"cmp"
	"slices"

	"larder/internal/kv"
)

// piece is one copy that carries out some moves: n blocks that are neighbours on both sides, and one contiguous piece
// on both, because a block holds all layers in every tier. A slice of their layers would be one 2-D copy: the slice's
// bytes wide, a block's bytes apart, n rows.
type piece struct {
	from, to kv.Tier
	src, dst kv.BlockID // of the first block
	moves    []kv.Move  // in the order of the blocks
	first    int        // the earliest of them in the list of orders
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
