package tokenizer

import (
	"unicode/utf8"
)

// Decode is the text of ids. Ids that name no token give nothing, and neither do special tokens if skipSpecial. Bytes
// that are not UTF-8 become U+FFFD, one for each longest start of a character, as the reference and browsers have it.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	n := 0
	for _, id := range ids {
		n += len(t.piece(id, skipSpecial))
	}
	raw := make([]byte, 0, n)
	for _, id := range ids {
		raw = append(raw, t.piece(id, skipSpecial)...)
	}
	if utf8.Valid(raw) {
		return string(raw)
	}
	text, rest := appendValid(make([]byte, 0, n+2*utf8.UTFMax), raw)
	return string(appendBroken(text, rest))
}

// piece is what id adds to a decoded text, in bytes that may be part of a character.
func (t *Tokenizer) piece(id int32, skipSpecial bool) string {
	if !t.vocab.has(id) || skipSpecial && t.vocab.special[id] {
		return ""
	}
	return t.vocab.bytes[id]
}

// Stream decodes an answer as its tokens come. What it hands out is always whole characters; put together it is what
// Decode makes of all the ids. It belongs to one goroutine.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	held        []byte // the start of a character, at most 3 bytes between calls
	out         []byte
}

// NewStream starts a stream; skipSpecial leaves special tokens out.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	return &Stream{t: t, skipSpecial: skipSpecial}
}

// Push is the text that ids make certain.
func (s *Stream) Push(ids ...int32) string {
	if len(ids) == 1 && len(s.held) == 0 {
		if text := s.t.piece(ids[0], s.skipSpecial); utf8.ValidString(text) {
			return text
		}
	}
	for _, id := range ids {
		s.held = append(s.held, s.t.piece(id, s.skipSpecial)...)
	}
	var rest []byte
	s.out, rest = appendValid(s.out[:0], s.held)
	s.held = append(s.held[:0], rest...)
	return string(s.out)
}

// Flush ends the stream: U+FFFD if it ended within a character, else nothing. The stream can then be used again.
func (s *Stream) Flush() string {
	text := string(appendBroken(nil, s.held))
	s.held = s.held[:0]
	return text
}

// appendValid appends raw to dst as UTF-8, with U+FFFD for each longest start of a character that does not go on.
// rest is the start of a character that the end of raw cuts off, if any.
func appendValid(dst, raw []byte) (text, rest []byte) {
	for i := 0; i < len(raw); {
		r, n := utf8.DecodeRune(raw[i:])
		if r == utf8.RuneError && n == 1 {
			n = brokenLen(raw[i:])
			if i+n == len(raw) && !utf8.FullRune(raw[i:]) {
				return dst, raw[i:]
			}
			dst = utf8.AppendRune(dst, utf8.RuneError)
			i += n
			continue
		}
		dst = append(dst, raw[i:i+n]...)
		i += n
	}
	return dst, nil
}

// appendBroken appends what rest, a start of a character that nothing follows, is shown as.
func appendBroken(dst, rest []byte) []byte {
	if len(rest) == 0 {
		return dst
	}
	return utf8.AppendRune(dst, utf8.RuneError)
}

// brokenLen is the length of the longest start of a character at the beginning of raw, which is not a whole one; at
// least 1.
func brokenLen(raw []byte) int {
	n := 1
	for n < len(raw) && n < utf8.UTFMax && !utf8.FullRune(raw[:n]) {
		n++
	}
	if n > 1 && utf8.FullRune(raw[:n]) {
		n-- // the last byte made it wrong
	}
	return n
}

// levels are the characters that ByteLevel writes bytes with: printable Latin-1 stands for itself, the others, in order,
// are U+0100 and up.
type levels struct {
	runes [256]rune  // by byte
	bytes [512]int16 // by rune, -1 for a rune that stands for no byte
}

func byteLevel() *levels {
	l := &levels{}
	for r := range l.bytes {
		l.bytes[r] = -1
	}
	moved := rune(0x100)
	for b := range rune(256) {
		r := b
		if !(b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE) {
			r = moved
			moved++
		}
		l.runes[b], l.bytes[r] = r, int16(b)
	}
	return l
}

// appendDecoded appends what a token in its written form decodes to: its bytes if it is made of ByteLevel's characters
// only, else itself.
func appendDecoded(dst []byte, written string, l *levels) []byte {
	start := len(dst)
	for _, r := range written {
		if int(r) >= len(l.bytes) || l.bytes[r] < 0 {
			return append(dst[:start], written...)
		}
		dst = append(dst, byte(l.bytes[r]))
	}
	return dst
}
