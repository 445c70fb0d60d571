package tokenizer

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// encoder is the working memory of one Encode, reused through Tokenizer.pool. Its tables are the tokenizer's.
type encoder struct {
	text   *runeTable
	merges *mergeTable
	seams  *seams
	added  *addedTokens

	cache [][2]cachedWord
	ids   [scanBytes]int32
	ranks [scanBytes]uint32
	list  []longNode
	heap  []candidate
	norm  []byte
	run   []markedRune
}

// keptNodes bounds what one long word leaves allocated in a pooled encoder (1 MiB).
const keptNodes = 1 << 16

func (e *encoder) shrink() {
	if cap(e.list) > keptNodes {
		e.list, e.heap = nil, nil
	}
}

func (t *Tokenizer) encoder() *encoder {
	if e, ok := t.pool.Get().(*encoder); ok {
		return e
	}
	return &encoder{text: &t.text, merges: &t.merges, seams: &t.seams, added: &t.added, cache: make([][2]cachedWord, 1<<cacheBits)}
}

// A text longer than parallelBytes is encoded in pieces of about pieceBytes, on all cores.
const (
	parallelBytes = 128 << 10
	pieceBytes    = 32 << 10
)

// Encode appends the ids of text to dst. Added tokens written out in text, special ones too, become their ids; nothing
// is put before or after. It is safe for concurrent use and needs about n log n time for n bytes.
func (t *Tokenizer) Encode(text string, dst []int32) []int32 {
	if !utf8.ValidString(text) {
		text = string([]rune(text)) // each wrong byte becomes U+FFFD
	}
	workers := runtime.GOMAXPROCS(0)
	if len(text) > parallelBytes && workers > 1 {
		return t.encodeParallel(text, dst, workers)
	}
	e := t.encoder()
	dst = e.encode(dst, text)
	t.pool.Put(e)
	return dst
}

// encodeParallel encodes the pieces of text on several goroutines.
func (t *Tokenizer) encodeParallel(text string, dst []int32, workers int) []int32 {
	cuts := t.cuts(text, pieceBytes)
	ids := make([][]int32, len(cuts)-1)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(workers, len(ids)) {
		wg.Go(func() {
			e := t.encoder()
			for i := next.Add(1) - 1; i < int64(len(ids)); i = next.Add(1) - 1 {
				piece := text[cuts[i]:cuts[i+1]]
				ids[i] = e.encode(make([]int32, 0, len(piece)/3), piece)
			}
			t.pool.Put(e)
		})
	}
	wg.Wait()
	for _, piece := range ids {
		dst = append(dst, piece...)
	}
	return dst
}

// encode appends the ids of text, which is UTF-8.
func (e *encoder) encode(dst []int32, text string) []int32 {
	for text != "" {
		at, end, id := e.added.find(text)
		if at > 0 {
			dst = e.plain(dst, text[:at])
		}
		if end == at {
			break
		}
		dst = append(dst, id)
		text = text[end:]
	}
	return dst
}

// plain appends the ids of a text between added tokens.
func (e *encoder) plain(dst []int32, text string) []int32 {
	if e.text.firstUnsafe(text) < len(text) {
		e.norm = e.normalize(e.norm[:0], text)
		text = string(e.norm)
	}
	for i := 0; i < len(text); {
		end := e.text.nextWord(text, i)
		dst = e.word(dst, text[i:end])
		i = end
	}
	return dst
}

// cuts are offsets of text, from 0 to len(text), such that the pieces between them encode to what text does. Pieces are
// at least size bytes, and longer where no cut is safe.
func (t *Tokenizer) cuts(text string, size int) []int {
	cuts := []int{0}
	for at := 0; at < len(text); {
		from, end, _ := t.added.find(text[at:])
		plain := text[at : at+from]
		for {
			i := t.text.safeCut(plain, cuts[len(cuts)-1]+size-at)
			if i < 0 {
				break
			}
			cuts = append(cuts, at+i)
		}
		at += max(end, from)
		if at-cuts[len(cuts)-1] >= size && at < len(text) {
			cuts = append(cuts, at)
		}
	}
	return append(cuts, len(text))
}

// safeCut is the first offset of s, at or after from and inside s, that both is between two words whatever surrounds s
// and parts nothing that NFC would join; -1 if there is none. No match of the split pattern goes on after a number, or
// from a letter to anything else, and a match depends on nothing before it; both runes being safe keeps NFC apart.
func (t *runeTable) safeCut(s string, from int) int {
	i := max(from, 1)
	for i < len(s) && !utf8.RuneStart(s[i]) {
		i++
	}
	if i >= len(s) {
		return -1
	}
	r, _ := utf8.DecodeLastRuneInString(s[:i])
	before := t.class[r]
	for i < len(s) {
		r, n := utf8.DecodeRuneInString(s[i:])
		c := t.class[r]
		if c&unsafe == 0 && (before == number || before == letter && c != letter) {
			return i
		}
		before = c
		i += n
	}
	return -1
}
