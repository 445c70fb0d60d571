// Package kv is the vocabulary of the KV cache: what a block is, how large, where it may live, what names it, and
// the order to move it. It holds no bytes and takes no decisions.
//
// Start at Layout and Key; Move is what package kv/cache orders and kv/xfer carries out.
package kv

import (
	"errors"
	"fmt"

	"larder/internal/arch"
)

// Tier is a place where blocks live. A lower value is a faster tier.
type Tier uint8

// The tiers, fastest first.
const (
	Device Tier = iota // HBM on a GPU; the compute pool of RAM on a CPU
	Host               // pinned host memory on a GPU; a second pool of RAM on a CPU
	NumTiers
)

// String is the tier's name in reports, metrics and the HTTP API.
func (t Tier) String() string {
	switch t {
	case Device:
		return "device"
	case Host:
		return "host"
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// BlockID numbers a block within its tier's pool, from 0.
type BlockID int32

// Layout is the shape of a block. A block holds BlockTokens tokens of all layers, block-first in every tier:
// [layer][K|V][kv head][token][dim], so that a block is one contiguous piece for a link, a disk or a network, and one
// layer of a run of neighbouring blocks is one 2-D copy.
type Layout struct {
	Layers      int
	KVHeads     int
	HeadDim     int
	BlockTokens int // a power of two
	DType       arch.DType
}

// LayoutOf is the layout of cfg's KV with blocks of blockTokens tokens.
func LayoutOf(cfg *arch.Config, blockTokens int, dtype arch.DType) Layout {
	return Layout{Layers: cfg.NumLayers, KVHeads: cfg.NumKVHeads, HeadDim: cfg.HeadDim, BlockTokens: blockTokens, DType: dtype}
}

// HeadBytes is the size of one head's K (or V) of one layer of a block.
func (l Layout) HeadBytes() int64 {
	return int64(l.BlockTokens) * int64(l.HeadDim) * int64(l.DType.Size())
}

// LayerBytes is the size of one layer of a block, K and V.
func (l Layout) LayerBytes() int64 { return 2 * int64(l.KVHeads) * l.HeadBytes() }

// BlockBytes is the size of a block.
func (l Layout) BlockBytes() int64 { return int64(l.Layers) * l.LayerBytes() }

// TokenBytes is the size of one token's K and V over all layers.
func (l Layout) TokenBytes() int64 { return l.BlockBytes() / int64(l.BlockTokens) }

// Blocks is the number of blocks that hold n tokens.
func (l Layout) Blocks(n int) int { return (n + l.BlockTokens - 1) / l.BlockTokens }

// HeadOffset is where K (or, with value set, V) of one head of one layer starts, in bytes from the pool's start.
func (l Layout) HeadOffset(b BlockID, layer int, value bool, head int) int64 {
	off := int64(b)*l.BlockBytes() + int64(layer)*l.LayerBytes() + int64(head)*l.HeadBytes()
	if value {
		off += int64(l.KVHeads) * l.HeadBytes()
	}
	return off
}

// Validate reports what is wrong with the layout.
func (l Layout) Validate() error {
	if l.Layers < 1 || l.KVHeads < 1 || l.HeadDim < 1 || l.DType.Size() == 0 {
		return fmt.Errorf("kv layout %+v: layers, KV heads, head dim and dtype must be set", l)
	}
	if l.BlockTokens < 1 || l.BlockTokens&(l.BlockTokens-1) != 0 {
		return fmt.Errorf("kv block of %d tokens: must be a power of two", l.BlockTokens)
	}
	return nil
}

// MoveID names an order to move a block; it is never used twice in one process.
type MoveID uint64

// ErrLate is the error of a move that was dropped before it started, because it would have come too late to be of use.
// Nothing of it was written.
var ErrLate = errors.New("kv: the move was not started by its deadline")

// Move orders the copy of one block from one tier to another. The source may not be overwritten nor the destination
// read until the move is reported done. Moves of one list that go the same way may be carried out in any order and
// coalesced: neighbours on both sides make one copy.
type Move struct {
	ID       MoveID
	From, To Tier
	Src, Dst BlockID
}
