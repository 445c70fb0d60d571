package loadgen

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// maxLine bounds one line of a stream; more is no event stream.
const maxLine = 256 << 20

// stream turns the bytes of one answer into an Outcome. It is fed with (time, bytes) as reads return and has no clock
// and no reader of its own, so that any split of the bytes can be tested. On the usual path it allocates nothing for
// an event once its buffers have grown.
type stream struct {
	o     *Outcome
	proto protocol

	rest      []byte // an unfinished line
	data      []byte // data lines that are no whole object yet, until the blank line
	errorName bool   // the event's name said that it is an error
	done      bool   // [DONE] was seen
	ended     bool   // a finish reason was seen

	raw       []byte // text so far; with escapes when escaped
	escaped   bool
	ids       []byte // native: the last list of ids
	idTokens  int
	extended  int  // native: how often the text grew as a cumulative one does
	delta     bool // native: the server sends deltas, not all text
	prevToken int
}

func newStream(o *Outcome, p protocol) *stream {
	return &stream{o: o, proto: p, raw: make([]byte, 0, 8*min(o.Item.OutputLen, 4096)+64)}
}

// feed takes the bytes of one read that returned at the given time.
func (s *stream) feed(at time.Duration, p []byte) {
	for len(p) > 0 {
		nl := bytes.IndexByte(p, '\n')
		if nl < 0 {
			s.rest = append(s.rest, p...)
			if len(s.rest) > maxLine {
				s.fail(fmt.Errorf("a line of more than %d bytes", maxLine))
				s.rest = nil
			}
			return
		}
		line := p[:nl]
		if len(s.rest) > 0 {
			s.rest = append(s.rest, line...)
			line = s.rest
		}
		s.line(at, line)
		s.rest, p = s.rest[:0], p[nl+1:]
	}
}

// line takes one line without its newline.
func (s *stream) line(at time.Duration, line []byte) {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	if len(line) == 0 {
		s.dispatch(at)
		return
	}
	s.o.Done = at
	name, value := line, []byte(nil)
	if i := bytes.IndexByte(line, ':'); i >= 0 {
		name, value = line[:i], bytes.TrimPrefix(line[i+1:], []byte{' '})
	}
	switch string(name) {
	case "data":
		s.dataLine(at, value)
	case "event":
		s.errorName = string(value) == "error"
	case "", "id", "retry": // a comment, or what no benchmark needs
	default:
		s.foreign(at, line)
	}
}

// dataLine takes the value of a data line. A whole object is an event at once, since some servers send no blank
// lines; the parts of a split one wait for the blank line.
func (s *stream) dataLine(at time.Duration, value []byte) {
	v := bytes.TrimSpace(value)
	switch {
	case len(s.data) == 0 && string(v) == "[DONE]":
		s.done = true
	case len(s.data) == 0 && len(v) > 1 && v[0] == '{' && v[len(v)-1] == '}':
		s.object(at, v)
	case len(v) > 0 || len(s.data) > 0:
		s.data = append(append(s.data, value...), '\n')
	}
}

// dispatch ends an event at a blank line.
func (s *stream) dispatch(at time.Duration) {
	if v := bytes.TrimSpace(s.data); len(v) > 0 {
		s.object(at, v)
	}
	s.data, s.errorName = s.data[:0], false
}

// foreign takes a line that is no field of an event stream: bare JSON is read as data, as the reference does; other
// text is a fault.
func (s *stream) foreign(at time.Duration, line []byte) {
	if v := bytes.TrimSpace(line); len(v) > 1 && v[0] == '{' {
		s.object(at, v)
		return
	}
	s.fail(fmt.Errorf("not an event stream: %q", excerpt(line)))
}

// object takes one whole JSON text.
func (s *stream) object(at time.Duration, b []byte) {
	ev, err := parse(s.proto, b)
	if err != nil {
		s.fail(fmt.Errorf("bad event: %w: %q", err, excerpt(b)))
		return
	}
	if s.errorName && ev.errorText == nil {
		ev.errorText = b
	}
	s.apply(at, &ev)
}

// fail keeps the first fault of the stream.
func (s *stream) fail(err error) {
	if s.o.Class == "" {
		s.o.Class, s.o.Err = ClassStream, err
	}
}

// apply writes an event into the outcome.
func (s *stream) apply(at time.Duration, ev *event) {
	switch {
	case ev.errorText != nil:
		s.fail(fmt.Errorf("the server sent an error in the stream: %s", excerpt(ev.errorText)))
	case ev.abort != nil:
		s.fail(fmt.Errorf("the server gave up: %s", excerpt(ev.abort)))
	}
	if ev.prompt >= 0 {
		s.o.PromptTokens = ev.prompt
	}
	if ev.hasCached {
		s.cached(ev.cached)
	}
	if len(ev.finish) > 0 {
		s.ended = true
		if string(ev.finish) != s.o.FinishReason {
			s.o.FinishReason = string(ev.finish)
		}
	}
	newIDs := s.idList(ev)
	newText := s.text(ev)
	s.arrival(at, ev, newIDs || newText)
}

// cached merges what an event says of cached tokens: total and tiers may come in different chunks.
func (s *stream) cached(c Cached) {
	if s.o.Cached == nil {
		s.o.Cached = &Cached{-1, -1, -1, -1}
	}
	k := s.o.Cached
	for _, f := range []struct {
		to *int
		v  int
	}{{&k.Total, c.Total}, {&k.Device, c.Device}, {&k.Host, c.Host}, {&k.Storage, c.Storage}} {
		if f.v >= 0 {
			*f.to = f.v
		}
	}
}

// text keeps the event's text and reports whether it has any.
func (s *stream) text(ev *event) bool {
	s.escaped = ev.escaped
	if s.proto == native {
		if len(ev.text) > 0 {
			s.nativeText(ev.text, len(ev.finish) > 0)
		}
		return len(ev.text) > 0
	}
	s.raw = append(append(s.raw, ev.more...), ev.text...)
	return len(ev.text)+len(ev.more) > 0 || ev.toolCall
}

// nativeText keeps text that is either all so far or, with the server's incremental streaming, only what is new.
// Which of the two is seen from the second event on: from the ids where there are any, else because all text starts
// with the text before. Without ids, a delta that repeats the text so far can not be told from all text.
func (s *stream) nativeText(t []byte, last bool) {
	switch {
	case s.delta:
		s.raw = append(s.raw, t...)
	case bytes.HasPrefix(t, s.raw):
		if len(s.raw) > 0 && len(t) > len(s.raw) {
			s.extended++
		}
		s.raw = append(s.raw[:0], t...)
	case s.extended >= 2 || last && bytes.HasPrefix(s.raw, t):
		s.raw = append(s.raw[:0], t...) // rewritten: a stop string was cut off
	default:
		s.delta = true
		s.raw = append(s.raw, t...)
	}
}

// idList keeps the event's token ids and reports whether there are new ones. A native list is cumulative unless it is
// shorter than the count of tokens.
func (s *stream) idList(ev *event) bool {
	n := countIDs(ev.ids)
	if n == 0 {
		return false
	}
	if s.proto == native && (ev.completion < 0 || n >= ev.completion) && n >= s.idTokens {
		grown := n > s.idTokens
		s.ids, s.idTokens = append(s.ids[:0], ev.ids...), n
		return grown
	}
	s.delta = s.proto == native
	s.ids = append(append(s.ids, ','), ev.ids...)
	s.idTokens += n
	return true
}

// arrival records new output. New tokens are known from the server's count, else from the ids; a chunk that adds no
// token to a known count is no arrival, as in the reference.
func (s *stream) arrival(at time.Duration, ev *event, grown bool) {
	total := s.prevToken
	known := true
	switch {
	case ev.completion >= 0:
		total = max(total, ev.completion)
		s.o.OutputTokens, s.o.TokenSource = total, SourceUsage
		if s.proto == native {
			s.o.TokenSource = SourceMeta
		}
	case s.idTokens > 0:
		total = max(total, s.idTokens)
	default:
		known = false
	}
	fresh := total - s.prevToken
	if !ev.choices {
		return // a chunk with counts only; what it counts came before
	}
	s.prevToken = total
	if len(s.o.Chunks) > 0 && s.o.Chunks[0].Tokens == 0 {
		fresh, known = 0, false // a count that comes late counts what came before, too
	}
	if fresh > 0 || grown && (!known || s.o.First == 0) {
		if s.o.First == 0 {
			s.o.First = at
		}
		s.o.Chunks = append(s.o.Chunks, Chunk{at, fresh})
	}
}

// flush takes the end of the bytes: an unfinished line is still a line.
func (s *stream) flush(at time.Duration) {
	if len(s.rest) > 0 {
		s.line(at, s.rest)
		s.rest = nil
	}
	s.dispatch(at)
}

// finish fills in what is known only at the end and classes the answer.
func (s *stream) finish() {
	o := s.o
	if s.escaped {
		s.raw = appendUnescaped(nil, s.raw)
	}
	if o.Text = string(s.raw); !utf8.ValidString(o.Text) {
		o.Text = string(bytes.ToValidUTF8(s.raw, []byte("\uFFFD")))
	}
	o.OutputIDs = appendIDs(nil, s.ids)
	if len(o.OutputIDs) > 0 && len(o.OutputIDs) >= o.OutputTokens {
		o.OutputTokens, o.TokenSource = len(o.OutputIDs), SourceIDs
	}
	switch {
	case o.Class != "":
	case !s.done && !s.ended && o.First > 0:
		s.fail(errors.New("the stream ended early: neither a finish reason nor [DONE]"))
	case o.First == 0 && o.OutputTokens == 0 && o.Item.OutputLen > 0:
		o.Class, o.Err = ClassEmpty, errors.New("the answer has no output")
	}
	if o.TokenSource == "" && o.Class == "" {
		o.OutputTokens, o.TokenSource = o.Item.OutputLen, SourceRequested
	}
}

// title finds the name of a web page, such as a proxy sends in place of the server's answer.
var title = regexp.MustCompile(`(?is)^(?:<!doctype html|<html)(?:.*?<title[^>]*>\s*(.*?)\s*</title>)?`)

// excerpt is one line of what a server sent, for a message: of a web page its title alone.
func excerpt(b []byte) string {
	b = bytes.TrimSpace(b)
	if m := title.FindSubmatch(b); m != nil {
		b = bytes.TrimSpace(append([]byte("a web page "), m[1]...))
	}
	if len(b) > 300 {
		b = append(bytes.ToValidUTF8(b[:300], nil), "…"...)
	}
	return strings.Join(strings.Fields(string(b)), " ")
}
