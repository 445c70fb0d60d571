package xfer

import (
	"cmp"
	"slices"

	"larder/internal/kv"
)

// piece is one copy that carries out some moves: neighbours on both sides, because a block is one contiguous piece in
// every tier.
type piece struct {
	from, to kv.Tier
	src, dst kv.BlockID // of the first block
	moves    []kv.Move
}

// plan turns moves into the fewest copies: moves of one direction whose source and destination are both neighbours of
// the one before become one copy. Pieces come in the order of their earliest move, so what was ordered first starts
// first; no piece holds more than maxBlocks blocks, so that a later order does not wait for ever behind a long one.
func plan(moves []kv.Move, maxBlocks int) []piece {
	var pieces []piece
	order := map[kv.MoveID]int{}
	for i, m := range moves {
		order[m.ID] = i
	}
	byPlace := slices.Clone(moves)
	slices.SortFunc(byPlace, func(a, b kv.Move) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Src, b.Src))
	})
	for i, m := range byPlace {
		if i > 0 {
			last := &pieces[len(pieces)-1]
			n := kv.BlockID(len(last.moves))
			if last.from == m.From && last.to == m.To && m.Src == last.src+n && m.Dst == last.dst+n && len(last.moves) < maxBlocks {
				last.moves = append(last.moves, m)
				continue
			}
		}
		pieces = append(pieces, piece{from: m.From, to: m.To, src: m.Src, dst: m.Dst, moves: []kv.Move{m}})
	}
	first := func(p piece) int {
		at := order[p.moves[0].ID]
		for _, m := range p.moves[1:] {
			at = min(at, order[m.ID])
		}
		return at
	}
	slices.SortFunc(pieces, func(a, b piece) int { return cmp.Compare(first(a), first(b)) })
	return pieces
}
