// Package workload says what to send and when: prompts, lengths and arrivals, from a seed or a data set. It sends
// nothing and knows no clock.
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
