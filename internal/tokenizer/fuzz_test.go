package tokenizer

import (
	"slices"
	"strings"
	"testing"
)

// FuzzEncode checks that a text comes back normalized, and that pieces encode to what the whole does.
func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "Hello, world! it's", "你好，世界", "e\u0301\u0323 가\u11a8", "<|im_start|>user\nx<|im_end|>", "<think", "\xff\xe4\xbd", " \r\n\t 1", "'ſ\u0085\ufeff", "👨‍👩‍👧"} {
		f.Add(s, uint8(5))
	}
	tok := loadTiny(f)
	f.Fuzz(func(t *testing.T, text string, size uint8) {
		ids := tok.Encode(text, nil)
		e := tok.encoder()
		valid := string([]rune(text))
		want := tok.normalized(valid, func(s string) string { return string(e.normalize(nil, s)) })
		if got := tok.Decode(ids, false); got != want {
			t.Fatalf("%q comes back as %q, want %q", text, got, want)
		}
		var pieces []int32
		cuts := tok.cuts(valid, int(size)+1)
		for i, end := range cuts[1:] {
			pieces = e.encode(pieces, valid[cuts[i]:end])
		}
		if !slices.Equal(pieces, ids) {
			t.Fatalf("%q cut at %v is %v, whole %v", text, cuts, pieces, ids)
		}
	})
}

// FuzzStream takes two bytes for an id.
func FuzzStream(f *testing.F) {
	for _, s := range []string{"", "\x00\xe4\x00\xbd\x00\xa0", "\x02\xbe\x01\x10\x02\xbd", "\xff\xff\x00\xf0\x00\x9f"} {
		f.Add([]byte(s), uint8(1), true)
	}
	tok := loadTiny(f)
	f.Fuzz(func(t *testing.T, raw []byte, size uint8, skip bool) {
		var ids []int32
		for i := 0; i+1 < len(raw); i += 2 {
			ids = append(ids, int32(raw[i])<<8|int32(raw[i+1]))
		}
		checkStream(t, tok, ids, int(size)+1, skip)
	})
}

// FuzzLoad checks that no file breaks the reader and that what is accepted works. The seeds are short, so that they are
// quick to vary: they lack tokens for most bytes, which is found last.
func FuzzLoad(f *testing.F) {
	good := tinyJSON(f)
	head := good[strings.Index(good, `"normalizer":`):strings.Index(good, `"vocab":`)]
	f.Add("{" + head + `"vocab":{"a":0,"b\u0062":1,"\"":2},"merges":[["a","a"],["b","\""]]}}`)
	f.Add("{" + head + `"merges":["a a"],"vocab":{"a":0,"aa":1}},"added_tokens":[{"id":2,"content":"<t>","normalized":false}]}`)
	f.Add(`{"model":{"vocab":{"a":1048575},"merges":[]}}`)
	f.Fuzz(func(t *testing.T, data string) {
		tok, err := parse(data)
		if err != nil {
			return
		}
		for _, id := range tok.Encode("the <think> 你好 it's", nil) {
			if tok.Token(id) == "" {
				t.Fatalf("id %d names nothing", id)
			}
		}
	})
}
