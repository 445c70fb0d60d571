package tokenizer

import "unicode/utf8"

// splitPattern is the only pattern that nextWord matches. A tokenizer.json with another is refused.
const splitPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// at is the class and the length of the rune at s[i:].
func (t *runeTable) at(s string, i int) (class, int) {
	if c := s[i]; c < utf8.RuneSelf {
		return t.class[c].kind(), 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return t.class[r].kind(), n
}

// nextWord is the end of the match of splitPattern that starts at s[i]. There always is one; i < len(s).
func (t *runeTable) nextWord(s string, i int) int {
	c := s[i]
	if c == '\'' {
		if n := contraction(s[i+1:]); n > 0 {
			return i + 1 + n
		}
	}
	kind, n := t.at(s, i)
	next := i + n
	switch kind {
	case letter:
		return t.skip(s, next, letter)
	case number:
		return next
	case lineEnd:
		return t.skipSpace(s, i)
	}
	if next < len(s) { // any other rune may lead a run of letters
		k, m := t.at(s, next)
		if k == letter {
			return t.skip(s, next+m, letter)
		}
		if c == ' ' && k == other {
			return t.skipLineEnds(s, t.skip(s, next+m, other))
		}
	}
	if kind == other {
		return t.skipLineEnds(s, t.skip(s, next, other))
	}
	return t.skipSpace(s, i)
}

// contraction is the length of what follows the apostrophe in 's, 't, 're, 've, 'm, 'll or 'd in any case, or 0.
// U+017F is an s.
func contraction(s string) int {
	if len(s) == 0 {
		return 0
	}
	switch s[0] | 0x20 {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v':
		if len(s) > 1 && s[1]|0x20 == 'e' {
			return 2
		}
	case 'l':
		if len(s) > 1 && s[1]|0x20 == 'l' {
			return 2
		}
	}
	if len(s) > 1 && s[0] == 0xC5 && s[1] == 0xBF {
		return 2
	}
	return 0
}

// skip is the end of the run of runes of the given kind that starts at s[i].
func (t *runeTable) skip(s string, i int, kind class) int {
	for i < len(s) {
		k, n := t.at(s, i)
		if k != kind {
			break
		}
		i += n
	}
	return i
}

func (t *runeTable) skipLineEnds(s string, i int) int {
	for i < len(s) && (s[i] == '\n' || s[i] == '\r') {
		i++
	}
	return i
}

// skipSpace is the end of the match in a run of white space: after its last line end if it has one, else before its
// last rune if a word follows, else all of it.
func (t *runeTable) skipSpace(s string, i int) int {
	start, afterLineEnd, lastRune := i, -1, i
	for i < len(s) {
		k, n := t.at(s, i)
		if k != space && k != lineEnd {
			break
		}
		lastRune = i
		i += n
		if k == lineEnd {
			afterLineEnd = i
		}
	}
	switch {
	case afterLineEnd >= 0:
		return afterLineEnd
	case i < len(s) && lastRune > start:
		return lastRune
	}
	return i
}
