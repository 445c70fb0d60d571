package tokenizer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func tinyJSON(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "tiny", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestRefuses changes one thing in a good file at a time.
func TestRefuses(t *testing.T) {
	good := tinyJSON(t)
	for _, c := range []struct{ name, old, new, want string }{
		{"empty", good, "", "ends too early"},
		{"no object", good, "[]", "offset 0: '[' instead of '{'"},
		{"more after the end", good, good + " 1", "more after the end"},
		{"cut", good[len(good)/2:], "", "model: "},
		{"unknown field", `"version":`, `"extra":1,"version":`, "extra: not supported"},
		{"field twice", `"version":`, `"normalizer":{"type":"NFC"},"version":`, "normalizer: there twice"},
		{"version", `"1.0"`, `"2.0"`, `version: "2.0" is not supported, only "1.0"`},
		{"truncation", `"truncation":null`, `"truncation":{"max_length":8}`, `truncation: {"max_length":8} is not supported`},
		{"padding", `"padding":null`, `"padding":{"length":1}`, "padding: "},
		{"normalizer", `"NFC"`, `"NFKC"`, `normalizer: {"type":"NFKC"} is not supported, only {"type":"NFC"}`},
		{"no normalizer", `"normalizer":{"type":"NFC"},`, ``, "no normalizer"},
		{"pattern", `(?i:'s`, `(?:'s`, "pre_tokenizer: only Qwen's split pattern"},
		{"behavior", `"Isolated"`, `"Removed"`, "pre_tokenizer: only a Split that isolates"},
		{"invert", `"invert":false`, `"invert":true`, "pre_tokenizer: only a Split that isolates"},
		{"prefix space", `"add_prefix_space":false`, `"add_prefix_space":true`, "pre_tokenizer: only ByteLevel without"},
		{"regex", `"use_regex":false`, `"use_regex":true`, "pre_tokenizer: only ByteLevel without"},
		{"post processor", `"post_processor":{"type":"ByteLevel"`, `"post_processor":{"type":"TemplateProcessing"`, "post_processor: only ByteLevel"},
		{"decoder", `"decoder":{"type":"ByteLevel"`, `"decoder":{"type":"WordPiece"`, "decoder: only ByteLevel"},
		{"model", `"type":"BPE"`, `"type":"Unigram"`, `model: type: "Unigram" is not supported, only "BPE"`},
		{"dropout", `"dropout":null`, `"dropout":0.1`, "model: dropout: "},
		{"unknown token", `"unk_token":null`, `"unk_token":"?"`, "model: unk_token: "},
		{"prefix", `"continuing_subword_prefix":null`, `"continuing_subword_prefix":"#"`, "model: continuing_subword_prefix: "},
		{"byte fallback", `"byte_fallback":false`, `"byte_fallback":true`, "model: byte_fallback: "},
		{"ignore merges", `"ignore_merges":false`, `"ignore_merges":true`, "model: ignore_merges: "},
		{"model field", `"byte_fallback":false`, `"byte_fallback":false,"other":1`, "model: other: not supported"},
		{"id twice", `"#":2`, `"#":1`, "id 1 is both"},
		{"token twice", `"#":2`, `"\"":2`, "same token twice"},
		{"negative id", `"#":2`, `"#":-2`, "no token id"},
		{"broken id", `"#":2`, `"#":2.5`, "model: vocab: "},
		{"huge id", `"#":2`, `"#":99999999`, "ids from 1048575 on"},
		{"far id", `"#":2`, `"#":900000`, "id 900000 among 700 tokens"},
		{"missing byte", `"#":2`, `"##":2`, "no token for byte 0x23"},
		{"control character", `"#":2`, "\"#\n\":2", "control character in a string"},
		{"bad escape", `"#":2`, `"\q":2`, "model: vocab: "},
		{"merge of unknown", `"merges":[[`, `"merges":[["QQQ","a"],[`, `model: merges: "QQQ" and "a"`},
		{"merge of three", `"merges":[[`, `"merges":[["a","b","c"],[`, "model: merges: more than two"},
		{"merge of one", `"merges":[[`, `"merges":[["a"],[`, "model: merges: fewer than two"},
		{"merge as text", `"merges":[[`, `"merges":["a",[`, `model: merges: "a" is no pair`},
		{"merge of three as text", `"merges":[[`, `"merges":["a b c",[`, `model: merges: "a b c" is no pair`},
		{"merge as number", `"merges":[[`, `"merges":[7,[`, "model: merges: "},
		{"missing merges", `,"merges":[[`, `,"merges_":[[`, "merges_: not supported"},
		{"added flag", `"lstrip":false`, `"lstrip":true`, `added_tokens: "<|endoftext|>": single_word`},
		{"added normalized", `"normalized":false`, `"normalized":true`, `added_tokens: "<|endoftext|>": single_word`},
		{"added id", `"id":700`, `"id":703`, `added_tokens: "<|endoftext|>" has id 703, which the reference would make 700`},
		{"added empty", `"<|endoftext|>"`, `""`, "added_tokens: token 700 is empty"},
		{"added broken", `"id":700`, `"id":"x"`, "added_tokens: "},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if text == good {
			t.Errorf("%s: %q is not in the file", c.name, c.old)
			continue
		}
		tok, err := parse(text)
		if tok != nil || err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q in one line", c.name, err, c.want)
		}
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	path := filepath.Join(dir, "tokenizer.json")
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || err.Error() != path+": no normalizer" {
		t.Errorf("empty object: %v", err)
	}
}

// TestOtherLayouts are ways to write the same tokenizer.
func TestOtherLayouts(t *testing.T) {
	good := tinyJSON(t)
	want, text := loadTiny(t), "the quick <think> 你好 it's\n"
	at, end := strings.Index(good, `"vocab":`), strings.Index(good, `,"merges":`)
	vocab, merges := good[at:end], good[end+1:]
	merges = merges[:strings.Index(merges, "]]")+2]
	oldMerges := strings.NewReplacer(`[["`, `["`, `"]]`, `"]`, `"],["`, `","`, `","`, ` `).Replace(merges)
	if !strings.Contains(oldMerges, `t h`) {
		t.Fatalf("merges are rewritten badly: %.100s", oldMerges)
	}
	for name, file := range map[string]string{
		"merges first":      strings.Replace(good, vocab+","+merges, merges+","+vocab, 1),
		"merges as text":    strings.Replace(good, merges, oldMerges, 1),
		"white space":       strings.NewReplacer(`":`, "\" :\t", `},{`, "},\r\n{").Replace(good[:at]) + good[at:],
		"no post processor": strings.Replace(good, `"post_processor":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}`, `"post_processor":null`, 1),
	} {
		if file == good {
			t.Errorf("%s: nothing changed", name)
		}
		got, err := parse(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(got.Encode(text, nil), want.Encode(text, nil)) {
			t.Errorf("%s: other ids", name)
		}
	}
}

// TestAddedInVocabulary is a token of the vocabulary that is added too: it keeps its id and is found first.
func TestAddedInVocabulary(t *testing.T) {
	good, plain := tinyJSON(t), loadTiny(t)
	id, ok := plain.ID("the")
	if !ok {
		id, ok = plain.ID("th")
	}
	if !ok {
		t.Fatal("the tiny tokenizer has neither the nor th")
	}
	token := plain.Token(id)
	entry := fmt.Sprintf(`{"id":%d,"content":%q,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}`, id, token)
	tok, err := parse(strings.Replace(good, `"added_tokens":[`, `"added_tokens":[`+entry+",", 1))
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Encode("ba"+token, nil); len(got) < 2 || got[len(got)-1] != id || !tok.IsSpecial(id) {
		t.Errorf("ids %v, want %d at the end and special", got, id)
	}
}

// TestAddedTwice is an added token that is listed again, not special: the reference keeps it special.
func TestAddedTwice(t *testing.T) {
	good := tinyJSON(t)
	again := `{"id":702,"content":"<|im_end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false},`
	at := strings.Index(good, `{"id":703,`)
	if at < 0 {
		t.Fatal("no added token 703")
	}
	tok, err := parse(good[:at] + again + good[at:])
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.Decode([]int32{702}, true); got != "" || !tok.IsSpecial(702) {
		t.Errorf("<|im_end|> decodes to %q, special %v", got, tok.IsSpecial(702))
	}
}
