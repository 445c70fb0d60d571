// Package runlog is the file format of single requests, larder.requests/1: what `larder bench --output-requests` writes,
// and what comparisons and pages are made of. A file is JSON lines; a run is a line about the run and then a line for
// each request in the order of the workload; a file may hold several runs one after the other.
//
// It measures nothing and judges nothing. docs/format/requests.md documents every field. Start at Run.
package runlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Schema is the name and version that a run's first line has.
const Schema = "larder.requests/1"

// Run is one run of a benchmark. Times of its requests are milliseconds from its start.
type Run struct {
	Schema         string    `json:"schema"`
	Tool           string    `json:"tool"`
	Started        time.Time `json:"started"`
	DurationS      float64   `json:"duration_s"` // first intended send to last completion
	Interrupted    bool      `json:"interrupted,omitempty"`
	Backend        string    `json:"backend"`
	Model          string    `json:"model,omitempty"`
	Dataset        string    `json:"dataset"`
	Rate           string    `json:"request_rate"`    // as the result block has it: a number, inf, trace or ramp
	MaxConcurrency int       `json:"max_concurrency"` // 0: none
	Seed           uint64    `json:"seed"`
	Tag            string    `json:"tag,omitempty"`
	Count          int       `json:"requests"` // lines that follow
	Warnings       []string  `json:"warnings"` // of the run's report
	Server         []Reading `json:"server,omitempty"`

	Requests []Request `json:"-"`
}

// Reading is the state of the server by its own /metrics; a gauge that it does not have is missing.
type Reading struct {
	AtMS    float64  `json:"at_ms"`
	Running *float64 `json:"running,omitempty"`
	Waiting *float64 `json:"waiting,omitempty"`
	Usage   *float64 `json:"kv_usage,omitempty"`
}

// Request is one request. A time that does not exist is null, and Reason says why.
type Request struct {
	Index       int       `json:"i"`
	Prompt      string    `json:"prompt"` // hash of what was sent: the same for the same prompt and length asked
	PromptLen   int       `json:"prompt_tokens"`
	Asked       int       `json:"asked_tokens"`
	ServerCount *int      `json:"server_prompt_tokens"` // null: the server does not say
	Output      int       `json:"output_tokens"`
	CountedBy   string    `json:"counted_by"`
	DueMS       float64   `json:"due_ms"`
	SentMS      *float64  `json:"sent_ms"`
	FirstByteMS *float64  `json:"first_byte_ms"`
	FirstMS     *float64  `json:"first_ms"` // first output
	DoneMS      *float64  `json:"done_ms"`
	Gaps        []float64 `json:"gaps_ms"`              // between arrivals of output, from the first on
	GapTokens   []int     `json:"gap_tokens,omitempty"` // tokens that each gap brought, when not one each
	Cached      *Cached   `json:"cached"`               // null: the server does not say
	Finish      string    `json:"finish,omitempty"`
	Class       string    `json:"class,omitempty"` // of a failure
	Error       string    `json:"error,omitempty"`
	Status      int       `json:"status,omitempty"`
	Reason      string    `json:"reason,omitempty"`
}

// Cached are cached prompt tokens; a tier that the server does not tell apart is null.
type Cached struct {
	Total   int  `json:"total"`
	Device  *int `json:"device"`
	Host    *int `json:"host"`
	Storage *int `json:"storage"`
}

// OK says whether the request succeeded.
func (r *Request) OK() bool { return r.Class == "" }

// TTFT is ms from the send to the first output.
func (r *Request) TTFT() (float64, bool) { return between(r.SentMS, r.FirstMS) }

// E2E is ms from the send to the last line.
func (r *Request) E2E() (float64, bool) { return between(r.SentMS, r.DoneMS) }

// TPOT is ms for each token after the first; false for answers of one token.
func (r *Request) TPOT() (float64, bool) {
	d, ok := between(r.FirstMS, r.DoneMS)
	if !ok || r.Output < 2 {
		return 0, false
	}
	return d / float64(r.Output-1), true
}

func between(a, b *float64) (float64, bool) {
	if a == nil || b == nil {
		return 0, false
	}
	return *b - *a, true
}

// ITLs calls f with each token's share of its gap, in ms.
func (r *Request) ITLs(f func(ms float64)) {
	for i, g := range r.Gaps {
		n := r.gapTokens(i)
		for range n {
			f(g / float64(n))
		}
	}
}

func (r *Request) gapTokens(i int) int {
	if i < len(r.GapTokens) {
		return max(r.GapTokens[i], 1)
	}
	return 1
}

// Arrivals calls f with the time of each arrival of output and the tokens in it.
func (r *Request) Arrivals(f func(atMS float64, tokens int)) {
	if r.FirstMS == nil {
		return
	}
	at, rest := *r.FirstMS, r.Output
	for i := range r.Gaps {
		rest -= r.gapTokens(i)
	}
	f(at, max(rest, 1))
	for i, g := range r.Gaps {
		at += g
		f(at, r.gapTokens(i))
	}
}

// Write appends a run to w.
func Write(w io.Writer, r *Run) error {
	head := *r
	head.Schema, head.Count = Schema, len(r.Requests)
	if head.Warnings == nil {
		head.Warnings = []string{}
	}
	b := bufio.NewWriter(w)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(&head); err != nil {
		return err
	}
	for i := range r.Requests {
		if err := enc.Encode(&r.Requests[i]); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
	}
	return b.Flush()
}

// ErrFormat is the error of a file that is no request log, wrapped with where.
var ErrFormat = errors.New("not a request log of " + Schema)

// maxLine bounds a line: a million gaps of ten letters.
const maxLine = 64 << 20

// Read reads all runs of a file.
func Read(r io.Reader) ([]*Run, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var runs []*Run
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := add(&runs, line); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrFormat, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if len(runs) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrFormat)
	}
	for i, run := range runs {
		if len(run.Requests) != run.Count {
			return nil, fmt.Errorf("%w: run %d has %d of its %d requests", ErrFormat, i+1, len(run.Requests), run.Count)
		}
	}
	return runs, nil
}

// add reads one line: a request when the run before it still waits for some, else the next run.
func add(runs *[]*Run, line []byte) error {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if n := len(*runs); n > 0 && len((*runs)[n-1].Requests) < (*runs)[n-1].Count {
		var q Request
		if err := dec.Decode(&q); err != nil {
			return err
		}
		(*runs)[n-1].Requests = append((*runs)[n-1].Requests, q)
		return nil
	}
	run := new(Run)
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return err
	}
	if head.Schema != Schema {
		return fmt.Errorf("schema %q", head.Schema)
	}
	if err := dec.Decode(run); err != nil {
		return err
	}
	if run.Count < 0 {
		return fmt.Errorf("%d requests", run.Count)
	}
	*runs = append(*runs, run)
	return nil
}
