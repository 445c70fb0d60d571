package mockserver

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Options shape a well-formed answer. The zero value is one letter a token, one token a chunk, no waiting.
type Options struct {
	First    time.Duration // until the first token
	Gap      time.Duration // between chunks
	PerChunk int           // tokens in a chunk; 0: 1
	Tokens   int           // 0: as many as asked
	Text     string        // of one token; "": "a"; "-": none

	IDs          bool // send output_ids (native) or token_ids (OpenAI)
	Incremental  bool // native: each chunk has only what is new
	NoCounts     bool // native: no completion_tokens
	Usage        bool // OpenAI: a last chunk with usage and no choices
	UsageInline  bool // OpenAI: usage in the last chunk with a choice
	Continuous   bool // OpenAI: usage in every chunk
	Role         bool // chat: a first chunk with a role and empty content
	Reasoning    bool // chat: the text goes to reasoning_content
	Prompt       int  // prompt tokens to report; 0: none
	Cached       [3]int
	NoDone       bool // no [DONE]
	CRLF         bool
	Comments     bool // a comment before each event, and an event name
	NoSpace      bool // "data:{…}"
	NoBlankLines bool
}

// Stream is a well-formed streaming answer to r, in the protocol of its path; when r does not ask for a stream it is
// one JSON object.
func Stream(r *Request, o Options) Answer {
	if o.PerChunk == 0 {
		o.PerChunk = 1
	}
	if o.Text == "" {
		o.Text = "a"
	}
	if o.Text == "-" {
		o.Text = ""
	}
	if o.Tokens == 0 {
		o.Tokens = asked(r)
	}
	var a Answer
	at := o.First
	if o.Role && r.Path == "/v1/chat/completions" {
		a.Pieces = append(a.Pieces, Piece{0, o.frame(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)})
	}
	for n := 0; n < o.Tokens; at += o.Gap {
		from := n
		n = min(n+o.PerChunk, o.Tokens)
		a.Pieces = append(a.Pieces, Piece{at, o.frame(o.chunk(r.Path, from, n))})
	}
	if stream, _ := r.Field("stream").(bool); !stream {
		o.Incremental = false
		return Answer{Type: "application/json", Pieces: []Piece{{at, o.whole(r.Path)}}}
	}
	tail := ""
	if o.Usage && r.Path != "/generate" {
		tail += o.frame(`{"choices":[],"usage":` + o.usage(o.Tokens) + `}`)
	}
	if !o.NoDone {
		tail += o.frame("[DONE]")
	}
	a.Pieces = append(a.Pieces, Piece{at - o.Gap, tail})
	return a
}

// Paced is Stream for measuring: answers of one shape are made once, so that the server's own time is spent on
// keeping the pace.
func Paced(o Options) func(*Request) Answer {
	type shape struct {
		path   string
		tokens int
		stream bool
	}
	var made sync.Map // shape to Answer
	return func(r *Request) Answer {
		stream, _ := r.Field("stream").(bool)
		k := shape{r.Path, asked(r), stream}
		if a, ok := made.Load(k); ok {
			return a.(Answer)
		}
		a := Stream(r, o)
		made.Store(k, a)
		return a
	}
}

// asked is the output length that the request names.
func asked(r *Request) int {
	for _, k := range []string{"sampling_params.max_new_tokens", "max_tokens", "max_completion_tokens"} {
		if n, ok := r.Field(k).(float64); ok {
			return int(n)
		}
	}
	return 1
}

// frame makes one event of a JSON text, in the asked dialect.
func (o *Options) frame(text string) string {
	var b strings.Builder
	if o.Comments {
		b.WriteString(": ping\nevent: message\nid: 7\n")
	}
	b.WriteString("data:")
	if !o.NoSpace {
		b.WriteByte(' ')
	}
	b.WriteString(text)
	b.WriteByte('\n')
	if !o.NoBlankLines {
		b.WriteByte('\n')
	}
	if o.CRLF {
		return strings.ReplaceAll(b.String(), "\n", "\r\n")
	}
	return b.String()
}

// chunk is the JSON of tokens [from, to).
func (o *Options) chunk(path string, from, to int) string {
	finish := "null"
	if to == o.Tokens {
		finish = `"length"`
	}
	text := quote(strings.Repeat(o.Text, to-from))
	switch path {
	case "/generate":
		return o.nativeChunk(from, to)
	case "/v1/chat/completions":
		channel := "content"
		if o.Reasoning {
			channel = "reasoning_content"
		}
		return fmt.Sprintf(`{"id":"x","choices":[{"index":0,"delta":{%q:%s},"finish_reason":%s}]%s}`, channel, text, finish, o.inline(to))
	}
	ids := ""
	if o.IDs {
		ids = `,"token_ids":` + idRange(from, to)
	}
	return fmt.Sprintf(`{"id":"x","choices":[{"index":0,"text":%s%s,"finish_reason":%s}]%s}`, text, ids, finish, o.inline(to))
}

func (o *Options) nativeChunk(from, to int) string {
	finish := "null"
	if to == o.Tokens {
		finish = fmt.Sprintf(`{"type":"length","length":%d}`, to)
	}
	if !o.Incremental {
		from = 0
	}
	ids, counts := "", ""
	if o.IDs {
		ids = `"output_ids":` + idRange(from, to) + `,`
	}
	if !o.NoCounts {
		counts = fmt.Sprintf(`,"completion_tokens":%d`, to)
	}
	if o.Prompt > 0 {
		counts += fmt.Sprintf(`,"prompt_tokens":%d,"cached_tokens":%d,"cached_tokens_details":%s`, o.Prompt, o.Cached[0]+o.Cached[1]+o.Cached[2], o.tiers())
	}
	return fmt.Sprintf(`{"text":%s,%s"meta_info":{"id":"x","finish_reason":%s%s}}`, quote(strings.Repeat(o.Text, to-from)), ids, finish, counts)
}

// whole is the answer without streaming.
func (o *Options) whole(path string) string {
	text := quote(strings.Repeat(o.Text, o.Tokens))
	switch path {
	case "/generate":
		return o.nativeChunk(0, o.Tokens)
	case "/v1/chat/completions":
		return fmt.Sprintf(`{"choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":"length"}],"usage":%s}`, text, o.usage(o.Tokens))
	}
	return fmt.Sprintf(`{"choices":[{"index":0,"text":%s,"finish_reason":"length"}],"usage":%s}`, text, o.usage(o.Tokens))
}

// inline is the usage part of a chunk that has a choice.
func (o *Options) inline(n int) string {
	if o.Continuous || o.UsageInline && n == o.Tokens {
		return `,"usage":` + o.usage(n)
	}
	return `,"usage":null`
}

func (o *Options) usage(n int) string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`,
		o.Prompt, n, o.Prompt+n, o.Cached[0]+o.Cached[1]+o.Cached[2])
}

func (o *Options) tiers() string {
	return fmt.Sprintf(`{"device":%d,"host":%d,"storage":%d,"storage_backend":"file"}`, o.Cached[0], o.Cached[1], o.Cached[2])
}

// idRange is the JSON list of the ids 100+from … 100+to-1.
func idRange(from, to int) string {
	ids := make([]int, 0, to-from)
	for i := from; i < to; i++ {
		ids = append(ids, 100+i)
	}
	b, err := json.Marshal(ids)
	if err != nil {
		panic("mockserver: ints do not marshal: " + err.Error())
	}
	return string(b)
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic("mockserver: a string does not marshal: " + err.Error())
	}
	return string(b)
}
