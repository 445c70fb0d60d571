// Package tokenizer turns text into token ids and back, for models whose tokenizer.json is a byte-level BPE as
// Qwen2 and Qwen3 have it: NFC, the Qwen split pattern, ByteLevel, merges, added tokens. Its ids are those of Hugging
// Face's tokenizers library on every input; a tokenizer.json that it cannot reproduce exactly is refused by Load.
// It also renders Qwen3's chat template (RenderChat).
//
// It owns no files and fetches nothing: scripts/fetch_tokenizer.sh does. Text that is not UTF-8 cannot be given to
// the reference; here each wrong byte counts as U+FFFD, as encoding/json has it.
//
// Start with Encode in encode.go: it cuts at added tokens, then normalizes (nfc.go), splits into words (split.go),
// looks each up in a cache (word.go) and merges its bytes (merge.go, heap.go). Load is in load.go, Decode and Stream in
// decode.go.
package tokenizer

import "sync"

// Tokenizer encodes and decodes. It is immutable and safe for concurrent use.
type Tokenizer struct {
	text   runeTable
	merges mergeTable
	seams  seams
	added  addedTokens
	vocab  vocabulary
	pool   sync.Pool // of *encoder
}

// vocabulary maps ids to tokens and back, added tokens included.
type vocabulary struct {
	base    int              // tokens of the model itself
	ids     map[string]int32 // by written form ("Ġthe", "<|im_end|>")
	written []string         // by id; "" for an id that names nothing
	bytes   []string         // by id, what the token decodes to
	special []bool           // by id
}

// VocabSize is one more than the largest id, added tokens included.
func (t *Tokenizer) VocabSize() int { return len(t.vocab.written) }

// BaseVocabSize is the number of tokens without the added ones.
func (t *Tokenizer) BaseVocabSize() int { return t.vocab.base }

// Token is the written form of id as tokenizer.json has it ("Ġthe"), or "" when id names no token.
func (t *Tokenizer) Token(id int32) string {
	if !t.vocab.has(id) {
		return ""
	}
	return t.vocab.written[id]
}

// ID is the id of a token in its written form.
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.vocab.ids[token]
	return id, ok
}

// IsSpecial tells whether id is an added token marked special, which Decode can leave out.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.vocab.has(id) && t.vocab.special[id] }

func (v *vocabulary) has(id int32) bool { return uint(id) < uint(len(v.written)) }
