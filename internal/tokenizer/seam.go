package tokenizer

import "unicode/utf8"

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
