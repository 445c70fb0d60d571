package tokenizer

import (
	"errors"
	"math"
)

// noRank is the rank of a pair that does not merge.
const noRank = math.MaxUint32

// Limits of what mergeTable packs into one word: left id, right id, rank.
const (
	idBits    = 20
	rankBits  = 24
	maxIDs    = 1<<idBits - 1 // so that no key is all ones
	maxMerges = 1 << rankBits
)

// mergeTable answers which rank a pair of tokens merges at (the lower, the sooner), and into what.
type mergeTable struct {
	bytes  [256]int32 // token of each single byte
	small  []uint32   // ranks of pairs of ids below 256, mostly bytes, which half of all questions are about
	maybe  []uint64   // Bloom filter of one hash, small enough for a near cache: most pairs do not merge
	slots  []uint64   // open-addressed: left, right, rank; emptySlot where there is none
	shift  uint       // 64 minus the bits of len(slots)
	merged []int32    // token by rank
}

const (
	emptySlot = math.MaxUint64
	hashMul   = 0x9E3779B97F4A7C15
	smallIDs  = 256

	filterBits = 2 // bits of the filter for each slot, as a power of two
)

// newMergeTable is a table for a vocabulary with ids below size.
func newMergeTable(size int, bytes [256]int32) mergeTable {
	bits := uint(4)
	for 1<<bits < size+size/2 {
		bits++
	}
	t := mergeTable{bytes: bytes, small: make([]uint32, smallIDs*smallIDs), maybe: make([]uint64, 1<<(bits+filterBits)/64),
		slots: make([]uint64, 1<<bits), shift: 64 - bits,
		merged: make([]int32, 0, size)}
	for i := range t.slots {
		t.slots[i] = emptySlot
	}
	for i := range t.small {
		t.small[i] = noRank
	}
	return t
}

// add gives the next rank to the pair. A pair that comes again takes its later rank, as the reference has it.
func (t *mergeTable) add(left, right, merged int32) error {
	rank := len(t.merged)
	if rank >= len(t.slots)*3/4 || rank >= maxMerges {
		return errors.New("far more merges than tokens")
	}
	t.merged = append(t.merged, merged)
	if uint32(left|right) < smallIDs {
		t.small[left<<8|right] = uint32(rank)
		return nil
	}
	key := pairKey(left, right)
	h := key * hashMul
	f := h >> (t.shift - filterBits)
	t.maybe[f>>6] |= 1 << (f & 63)
	i := h >> t.shift
	for t.slots[i] != emptySlot && t.slots[i]>>rankBits != key {
		i = (i + 1) & uint64(len(t.slots)-1)
	}
	t.slots[i] = key<<rankBits | uint64(rank)
	return nil
}

func pairKey(left, right int32) uint64 { return uint64(left)<<idBits | uint64(right) }

// rank is the rank of the pair, or noRank.
func (t *mergeTable) rank(left, right int32) uint32 {
	if uint32(left|right) < smallIDs {
		return t.small[left<<8|right]
	}
	key := pairKey(left, right)
	h := key * hashMul
	f := h >> (t.shift - filterBits)
	if t.maybe[f>>6]>>(f&63)&1 == 0 {
		return noRank
	}
	for i := h >> t.shift; ; i = (i + 1) & uint64(len(t.slots)-1) {
		s := t.slots[i]
		if s>>rankBits == key {
			return uint32(s & (maxMerges - 1))
		}
		if s == emptySlot {
			return noRank
		}
	}
}

// scanBytes is the longest word that is merged by scanning for the least rank; longer ones use a heap.
const scanBytes = 64

// scan merges a word of at most scanBytes by linear scans, which for few bytes beat any cleverer order.
func (e *encoder) scan(dst []int32, w string) []int32 {
	m := e.merges
	ids, ranks := e.ids[:len(w)], e.ranks[:len(w)] // ranks[i] is the rank of ids[i] and ids[i+1]
	for i := range ids {
		ids[i] = m.bytes[w[i]]
	}
	last := len(ids) - 1
	for i := range last {
		ranks[i] = m.rank(ids[i], ids[i+1])
	}
	ranks[last] = noRank
	for {
		first := uint64(math.MaxUint64)
		for i, r := range ranks {
			first = min(first, uint64(r)<<8|uint64(i)) // without branches
		}
		at, least := int(first&255), uint32(first>>8)
		if least == noRank {
			return append(dst, ids...)
		}
		ids[at] = m.merged[least]
		copy(ids[at+1:], ids[at+2:])
		copy(ranks[at+1:], ranks[at+2:])
		ids, ranks = ids[:last], ranks[:last]
		last--
		ranks[at] = noRank
		if at < last {
			ranks[at] = m.rank(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1] = m.rank(ids[at-1], ids[at])
		}
	}
}
