package tokenizer

import "unicode/utf8"

// word appends the tokens of one word to dst: the pair of the least rank, leftmost of equals, is merged until none is
// left.
func (e *encoder) word(dst []int32, w string) []int32 {
	if len(w) > cachedBytes {
		return e.cutWord(dst, w)
	}
	return e.piece(dst, w)
}

// piece is word without a look for seams.
func (e *encoder) piece(dst []int32, w string) []int32 {
	switch {
	case len(w) == 1:
		return append(dst, e.merges.bytes[w[0]])
	case len(w) <= cachedBytes:
		return e.cached(dst, w)
	case len(w) <= scanBytes:
		return e.scan(dst, w)
	}
	dst = e.mergeLong(dst, w)
	e.shrink()
	return dst
}

// The word cache maps short words to their tokens. Its size is fixed, so that a text made of ever new words only makes
// it useless, not slow; two words share a place of one cache line, and the older goes. It belongs to one encoder and
// needs no lock.
const (
	cacheBits   = 15 // of places
	cachedBytes = 16 // longest word that is kept
	cachedIDs   = 5  // most tokens that are kept

	idMask     = 1<<idBits - 1
	idsPerWord = 64 / idBits // in cachedWord.first
	countShift = 40          // in cachedWord.rest, above two ids
	bytesShift = 44
)

// cachedWord is a word of 2 to 16 bytes, packed in two numbers, with its tokens and length, packed in two more. All
// zero is an empty one, as no word has length 0.
type cachedWord struct {
	low, high   uint64
	first, rest uint64
}

// cached appends the tokens of a word of 2 to cachedBytes bytes.
func (e *encoder) cached(dst []int32, w string) []int32 {
	low, high := packWord(w)
	h := (low ^ high*hashMul ^ uint64(len(w))) * hashMul
	place := &e.cache[h>>(64-cacheBits)]
	for i := range place {
		if c := &place[i]; c.low == low && c.high == high && c.rest>>bytesShift == uint64(len(w)) {
			return c.appendIDs(dst)
		}
	}
	start := len(dst)
	dst = e.scan(dst, w)
	if ids := dst[start:]; len(ids) <= cachedIDs {
		place[1] = place[0]
		place[0] = cachedWord{low: low, high: high}
		place[0].setIDs(ids, len(w))
	}
	return dst
}

func (c *cachedWord) setIDs(ids []int32, bytes int) {
	c.rest = uint64(bytes)<<bytesShift | uint64(len(ids))<<countShift
	for i, id := range ids {
		if i < idsPerWord {
			c.first |= uint64(id) << (i * idBits)
		} else {
			c.rest |= uint64(id) << ((i - idsPerWord) * idBits)
		}
	}
}

func (c *cachedWord) appendIDs(dst []int32) []int32 {
	n := c.rest >> countShift & 15
	dst = append(dst, int32(c.first&idMask))
	for i := uint64(1); i < n; i++ {
		if i < idsPerWord {
			dst = append(dst, int32(c.first>>(i*idBits)&idMask))
		} else {
			dst = append(dst, int32(c.rest>>((i-idsPerWord)*idBits)&idMask))
		}
	}
	return dst
}

// packWord packs 2 to 16 bytes; together with the length the numbers tell words apart. From 4 bytes on the two may
// overlap.
func packWord(w string) (low, high uint64) {
	n := len(w)
	switch {
	case n >= 8:
		return load8(w), load8(w[n-8:])
	case n >= 4:
		return load4(w), load4(w[n-4:])
	}
	return uint64(w[0]) | uint64(w[1])<<8 | uint64(w[n-1])<<16, 0
}

func load8(s string) uint64 { return load4(s) | load4(s[4:])<<32 }

func load4(s string) uint64 {
	_ = s[3]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24
}

// seams tells where a word can be cut without changing its tokens: between two characters that stand side by side in
// no token, because then no merge ever goes over that place. Long Chinese words fall into pieces of a few characters,
// which the word cache knows. Only places next to a character beyond ASCII are looked at.
type seams struct {
	pairs []uint64     // Bloom filter with one hash, of pairs of characters within tokens; a false hit costs time only
	bytes [1024]uint64 // set of byte<<8|byte over the edges of characters within tokens that are not UTF-8
}

const seamBits = 20 // of pairs; Qwen3's tokens fill about one bit in 20

func newSeams(tokens []string) seams {
	s := seams{pairs: make([]uint64, 1<<seamBits/64)}
	for _, token := range tokens {
		if utf8.ValidString(token) {
			s.addPairs(token)
		} else {
			s.addBytes(token)
		}
	}
	return s
}

func (s *seams) addPairs(token string) {
	before := rune(-1)
	for _, r := range token {
		if before >= 0 && (before >= utf8.RuneSelf || r >= utf8.RuneSelf) {
			h := seamHash(before, r)
			s.pairs[h>>6] |= 1 << (h & 63)
		}
		before = r
	}
}

func (s *seams) addBytes(token string) {
	for i := 1; i < len(token); i++ {
		if utf8.RuneStart(token[i]) {
			pair := uint(token[i-1])<<8 | uint(token[i])
			s.bytes[pair>>6] |= 1 << (pair & 63)
		}
	}
}

func seamHash(a, b rune) uint64 { return (uint64(a)<<21 | uint64(b)) * hashMul >> (64 - seamBits) }

// apart tells whether a word can be cut between the characters a and b, whose bytes on either side are last and first.
func (s *seams) apart(a, b rune, last, first byte) bool {
	if a < utf8.RuneSelf && b < utf8.RuneSelf {
		return false
	}
	h, pair := seamHash(a, b), uint(last)<<8|uint(first)
	return s.pairs[h>>6]>>(h&63)&1 == 0 && s.bytes[pair>>6]>>(pair&63)&1 == 0
}

// cutWord appends the tokens of a word by those of its pieces between seams.
func (e *encoder) cutWord(dst []int32, w string) []int32 {
	start, before := 0, rune(0)
	for i := 0; i < len(w); {
		r, n := rune(w[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRuneInString(w[i:])
		}
		if i > start && e.seams.apart(before, r, w[i-1], w[i]) {
			dst = e.piece(dst, w[start:i])
			start = i
		}
		before = r
		i += n
	}
	return e.piece(dst, w[start:])
}
