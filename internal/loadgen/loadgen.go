// Package loadgen sends a workload to a server over HTTP and records, for each request, when it was due, sent, first
// answered, each chunk, and done. It imports no engine: any SGLang-, vLLM- or OpenAI-compatible server will do. It
// computes no statistics; loadgen/serving reduces a Result to the numbers that people read.
//
// Rules that hold everywhere: the schedule is absolute and fixed before the clock starts; a time is taken when a read
// returns, before anything is parsed; nothing is retried in silence (see Outcome.Resent); what failed is classed and is never a latency.
//
// Start at Run.
package loadgen

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"larder/internal/workload"
)

// Config says how to send. The zero value of an optional field means its default.
type Config struct {
	BaseURL        string // http://host:port
	Backend        string // one of Backends
	Model          string // name in OpenAI bodies
	MaxConcurrency int    // requests in flight at most; 0: no cap
	Stream         bool
	IgnoreEOS      bool
	Temperature    float64
	TopP           float64        // 0 or 1: not sent
	Extra          map[string]any // merged into every body; an item's own Extra wins
	NoUsage        bool           // do not ask OpenAI servers for usage in streams (old servers refuse the option)
	Header         http.Header
	Timeouts       Timeouts

	// Due gives each item's intended send time from the start; nil: the items' own Due (0 when unset).
	Due []time.Duration

	// OnSend, when set, is called once per request as its turn comes, from many goroutines.
	OnSend func(i int)

	// OnDone, when set, is called once per request as it ends, from many goroutines.
	OnDone func(i int, o *Outcome)
}

// Timeouts bound each stage of a request. 0: the default in brackets; negative: none.
type Timeouts struct {
	Connect time.Duration // [10 s]
	First   time.Duration // from the send to the first token, or to the whole answer when not streaming [10 min]
	Gap     time.Duration // between two chunks that carry output; comments and empty chunks do not count [2 min]
	Total   time.Duration // [none]
}

// withDefaults fills in the defaults; 0 then means "none".
func (t Timeouts) withDefaults() Timeouts {
	pick := func(v, def time.Duration) time.Duration {
		switch {
		case v < 0:
			return 0
		case v == 0:
			return def
		}
		return v
	}
	return Timeouts{pick(t.Connect, 10*time.Second), pick(t.First, 10*time.Minute), pick(t.Gap, 2*time.Minute), pick(t.Total, 0)}
}

// Outcome is what happened to one item. Times are from the start of the run, on the monotonic clock.
type Outcome struct {
	Item      *workload.Item
	Due       time.Duration // intended send
	Slot      time.Duration // when the schedule and MaxConcurrency let it go; Slot-Due is queueing in the client
	Sent      time.Duration // just before the request was written; Sent-Slot is the client's own lag; NeverSent: not at all
	Wrote     time.Duration // last byte of the request written; 0: unknown
	FirstByte time.Duration // first byte of the answer; 0: none came
	First     time.Duration // first non-empty delta of any channel; 0 when there was none
	Done      time.Duration // last line
	Chunks    []Chunk       // from the first token on
	Connect   time.Duration // time spent dialling (and TLS) for this request; 0: an open connection was used
	Resent    bool          // the server had closed the kept connection, so it went out again on a new one; the clock kept running

	PromptTokens int // as the server counts them; -1: it did not say
	OutputTokens int
	TokenSource  string  // where OutputTokens comes from: one of the Source constants
	OutputIDs    []int32 // when the server sends them
	Text         string
	Cached       *Cached // nil: the server did not say
	FinishReason string

	Class  string // "" for success, else one of the Class constants
	Err    error  // with Class
	Status int    // HTTP status; 0: no answer
}

// NeverSent is the Sent time of a request that the run ended before.
const NeverSent = time.Duration(-1)

// OK reports success.
func (o *Outcome) OK() bool { return o.Class == "" }

// Latency is the time from the actual send to the last line.
func (o *Outcome) Latency() time.Duration { return o.Done - o.Sent }

// TTFT is the time from the actual send to the first output, and whether there was one that could be timed.
func (o *Outcome) TTFT() (time.Duration, bool) { return o.First - o.Sent, o.First > 0 }

// The classes of failure. The sum over all classes and the successes is the number of items.
const (
	ClassConnect        = "connect"         // no TCP connection
	ClassTLS            = "tls"             // no TLS session on it
	ClassHTTP           = "http"            // a status that is not 200, or no valid HTTP answer
	ClassStream         = "stream"          // an error after the 200: an error event, an abort, a broken or foreign stream
	ClassEmpty          = "empty"           // a clean end without any output
	ClassTimeoutConnect = "timeout-connect" // Timeouts.Connect
	ClassTimeoutFirst   = "timeout-first"   // Timeouts.First
	ClassTimeoutGap     = "timeout-gap"     // Timeouts.Gap
	ClassTimeoutTotal   = "timeout-total"   // Timeouts.Total
	ClassCanceled       = "canceled"        // the run was stopped; the request may not have been sent
)

// Where a token count comes from, best first.
const (
	SourceIDs       = "ids"       // the server sent the token ids
	SourceMeta      = "meta_info" // SGLang's native count
	SourceUsage     = "usage"     // OpenAI usage
	SourceTokenizer = "tokenizer" // counted by the caller from the text
	SourceRequested = "requested" // nobody said: the requested length, as the reference assumes
)

// Cached counts cached prompt tokens by the server's tiers. A tier is -1 when the server gives only the total.
type Cached struct{ Total, Device, Host, Storage int }

// Chunk is one arrival of new output.
type Chunk struct {
	At     time.Duration
	Tokens int // new tokens in it; 0 when unknown
}

// Result is a whole run.
type Result struct {
	Start       time.Time
	Duration    time.Duration // first intended send to last completion
	Outcomes    []Outcome     // in item order
	Interrupted bool          // the context ended before the run did
	CPU         time.Duration // user and system time of this process during the run; 0: not known
	Prepared    int           // connections opened before the clock started: as many as the first second wants
}

// Backends are the supported values of Config.Backend.
func Backends() []string {
	return []string{"sglang", "sglang-native", "sglang-oai", "sglang-oai-chat", "vllm", "vllm-chat", "lmdeploy", "lmdeploy-chat"}
}

// protocol is how a backend is spoken to.
type protocol int

const (
	native protocol = iota
	completions
	chat
)

func protocolOf(backend string) (protocol, string) {
	switch backend {
	case "sglang", "sglang-native":
		return native, "/generate"
	case "sglang-oai-chat", "vllm-chat", "lmdeploy-chat":
		return chat, "/v1/chat/completions"
	}
	return completions, "/v1/completions"
}

// Validate reports the first thing in c that cannot be run.
func (c *Config) Validate(items []workload.Item) error {
	if err := checkURL(c.BaseURL); err != nil {
		return err
	}
	switch {
	case !slices.Contains(Backends(), c.Backend):
		return fmt.Errorf("unknown backend %q; known: %v", c.Backend, Backends())
	case c.MaxConcurrency < 0:
		return fmt.Errorf("max concurrency %d is negative", c.MaxConcurrency)
	case len(items) == 0:
		return errors.New("nothing to send: the workload is empty")
	case c.Due != nil && len(c.Due) != len(items):
		return fmt.Errorf("%d send times for %d items", len(c.Due), len(items))
	}
	for i := range items {
		if c.due(items, i) < 0 {
			return fmt.Errorf("item %d is due before the start", i)
		}
	}
	return nil
}

func checkURL(base string) error {
	u, err := url.Parse(base)
	if err != nil {
		return fmt.Errorf("server URL: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("server URL %q must be http://host:port or https://…", base)
	}
	return nil
}

func (c *Config) due(items []workload.Item, i int) time.Duration {
	if c.Due != nil {
		return c.Due[i]
	}
	return items[i].Due
}
