package tokenizer

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// unicodeData is what the reference takes each code point for; scripts/make_tokenizer_tables.py says how it was made.
//
//go:embed unicode.txt
var unicodeData string

// class is what the split pattern and NFC need to know of a rune. The low bits are its kind, unsafe is a flag beside.
type class uint8

const (
	other   class = iota // anything else
	letter               // \p{L}
	number               // \p{N}
	space                // \s but not a line end
	lineEnd              // \r and \n
	kinds         = 7

	// unsafe marks a rune that NFC may change, move or join to the rune before it. A text without any is in NFC.
	unsafe class = 8
)

func (c class) kind() class { return c & kinds }

// runeTable has what is known of runes: class by rune, and the parts of NFC.
type runeTable struct {
	class     []class // by rune, utf8.MaxRune+1 of them
	combining map[rune]uint8
	parts     map[rune][2]rune // canonical decomposition, one step; the second part may be 0
	whole     map[[2]rune]rune // its inverse, without the excluded ones
}

// Hangul syllables decompose and compose by arithmetic (Unicode, section 3.12).
const (
	hangulBase, hangulCount      = 0xAC00, 11172
	leadBase, leadCount          = 0x1100, 19
	vowelBase, vowelCount        = 0x1161, 21
	trailBase, trailCount        = 0x11A7, 28 // the first is no trail
	syllablesPerLead        rune = vowelCount * trailCount
)

func newRuneTable() (runeTable, error) {
	t := runeTable{class: make([]class, utf8.MaxRune+1), combining: make(map[rune]uint8, 1024),
		parts: make(map[rune][2]rune, 2200), whole: make(map[[2]rune]rune, 1000)}
	for line := range strings.Lines(unicodeData) {
		if err := t.add(strings.Fields(line)); err != nil {
			return runeTable{}, fmt.Errorf("unicode.txt: line %q: %w", line, err)
		}
	}
	t.class['\r'], t.class['\n'] = lineEnd, lineEnd
	t.mark(vowelBase, vowelBase+vowelCount-1)
	t.mark(trailBase+1, trailBase+trailCount-1)
	return t, nil
}

func (t *runeTable) add(fields []string) error {
	var v [4]rune
	for i, f := range fields[1:] {
		n, err := strconv.ParseUint(f, 16, 32)
		if err != nil {
			return err
		}
		v[i] = rune(n)
	}
	switch fields[0] {
	case "L":
		t.fill(v[0], v[1], letter)
	case "N":
		t.fill(v[0], v[1], number)
	case "S":
		t.fill(v[0], v[1], space)
	case "M":
		for r := v[1]; r <= v[2]; r++ {
			t.combining[r] = uint8(v[0])
		}
		t.mark(v[1], v[2])
	case "C":
		t.parts[v[0]] = [2]rune{v[1], v[2]}
		t.whole[[2]rune{v[1], v[2]}] = v[0]
		t.mark(v[2], v[2])
	case "D":
		t.parts[v[0]] = [2]rune{v[1], v[2]}
		t.mark(v[0], v[0])
	default:
		return fmt.Errorf("unknown kind %q", fields[0])
	}
	return nil
}

// fill gives the runes of first..last their kind.
func (t *runeTable) fill(first, last rune, kind class) {
	for r := first; r <= last; r++ {
		t.class[r] |= kind
	}
}

// mark flags the runes of first..last as unsafe.
func (t *runeTable) mark(first, last rune) {
	for r := first; r <= last; r++ {
		t.class[r] |= unsafe
	}
}
