package tokenizer

import (
	"math"
	"unicode/utf8"
)

// runeTokens lets a word start from whole characters instead of bytes, where that cannot change its tokens. A Chinese
// word then takes a third of the merges.
//
// It holds when each token but the bytes is made by exactly one merge, of parts made by earlier ones, as in every
// trained BPE (mergeTable.ordered). Then merging the least rank first is the same as going once through the ranks
// upwards, and the parts of a pair are complete before the pair's turn. So the merges within a character can be done
// first, provided that nothing else takes a part of it: no token goes over an edge of the character without being made
// of whole characters. Qwen3 has 314 tokens like that, for example " \xE5". The set split has the bytes on both sides
// of every edge that they go over; a character with such an edge starts as bytes.
type runeTokens struct {
	token []int32      // by rune up to U+FFFF, the one token that its bytes merge into, or -1; nil if it cannot be used
	split [1024]uint64 // set of byte<<8|byte
}

// newRuneTokens looks at what all tokens decode to.
func newRuneTokens(tokens []string, merges *mergeTable) runeTokens {
	if !merges.ordered {
		return runeTokens{}
	}
	r := runeTokens{token: make([]int32, math.MaxUint16+1)}
	for i := range r.token {
		r.token[i] = -1
	}
	e := &encoder{merges: merges, runes: &runeTokens{}}
	var ids []int32
	for _, token := range tokens {
		if !utf8.ValidString(token) {
			r.addSplit(token)
			continue
		}
		if token == "" || token[0] < utf8.RuneSelf {
			continue
		}
		c, n := utf8.DecodeRuneInString(token)
		if n != len(token) || c > math.MaxUint16 {
			continue
		}
		if ids = e.merge(ids[:0], token); len(ids) == 1 {
			r.token[c] = ids[0]
		}
	}
	return r
}

func (r *runeTokens) addSplit(token string) {
	for i := 1; i < len(token); i++ {
		if utf8.RuneStart(token[i]) {
			pair := uint(token[i-1])<<8 | uint(token[i])
			r.split[pair>>6] |= 1 << (pair & 63)
		}
	}
}

func (r *runeTokens) splits(before, after byte) bool {
	pair := uint(before)<<8 | uint(after)
	return r.split[pair>>6]>>(pair&63)&1 != 0
}

// at is the token of the character at w[i:] and the character's length; the token is -1 when it must start as bytes.
func (r *runeTokens) at(w string, i int) (id int32, n int) {
	c, n := utf8.DecodeRuneInString(w[i:])
	if int(c) >= len(r.token) || i > 0 && r.splits(w[i-1], w[i]) || i+n < len(w) && r.splits(w[i+n-1], w[i+n]) {
		return -1, n
	}
	return r.token[c], n
}

// start appends the tokens that w, which is UTF-8, is merged from.
func (e *encoder) start(ids []int32, w string) []int32 {
	for i := 0; i < len(w); {
		if w[i] < utf8.RuneSelf {
			ids = append(ids, e.merges.bytes[w[i]])
			i++
			continue
		}
		id, n := e.runes.at(w, i)
		if id >= 0 {
			ids = append(ids, id)
		} else {
			for _, b := range []byte(w[i : i+n]) {
				ids = append(ids, e.merges.bytes[b])
			}
		}
		i += n
	}
	return ids
}
