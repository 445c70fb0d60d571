package tokenizer

// The word cache maps short words to their tokens: direct-mapped, so that its size is fixed and a text made of ever
// new words only makes it useless, not slow. It belongs to one encoder and needs no lock.
const (
	cacheBits    = 16
	cachedBytes  = 16 // longest word that is kept
	cachedTokenN = 5  // most tokens that are kept
)

// cachedTokens is one entry: the word packed in two numbers and its length (0 in an empty entry), and its tokens.
type cachedTokens struct {
	low, high uint64
	bytes     uint8
	tokens    uint8
	ids       [cachedTokenN]int32
}

// cachedWord appends the tokens of a word of 2 to cachedBytes bytes.
func (e *encoder) cachedWord(dst []int32, w string) []int32 {
	low, high := packWord(w)
	h := (low ^ high*hashMul ^ uint64(len(w))) * hashMul
	c := &e.cache[h>>(64-cacheBits)]
	if c.low == low && c.high == high && int(c.bytes) == len(w) {
		return append(dst, c.ids[:c.tokens]...)
	}
	start := len(dst)
	dst = e.scan(dst, w)
	if n := len(dst) - start; n <= cachedTokenN {
		c.low, c.high, c.bytes, c.tokens = low, high, uint8(len(w)), uint8(n)
		copy(c.ids[:], dst[start:])
	}
	return dst
}

// packWord packs 2 to 16 bytes; together with the length the numbers tell words apart. From 8 bytes on the two may
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
