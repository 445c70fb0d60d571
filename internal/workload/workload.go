// Package workload says what to send and when: prompts, lengths and arrivals, from a seed or a data set. It sends
// nothing and knows no clock. For a given seed the sampled lengths, ids, texts and arrivals are those of the
// reference client, number for number.
//
// Start at Item. Sampler draws the reference's data sets; PrefixSet makes exact prompts with a shared part.
package workload

import "time"

// Item is one request to send. Exactly one of Text, IDs and Messages is set.
type Item struct {
	Text     string
	IDs      []int32 // exact prompt token ids
	Messages []Message

	PromptLen  int            // tokens, as the peer's report counts them (nominal or encoded; see each data set)
	OutputLen  int            // tokens to ask for
	Due        time.Duration  // from the start of the run; only traces set it
	Extra      map[string]any // per-row fields for the request body
	RoutingKey string
}

// Message is one chat turn.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Tokenizer is what data sets need of a tokenizer. Encode adds the special tokens that the model's own tokenizer adds
// to a plain text (a leading BOS where there is one). Both must be safe for concurrent use.
type Tokenizer interface {
	Encode(text string) []int32
	Decode(ids []int32) string
	VocabSize() int          // ids of the base vocabulary, without added tokens
	IDs() []int32            // every id of the vocabulary, added and special ones too, sorted upwards
	SpecialTokensAdded() int // how many Encode adds to a text
}
