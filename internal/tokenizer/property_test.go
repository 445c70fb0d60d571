package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

// alphabets are what random texts are drawn from, a few characters of one at a time.
var alphabets = []string{
	"abcdefghijklmnopqrstuvwxyz", "THEQUICK", "0123456789٣Ⅷ½", " ", " \t\n\r", "\n", "'strevmld'ſ", ".,;:!?(){}<>|_-", "你好世界我们的人在中国大是有这", "，。！？",
	"ひらカタプ゙", "가각힣한국어", "\u1100\u1112\u1161\u1175\u11a7\u11a8\u11c2", "\u0301\u0323\u0327\u0334\u0345\u3099", "aeéüñÅ", "привет", "नमस्ते", "😀👍🏽\u200d\ufe0f", "\u0085\u00a0\ufeff\u3000",
}

// english and chinese are common words.
const (
	english = "the of and to in is it that for was with he be they this have from by one had not but what all were when there an can your which " +
		"their said information international university performance throughput latency tokenizer transformer hierarchical don't it's we've"
	chinese = "我们 今天 中国 因为 所以 但是 如果 可以 没有 什么 世界 人工智能 模型 计算 内存 的 了 在 是 和 有 不 这 个 人 他 来 说 经济 社会 政府 企业 技术 带宽 延迟 缓存 上下文"
)

// textGen draws a text: runs of one alphabet, common words, and added tokens, whole or cut.
func textGen(added []string) *rapid.Generator[string] {
	var parts []*rapid.Generator[string]
	for _, a := range alphabets {
		parts = append(parts, rapid.StringOfN(rapid.SampledFrom([]rune(a)), 1, 12, -1))
	}
	parts = append(parts, rapid.SampledFrom(strings.Fields(english+" "+chinese)), rapid.SampledFrom(added),
		rapid.Map(rapid.SampledFrom(added), func(s string) string { return s[:len(s)-1] }),
		rapid.Map(rapid.SampledFrom([]rune("ab 好!=")), func(r rune) string { return strings.Repeat(string(r), 90) }))
	return rapid.Map(rapid.SliceOfN(rapid.OneOf(parts...), 0, 20), func(s []string) string { return strings.Join(s, "") })
}

// tokenizers are the tiny one and, where the data is, Qwen3's.
func tokenizers(t *testing.T) map[string]string {
	paths := map[string]string{"tiny": filepath.Join("testdata", "tiny")}
	if _, err := os.Stat(filepath.Join(qwenData, "tokenizer.json")); err == nil {
		paths["qwen3"] = qwenData
	} else {
		t.Log("no Qwen3 tokenizer data: only the tiny tokenizer is tested")
	}
	return paths
}

// forEach runs check on every tokenizer that there is.
func forEach(t *testing.T, check func(t *testing.T, tok *Tokenizer, texts *rapid.Generator[string])) {
	for name, path := range tokenizers(t) {
		t.Run(name, func(t *testing.T) {
			tok := load(t, path)
			check(t, tok, textGen(tok.addedWritten()))
		})
	}
}

// addedWritten are the added tokens.
func (t *Tokenizer) addedWritten() []string {
	var all []string
	for _, s := range t.vocab.written[t.vocab.base:] {
		if s != "" {
			all = append(all, s)
		}
	}
	return all
}

// oracle merges as the definition says: find the pair of the least rank, leftmost, and merge it, until there is none.
type oracle struct {
	ranks map[[2]string]int
	ids   map[string]int32
}

func newOracle(t *testing.T, path string) *oracle {
	data, err := os.ReadFile(filepath.Join(path, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Model struct {
			Vocab  map[string]int32
			Merges [][2]string
		}
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	o := &oracle{ranks: map[[2]string]int{}, ids: file.Model.Vocab}
	for rank, pair := range file.Model.Merges {
		o.ranks[pair] = rank
	}
	return o
}

func (o *oracle) word(w string) []int32 {
	level := byteLevel()
	var tokens []string
	for i := range len(w) {
		tokens = append(tokens, string(level.runes[w[i]]))
	}
	for {
		at, least := -1, len(o.ranks)
		for i := range len(tokens) - 1 {
			if r, ok := o.ranks[[2]string{tokens[i], tokens[i+1]}]; ok && r < least {
				at, least = i, r
			}
		}
		if at < 0 {
			break
		}
		tokens = slices.Replace(tokens, at, at+2, tokens[at]+tokens[at+1])
	}
	var ids []int32
	for _, t := range tokens {
		ids = append(ids, o.ids[t])
	}
	return ids
}

// TestWordIsByDefinition holds cache, scan, heap and seams to the definition, on words of any characters.
func TestWordIsByDefinition(t *testing.T) {
	for name, path := range tokenizers(t) {
		t.Run(name, func(t *testing.T) {
			tok, o := load(t, path), newOracle(t, path)
			e, words := tok.encoder(), textGen(tok.addedWritten())
			rapid.Check(t, func(t *rapid.T) {
				w := words.Draw(t, "word")
				if w == "" {
					return
				}
				want := o.word(w)
				for range 2 { // the second may come from the cache
					if got := e.word(nil, w); !slices.Equal(got, want) {
						t.Fatalf("word(%q) = %v, want %v", w, got, want)
					}
				}
			})
		})
	}
}

// TestPieces cuts texts as encodeParallel does, only much smaller.
func TestPieces(t *testing.T) {
	forEach(t, func(t *testing.T, tok *Tokenizer, texts *rapid.Generator[string]) {
		cut := 0
		rapid.Check(t, func(t *rapid.T) {
			text, size := texts.Draw(t, "text"), rapid.IntRange(1, 40).Draw(t, "size")
			cuts := tok.cuts(text, size)
			var got []int32
			e := tok.encoder()
			for i, end := range cuts[1:] {
				if end <= cuts[i] && text != "" {
					t.Fatalf("cuts of %q: %v", text, cuts)
				}
				got = e.encode(got, text[cuts[i]:end])
			}
			if len(cuts) > 2 {
				cut++
			}
			if want := e.encode(nil, text); !slices.Equal(got, want) {
				t.Fatalf("%q cut at %v is %v, whole %v", text, cuts, got, want)
			}
		})
		if cut < 10 {
			t.Errorf("only %d texts were cut", cut)
		}
	})
}

// TestLongTextIsCut makes sure that a long text of any kind really goes in parallel, and comes out the same.
func TestLongTextIsCut(t *testing.T) {
	tok := loadTiny(t)
	for _, unit := range []string{"word ", "你好，世界。", "12345", "x = y;\n", "<think>!", "ab  \n"} {
		text := strings.Repeat(unit, (parallelBytes+100)/len(unit)+1)
		if n := len(tok.cuts(text, pieceBytes)) - 1; n < 4 {
			t.Errorf("%q repeated to %d bytes is cut into %d", unit, len(text), n)
		}
		e := tok.encoder()
		if !slices.Equal(tok.encodeParallel(text, []int32{7}, 3), append([]int32{7}, e.encode(nil, text)...)) {
			t.Errorf("%q repeated: pieces differ from the whole", unit)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := loadTiny(t)
	texts := []string{strings.Repeat("the quick 你好 ", 9000), "hello <|im_end|>", strings.Repeat("e\u0301", 300), strings.Repeat("a", 500)}
	var want [][]int32
	for _, text := range texts {
		want = append(want, tok.Encode(text, nil))
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 12 {
				n := (worker + i) % len(texts)
				if got := tok.Encode(texts[n], nil); !slices.Equal(got, want[n]) {
					t.Errorf("text %d: other ids when used at once", n)
				}
				tok.Decode(want[n], true)
			}
		})
	}
	wg.Wait()
}

// TestRoundTrip also holds NFC to golang.org/x/text, which follows a later Unicode and is used where both agree: up to
// 30 marks in a row, on characters that were there in Unicode 9.
func TestRoundTrip(t *testing.T) {
	forEach(t, func(t *testing.T, tok *Tokenizer, texts *rapid.Generator[string]) {
		rapid.Check(t, func(t *rapid.T) {
			text := texts.Draw(t, "text")
			want := tok.normalized(text, norm.NFC.String)
			if got := tok.Decode(tok.Encode(text, nil), false); got != want {
				t.Fatalf("%q comes back as %q, want %q", text, got, want)
			}
		})
	})
}

// normalized applies nfc between added tokens.
func (t *Tokenizer) normalized(text string, nfc func(string) string) string {
	var b strings.Builder
	for text != "" {
		at, end, _ := t.added.find(text)
		b.WriteString(nfc(text[:at]))
		b.WriteString(text[at:end])
		text = text[end:]
	}
	return b.String()
}

func TestManyMarks(t *testing.T) {
	tok := loadTiny(t)
	e := tok.encoder()
	marks := "\u0301\u0323\u0334"
	got := string(e.normalize(nil, "xa"+strings.Repeat(marks, 1000)+"b"))
	want := "xạ" + strings.Repeat("\u0334", 1000) + strings.Repeat("\u0323", 999) + strings.Repeat("\u0301", 1000) + "b"
	if got != want {
		t.Errorf("got %.60q (%d bytes), want %.60q (%d bytes)", got, len(got), want, len(want))
	}
	if again := string(e.normalize(nil, got)); again != got {
		t.Error("normalizing twice changes the text")
	}
}

func TestWrongBytes(t *testing.T) {
	tok := loadTiny(t)
	got, want := tok.Encode("a\xff\xe4\xbdb", nil), tok.Encode("a\ufffd\ufffd\ufffdb", nil)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// checkStream pushes ids in parts of the given sizes.
func checkStream(t interface {
	Helper()
	Fatalf(string, ...any)
}, tok *Tokenizer, ids []int32, size int, skip bool) {
	t.Helper()
	s := tok.NewStream(skip)
	var b strings.Builder
	for part := range slices.Chunk(ids, size) {
		text := s.Push(part...)
		if !utf8.ValidString(text) {
			t.Fatalf("Push(%v) gave out %q", part, text)
		}
		b.WriteString(text)
	}
	b.WriteString(s.Flush())
	if want := tok.Decode(ids, skip); b.String() != want {
		t.Fatalf("ids %v in parts of %d: %q, want %q", ids, size, b.String(), want)
	}
	if rest := s.Flush(); rest != "" {
		t.Fatalf("Flush twice gave %q", rest)
	}
}

func TestStream(t *testing.T) {
	forEach(t, func(t *testing.T, tok *Tokenizer, texts *rapid.Generator[string]) {
		size := int32(tok.VocabSize())
		id := rapid.OneOf(rapid.Int32Range(0, 255), rapid.Int32Range(0, size-1), rapid.Int32Range(size-40, size+2), rapid.Just(int32(-1)))
		rapid.Check(t, func(t *rapid.T) {
			ids := rapid.SliceOf(id).Draw(t, "ids")
			if rapid.Bool().Draw(t, "text") {
				ids = tok.Encode(texts.Draw(t, "of"), nil)
			}
			checkStream(t, tok, ids, rapid.IntRange(1, 4).Draw(t, "size"), rapid.Bool().Draw(t, "skip"))
		})
	})
}

func TestStreamHoldsBack(t *testing.T) {
	tok := loadTiny(t)
	level := byteLevel()
	s := tok.NewStream(false)
	var got []string
	for _, b := range []byte("a\xe4\xbd\xa0\xf0\x9f\xf0\x9f") {
		id, ok := tok.ID(string(level.runes[b]))
		if !ok {
			t.Fatalf("no token for byte %#x", b)
		}
		got = append(got, s.Push(id))
	}
	got = append(got, s.Flush())
	if want := []string{"a", "", "", "你", "", "", "\ufffd", "", "\ufffd"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLookups(t *testing.T) {
	tok := loadTiny(t)
	id, ok := tok.ID("<|im_end|>")
	if !ok || tok.Token(id) != "<|im_end|>" || !tok.IsSpecial(id) {
		t.Errorf("<|im_end|> is %d, %v, %q, special %v", id, ok, tok.Token(id), tok.IsSpecial(id))
	}
	if think, ok := tok.ID("<think>"); !ok || tok.IsSpecial(think) {
		t.Errorf("<think> is %d, %v, special %v", think, ok, tok.IsSpecial(think))
	}
	if tok.BaseVocabSize() != 700 || tok.VocabSize() != 709 {
		t.Errorf("%d tokens, %d with the added ones", tok.BaseVocabSize(), tok.VocabSize())
	}
	for _, id := range []int32{-1, 709, 1 << 30} {
		if tok.Token(id) != "" || tok.IsSpecial(id) || tok.Decode([]int32{id}, false) != "" {
			t.Errorf("id %d names something", id)
		}
	}
	if _, ok := tok.ID("no such token"); ok {
		t.Error("found a token that is not there")
	}
}

func TestEncodeAllocatesNothing(t *testing.T) {
	tok := loadTiny(t)
	e := tok.encoder()
	text := strings.Repeat("the quick <think> 你好 fox\n", 50) + strings.Repeat("a", 400)
	dst := e.encode(nil, text)
	if n := testing.AllocsPerRun(20, func() { dst = e.encode(dst[:0], text) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
