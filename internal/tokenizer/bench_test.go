package tokenizer

import (
	"fmt"
	"go/build"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// corpus is a text of about 1 MB. English and Chinese are drawn from the vocabulary itself: its ids go from common to
// rare, so that they are drawn by Zipf's law; each eighth word is two put together, which no token is. Code is Go's
// standard library. The mix has their lines in turn, 3 MB in all.
func corpus(b testing.TB, t *Tokenizer, name string) string {
	switch name {
	case "english":
		return prose(1<<20, t.words(unicode.Latin), " ", ", ", ". ")
	case "chinese":
		return prose(1<<20, t.words(unicode.Han), "", "，", "。")
	case "code":
		return code(b, 1<<20)
	}
	var out strings.Builder
	lines := [3][]string{}
	for i, name := range []string{"english", "chinese", "code"} {
		lines[i] = strings.SplitAfter(corpus(b, t, name), "\n")
	}
	for i := range max(len(lines[0]), len(lines[1]), len(lines[2])) {
		for _, l := range lines {
			if i < len(l) {
				out.WriteString(l[i])
			}
		}
	}
	return out.String()
}

// words are the tokens that consist of one script's letters, common ones first; a leading space is cut off.
func (t *Tokenizer) words(script *unicode.RangeTable) []string {
	var list []string
	for _, token := range t.vocab.bytes[:t.vocab.base] {
		w := strings.TrimPrefix(token, " ")
		if w != "" && (len(w) < len(token) || script == unicode.Han) && strings.IndexFunc(w, func(r rune) bool { return !unicode.Is(script, r) }) < 0 {
			list = append(list, w)
		}
	}
	return list
}

// prose puts words into sentences and paragraphs.
func prose(size int, words []string, between, comma, end string) string {
	rng := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		rank := math.Pow(float64(len(words)), rng.Float64()) // log-uniform: Zipf's law
		return words[int(rank)-1]
	}
	var b strings.Builder
	for b.Len() < size {
		for range 3 + rng.IntN(5) {
			n := 5 + rng.IntN(16)
			for i := range n {
				b.WriteString(word())
				if rng.IntN(8) == 0 {
					b.WriteString(word())
				}
				switch {
				case i == n-1:
					b.WriteString(end)
				case i%7 == 6:
					b.WriteString(comma)
				default:
					b.WriteString(between)
				}
			}
		}
		b.WriteString("\n\n")
	}
	return b.String()
}

// code is the start of Go's standard library, where it is installed: new names on every line, as in life.
func code(t testing.TB, size int) string {
	files, err := filepath.Glob(filepath.Join(build.Default.GOROOT, "src", "*", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if b.Write(text); b.Len() >= size {
			return strings.ToValidUTF8(b.String()[:size], "")
		}
	}
	t.Skipf("no Go source in GOROOT %q", build.Default.GOROOT)
	return ""
}

var texts = []string{"english", "chinese", "code", "mix"}

// encodeOnce encodes on one core, with the encoder's word cache as it is.
func encodeOnce(t *Tokenizer, text string, dst []int32) []int32 {
	e := t.encoder()
	dst = e.encode(dst[:0], text)
	t.pool.Put(e)
	return dst
}

func BenchmarkEncode(b *testing.B) {
	t := loadQwen(b)
	for _, name := range texts {
		text := corpus(b, t, name)
		b.Run(name+"/warm", func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			dst := encodeOnce(t, text, nil)
			for b.Loop() {
				dst = encodeOnce(t, text, dst)
			}
			b.ReportMetric(float64(len(dst))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtok/s")
		})
		b.Run(name+"/cold", func(b *testing.B) { // the word cache starts empty
			b.SetBytes(int64(len(text)))
			e := t.encoder()
			var dst []int32
			for b.Loop() {
				clear(e.cache)
				dst = e.encode(dst[:0], text)
			}
		})
	}
}

func BenchmarkEncodeParallel(b *testing.B) {
	t := loadQwen(b)
	text := corpus(b, t, "mix")
	b.SetBytes(int64(len(text)))
	var dst []int32
	for b.Loop() {
		dst = t.Encode(text, dst[:0])
	}
}

// BenchmarkRuns are the texts of one word that only a heap keeps near-linear: the rate should fall little from 64 KiB
// to 1 MiB.
func BenchmarkRuns(b *testing.B) {
	t := loadQwen(b)
	for _, c := range []struct{ name, unit string }{{"letter", "a"}, {"space", " "}, {"han", "好"}, {"mark", "\u0301"}, {"letters", "qzjxkvbpwygf"}} {
		for _, size := range []int{1 << 16, 1 << 20} {
			text := strings.Repeat(c.unit, size/len(c.unit))
			b.Run(fmt.Sprintf("%s/%dKiB", c.name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				var dst []int32
				for b.Loop() {
					dst = encodeOnce(t, text, dst)
				}
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	t := loadQwen(b)
	text := corpus(b, t, "mix")
	ids := t.Encode(text, nil)
	b.Run("batch", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			t.Decode(ids, true)
		}
	})
	b.Run("stream", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		s := t.NewStream(true)
		for b.Loop() {
			for _, id := range ids {
				s.Push(id)
			}
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	loadQwen(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Load(qwenData); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRenderChat(b *testing.B) {
	messages := []Message{{Role: "system", Content: "You are helpful."}, {Role: "user", Content: english}, {Role: "assistant", Content: english}, {Role: "user", Content: "Go on."}}
	for b.Loop() {
		if _, err := RenderChat(messages, ChatOptions{AddGenerationPrompt: true}); err != nil {
			b.Fatal(err)
		}
	}
}
