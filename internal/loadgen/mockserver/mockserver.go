// Package mockserver is a server without a model, for testing and measuring load generators: it answers the native and
// the OpenAI routes at a given pace, and it can misbehave in every way that clients have been seen to mishandle.
//
// It knows nothing of the client that it tests. Start at Server; Stream makes well-formed answers.
package mockserver

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Piece is some bytes that leave in one write, At after the request came in.
type Piece struct {
	At   time.Duration
	Data string
}

// End is how an answer ends.
type End int

const (
	Close End = iota // as HTTP wants it
	Cut              // the connection breaks in the middle of the body
	Hang             // nothing more comes until the client goes away
)

// Answer is what one request gets.
type Answer struct {
	Status int    // 0: 200
	Type   string // content type; "": text/event-stream
	Pieces []Piece
	End    End
}

// Request is what the server saw.
type Request struct {
	N      int // how many came before on any route that generates
	Path   string
	Header http.Header
	Body   []byte
	Conn   string // the client's address: the same for requests on one connection

	fields any // Body, decoded when first asked for
}

// Field is a field of the JSON body, nil when it is not there. Dots go into objects.
func (r *Request) Field(path string) any {
	if r.fields == nil && json.Unmarshal(r.Body, &r.fields) != nil {
		return nil
	}
	v := r.fields
	for _, k := range strings.Split(path, ".") {
		m, _ := v.(map[string]any)
		v = m[k]
	}
	return v
}

// Server answers. The zero value streams as many one-letter tokens as asked, at once.
type Server struct {
	// Answer makes the answer of a generating request; nil: Stream with the zero Options.
	Answer func(r *Request) Answer
	// Control, when set, answers the other routes and reports whether it did; else they get what a healthy server says.
	Control func(w http.ResponseWriter, r *http.Request) bool

	mu    sync.Mutex
	seen  []Request // guarded by mu
	first []float64 // ms since 1970 at a request's first piece, guarded by mu
	gaps  []float64 // ms between pieces, guarded by mu
}

// Timing is what a server measured of its own writes, to hold against what a client on the same machine says.
type Timing struct {
	First []float64 // when each answer's first piece was written, ms since 1970
	Gaps  []float64 // between the pieces of one answer, ms
}

// Timing returns the times so far and forgets them. "GET /mock/timing" does the same over HTTP.
func (s *Server) Timing() Timing {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := Timing{s.first, s.gaps}
	s.first, s.gaps = nil, nil
	return t
}

// Seen are the generating requests so far.
func (s *Server) Seen() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.seen...)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	switch hr.URL.Path {
	case "/generate", "/v1/completions", "/v1/chat/completions":
	case "/mock/timing":
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(s.Timing()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
		return
	default:
		if s.Control == nil || !s.Control(w, hr) {
			healthy(w, hr)
		}
		return
	}
	start := time.Now()
	body, err := io.ReadAll(hr.Body)
	if err != nil {
		return
	}
	r := Request{Path: hr.URL.Path, Header: hr.Header, Body: body, Conn: hr.RemoteAddr}
	s.mu.Lock()
	r.N = len(s.seen)
	s.seen = append(s.seen, r)
	s.mu.Unlock()
	a := Stream(&r, Options{})
	if s.Answer != nil {
		a = s.Answer(&r)
	}
	s.keep(start, a.write(w, hr, start))
}

// keep adds the times of an answer's pieces.
func (s *Server) keep(start time.Time, at []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, t := range at {
		if i == 0 {
			s.first = append(s.first, float64(start.Add(t).UnixNano())/1e6)
		} else {
			s.gaps = append(s.gaps, float64(t-at[i-1])/1e6)
		}
	}
}

// write sends the answer and returns when each piece was written, from start.
func (a Answer) write(w http.ResponseWriter, hr *http.Request, start time.Time) (at []time.Duration) {
	if a.Type == "" {
		a.Type = "text/event-stream"
	}
	w.Header().Set("Content-Type", a.Type)
	if a.Status != 0 {
		w.WriteHeader(a.Status)
	}
	for _, p := range a.Pieces {
		if !wait(hr, start.Add(p.At)) {
			return at
		}
		at = append(at, time.Since(start))
		writeNow(w, p.Data)
	}
	switch a.End {
	case Hang:
		writeNow(w, "")
		<-hr.Context().Done()
	case Cut:
		panic(http.ErrAbortHandler)
	}
	return at
}

// writeNow writes and flushes; a client that is gone is seen at the next wait.
func writeNow(w http.ResponseWriter, text string) {
	if _, err := io.WriteString(w, text); err == nil {
		_ = http.NewResponseController(w).Flush()
	}
}

// wait waits for a time; false when the client went first.
func wait(hr *http.Request, t time.Time) bool {
	d := time.Until(t)
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-hr.Context().Done():
		return false
	}
}

// healthy answers the control routes.
func healthy(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		w.Header().Set("Content-Type", "application/json")
		writeNow(w, `{"object":"list","data":[{"id":"mock","object":"model"}]}`)
	case "/model_info", "/get_model_info":
		w.Header().Set("Content-Type", "application/json")
		writeNow(w, `{"model_path":"mock","tokenizer_path":"mock"}`)
	case "/server_info", "/get_server_info":
		w.Header().Set("Content-Type", "application/json")
		writeNow(w, `{"version":"mock","internal_states":[{"avg_spec_accept_length":null}]}`)
	case "/flush_cache", "/reset_prefix_cache", "/health":
		writeNow(w, "Cache flushed.\n")
	default:
		http.NotFound(w, r)
	}
}
