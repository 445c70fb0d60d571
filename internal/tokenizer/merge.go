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
	first  []uint32   // 65,536 ranks of pairs of single bytes, which half of all questions are about
	slots  []uint64   // open-addressed: left, right, rank; emptySlot where there is none
	shift  uint       // 64 minus the bits of len(slots)
	merged []int32    // token by rank
}

const (
	emptySlot = math.MaxUint64
	hashMul   = 0x9E3779B97F4A7C15
)

func newMergeTable(merges int) mergeTable {
	bits := uint(4)
	for 1<<bits < 2*merges {
		bits++
	}
	t := mergeTable{first: make([]uint32, 1<<16), slots: make([]uint64, 1<<bits), shift: 64 - bits, merged: make([]int32, 0, merges)}
	for i := range t.slots {
		t.slots[i] = emptySlot
	}
	return t
}

// add gives the next rank to the pair. A pair that comes again takes its later rank, as the reference has it.
func (t *mergeTable) add(left, right, merged int32) error {
	rank := uint64(len(t.merged))
	if rank >= uint64(len(t.slots))*3/4 || rank >= maxMerges {
		return errors.New("more merges than tokens")
	}
	t.merged = append(t.merged, merged)
	key := pairKey(left, right)
	i := key * hashMul >> t.shift
	for t.slots[i] != emptySlot && t.slots[i]>>rankBits != key {
		i = (i + 1) & uint64(len(t.slots)-1)
	}
	t.slots[i] = key<<rankBits | rank
	return nil
}

// finish fills the table of byte pairs, when t.bytes is known and all merges are in.
func (t *mergeTable) finish() {
	for a, left := range t.bytes {
		for b, right := range t.bytes {
			t.first[a<<8|b] = t.rank(left, right)
		}
	}
}

func pairKey(left, right int32) uint64 { return uint64(left)<<idBits | uint64(right) }

// rank is the rank of the pair, or noRank.
func (t *mergeTable) rank(left, right int32) uint32 {
	key := pairKey(left, right)
	i := key * hashMul >> t.shift
	for {
		s := t.slots[i]
		if s>>rankBits == key {
			return uint32(s & (maxMerges - 1))
		}
		if s == emptySlot {
			return noRank
		}
		i = (i + 1) & uint64(len(t.slots)-1)
	}
}

// scanBytes is the longest word that is merged by scanning for the least rank; longer ones use a heap.
const scanBytes = 64

// word appends the tokens of one word to dst: the pair of the least rank, leftmost of equals, is merged until none is
// left.
func (e *encoder) word(dst []int32, w string) []int32 {
	switch {
	case len(w) == 1:
		return append(dst, e.merges.bytes[w[0]])
	case len(w) <= cachedBytes:
		return e.cachedWord(dst, w)
	case len(w) <= scanBytes:
		return e.shortWord(dst, w)
	}
	return e.longWord(dst, w)
}

// shortWord merges by linear scans, which for few bytes beat any cleverer order.
func (e *encoder) shortWord(dst []int32, w string) []int32 {
	m := e.merges
	ids, ranks := e.ids[:len(w)], e.ranks[:len(w)] // ranks[i] is the rank of ids[i] and ids[i+1]
	for i := range ids {
		ids[i] = m.bytes[w[i]]
	}
	last := len(w) - 1
	for i := range last {
		ranks[i] = m.first[int(w[i])<<8|int(w[i+1])]
	}
	ranks[last] = noRank
	for n := len(w); n > 1; {
		at, least := 0, uint32(noRank)
		for i, r := range ranks[:n] {
			if r < least {
				at, least = i, r
			}
		}
		if least == noRank {
			break
		}
		ids[at] = m.merged[least]
		copy(ids[at+1:n-1], ids[at+2:n])
		copy(ranks[at+1:n-1], ranks[at+2:n])
		n--
		ids, ranks = ids[:n], ranks[:n]
		ranks[at] = noRank
		if at+1 < n {
			ranks[at] = m.rank(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1] = m.rank(ids[at-1], ids[at])
		}
	}
	return append(dst, ids...)
}
