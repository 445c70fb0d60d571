package tokenizer

import (
	"cmp"
	"slices"
	"unicode/utf8"
)

// markedRune is a rune with its combining class.
type markedRune struct {
	r     rune
	class uint8
}

// firstUnsafe is the offset of the first rune of s that NFC may touch, or len(s).
func (t *runeTable) firstUnsafe(s string) int {
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if t.class[r]&unsafe != 0 {
			return i
		}
		i += n
	}
	return len(s)
}

// normalize appends s in NFC to dst. Stretches without unsafe runes are copied; an unsafe rune is normalized together
// with the safe rune before it, to which it may be joined, and all unsafe runes after it.
func (e *encoder) normalize(dst []byte, s string) []byte {
	for {
		at := e.text.firstUnsafe(s)
		if at == len(s) {
			return append(dst, s...)
		}
		_, before := utf8.DecodeLastRuneInString(s[:at])
		dst = append(dst, s[:at-before]...)
		s = s[at-before:]
		end := e.text.unsafeEnd(s, before)
		dst = e.normalizeRun(dst, s[:end])
		s = s[end:]
	}
}

// unsafeEnd is the offset of the first safe rune of s at or after from.
func (t *runeTable) unsafeEnd(s string, from int) int {
	for i := from; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if t.class[r]&unsafe == 0 {
			return i
		}
		i += n
	}
	return len(s)
}

// normalizeRun appends s in NFC to dst: decompose, order marks by class, compose.
func (e *encoder) normalizeRun(dst []byte, s string) []byte {
	run := e.run[:0]
	for _, r := range s {
		run = e.text.decompose(run, r)
	}
	orderMarks(run)
	run = e.text.compose(run)
	for _, m := range run {
		dst = utf8.AppendRune(dst, m.r)
	}
	e.run = run[:0]
	return dst
}

// decompose appends the canonical decomposition of r.
func (t *runeTable) decompose(run []markedRune, r rune) []markedRune {
	if i := r - hangulBase; i >= 0 && i < hangulCount {
		run = append(run, markedRune{r: leadBase + i/syllablesPerLead}, markedRune{r: vowelBase + i%syllablesPerLead/trailCount})
		if trail := i % trailCount; trail != 0 {
			run = append(run, markedRune{r: trailBase + trail})
		}
		return run
	}
	p, ok := t.parts[r]
	if !ok {
		return append(run, markedRune{r, t.combining[r]})
	}
	run = t.decompose(run, p[0])
	if p[1] != 0 {
		run = t.decompose(run, p[1])
	}
	return run
}

// orderMarks sorts each stretch of marks by class, keeping the order of equals.
func orderMarks(run []markedRune) {
	for i := 0; i < len(run); {
		if run[i].class == 0 {
			i++
			continue
		}
		j := i + 1
		for j < len(run) && run[j].class != 0 {
			j++
		}
		slices.SortStableFunc(run[i:j], func(a, b markedRune) int { return cmp.Compare(a.class, b.class) })
		i = j
	}
}

// compose joins in place: each rune to the last starter before it, unless a rune between them has the same class or a
// higher one, or is a starter.
func (t *runeTable) compose(run []markedRune) []markedRune {
	starter, last := -1, uint8(0) // last is the class of the rune before, among those kept after the starter
	out := run[:0]
	for _, m := range run {
		if starter >= 0 && (len(out) == starter+1 || last < m.class) {
			if whole, ok := t.join(out[starter].r, m.r); ok {
				out[starter].r = whole
				continue
			}
		}
		if m.class == 0 {
			starter = len(out)
		}
		last = m.class
		out = append(out, m)
	}
	return out
}

// join is the rune that a and b compose into.
func (t *runeTable) join(a, b rune) (rune, bool) {
	if l, v := a-leadBase, b-vowelBase; l >= 0 && l < leadCount && v >= 0 && v < vowelCount {
		return hangulBase + l*syllablesPerLead + v*trailCount, true
	}
	i, trail := a-hangulBase, b-trailBase
	if i >= 0 && i < hangulCount && i%trailCount == 0 && trail > 0 && trail < trailCount {
		return a + trail, true
	}
	whole, ok := t.whole[[2]rune{a, b}]
	return whole, ok
}
