// Package loadgen sends a workload to a server over HTTP and records, for each request, when it was due, sent, first
// answered, each chunk, and done. It imports no engine: any SGLang-, vLLM- or OpenAI-compatible server will do.
//
// Start at Run.
package loadgen

import (
	"net/http"
	"time"

	"larder/internal/workload"
)

// Config says how to send. The zero value of an optional field means its default.
type Config struct {
	BaseURL        string // http://host:port
	Backend        string // sglang, sglang-oai, sglang-oai-chat, vllm, vllm-chat, …
	Model          string // name in OpenAI bodies
	MaxConcurrency int    // 0: no cap
	Stream         bool
	IgnoreEOS      bool
	Temperature    float64
	TopP           float64        // 0 or 1: not sent
	Extra          map[string]any // merged into every body
	Header         http.Header
	Timeouts       Timeouts

	// Due gives each item's intended send time from the start; nil: all at 0, or the items' own Due.
	Due []time.Duration

	// OnDone, when set, is called once per request as it ends, from many goroutines.
	OnDone func(i int, o *Outcome)
}

// Timeouts bound each stage of a request. 0: the default in brackets; negative: none.
type Timeouts struct {
	Connect time.Duration // [10 s]
	First   time.Duration // request written to first token [10 min]
	Gap     time.Duration // between two chunks [2 min]
	Total   time.Duration // [none]
}

// Outcome is what happened to one item. Times are from the start of the run, on the monotonic clock.
type Outcome struct {
	Item      *workload.Item
	Due       time.Duration // intended send
	Sent      time.Duration // just before the request was written (after any wait for concurrency)
	FirstByte time.Duration // response headers
	First     time.Duration // first non-empty delta of any channel; 0 when there was none
	Done      time.Duration // last line
	Chunks    []Chunk       // from the first token on

	PromptTokens int // as the server counts them; -1: it did not say
	OutputTokens int
	TokenSource  string  // where OutputTokens comes from: "meta_info", "usage", "ids", "tokenizer", "requested"
	OutputIDs    []int32 // when the server sends them
	Text         string
	Cached       *Cached // nil: the server did not say
	FinishReason string

	Class  string // "" for success, else connect, http, stream, empty, timeout, canceled
	Err    error  // with Class
	Status int
}

// Cached counts cached prompt tokens by the server's tiers.
type Cached struct{ Total, Device, Host, Storage int }

// Chunk is one arrival of new output.
type Chunk struct {
	At     time.Duration
	Tokens int // new tokens in it; 0 when unknown
}

// Result is a whole run.
type Result struct {
	Start    time.Time
	Duration time.Duration // first intended send to last completion
	Outcomes []Outcome     // in item order
}
