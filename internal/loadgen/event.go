package loadgen

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// event is what one SSE data line says, whatever the protocol. Byte slices point into the line.
type event struct {
	text      []byte // new text (OpenAI) or all text so far (native), any channel
	more      []byte // a second channel in the same chunk, as reasoning beside content
	escaped   bool   // text and more still hold JSON escapes
	ids       []byte // token ids as a JSON list
	toolCall  bool   // a tool call delta
	choices   bool   // the chunk has a choice, so it can carry output
	finish    []byte // finish reason; nil: still running
	abort     []byte // message of an abort finish; nil: no abort
	errorText []byte // the error object or message; nil: no error

	prompt, completion int // token counts; -1: not said
	cached             Cached
	hasCached          bool
}

func newEvent() event {
	return event{prompt: -1, completion: -1, cached: Cached{-1, -1, -1, -1}}
}

// parse reads a data line: by the cursor, or with encoding/json when the line is unusual.
func parse(p protocol, line []byte) (event, error) {
	c := cursor{b: line}
	ev := newEvent()
	if p == native {
		c.native(&ev)
	} else {
		c.openAI(&ev)
	}
	c.end()
	if !c.bad {
		return ev, nil
	}
	return parseSlow(p, line)
}

var errNotObject = errors.New("not a JSON object")

// native walks {"text", "output_ids", "meta_info": {…}, "error"}.
func (c *cursor) native(ev *event) {
	if !c.eat('{') {
		c.fail()
		return
	}
	ev.choices, ev.escaped = true, true
	for k, ok := c.field(true); ok; k, ok = c.field(false) {
		switch string(k) {
		case "text":
			ev.text = c.strOrNull()
		case "output_ids":
			ev.ids = c.list()
		case "meta_info":
			c.meta(ev)
		case "error":
			c.fault(ev)
		default:
			c.skip()
		}
	}
}

func (c *cursor) meta(ev *event) {
	if c.null() {
		return
	}
	if !c.eat('{') {
		c.fail()
		return
	}
	for k, ok := c.field(true); ok; k, ok = c.field(false) {
		switch string(k) {
		case "prompt_tokens":
			ev.prompt = c.count()
		case "completion_tokens":
			ev.completion = c.count()
		case "cached_tokens":
			ev.cached.Total, ev.hasCached = c.count(), true
		case "cached_tokens_details":
			c.tiers(ev)
		case "finish_reason":
			c.finish(ev)
		default:
			c.skip()
		}
	}
}

// tiers walks {"device", "host", "storage"}, or null.
func (c *cursor) tiers(ev *event) {
	if c.null() {
		return
	}
	if !c.eat('{') {
		c.fail()
		return
	}
	ev.hasCached = true
	for k, ok := c.field(true); ok; k, ok = c.field(false) {
		switch string(k) {
		case "device":
			ev.cached.Device = c.count()
		case "host":
			ev.cached.Host = c.count()
		case "storage":
			ev.cached.Storage = c.count()
		default:
			c.skip()
		}
	}
}

// finish takes null, "length" or {"type": "length", "message": …}.
func (c *cursor) finish(ev *event) {
	if c.peek() != '{' {
		ev.finish = c.strOrNull()
		return
	}
	c.eat('{')
	var message []byte
	for k, ok := c.field(true); ok; k, ok = c.field(false) {
		switch string(k) {
		case "type":
			ev.finish = c.strOrNull()
		case "message":
			message = c.skip()
		default:
			c.skip()
		}
	}
	if string(ev.finish) == "abort" {
		ev.abort = append([]byte("aborted: "), message...)
	}
}

// fault takes the value of an "error" key; null is no error.
func (c *cursor) fault(ev *event) {
	if !c.null() {
		ev.errorText = c.skip()
	}
}

// list takes a list and returns its bytes, or null as nil.
func (c *cursor) list() []byte {
	if c.null() {
		return nil
	}
	if c.peek() != '[' {
		c.fail()
		return nil
	}
	return c.skip()
}

// openAI walks {"choices": […], "usage": {…}, "sglext": {…}, "error"}.
func (c *cursor) openAI(ev *event) {
	if !c.eat('{') {
		c.fail()
		return
	}
	ev.escaped = true
	for k, ok := c.field(true); ok; k, ok = c.field(false) {
		switch string(k) {
		case "choices":
			c.choices(ev)
		case "usage":
			c.usage(ev)
		case "sglext":
			c.extension(ev)
		case "error":
			c.fault(ev)
		default:
			c.skip()
		}
	}
}

// choices takes the list; only one choice is ever asked for, more are unusual.
func (c *cursor) choices(ev *event) {
	if c.null() {
		return
	}
	if !c.eat('[') {
		c.fail()
		return
	}
	for first := true; c.more(']', first); first = false {
		if !first || !c.eat('{') {
			c.fail()
			return
		}
		ev.choices = true
		c.choice(ev)
	}
}

func (c *cursor) choice(ev *event) {
	for k, ok := c.field(true); ok; k, ok = c.field(false) {
		switch string(k) {
		case "text":
			ev.text = c.strOrNull()
		case "delta", "message":
			c.delta(ev)
		case "token_ids":
			ev.ids = c.list()
		case "finish_reason":
			c.finish(ev)
		default:
			c.skip()
		}
	}
}

func (c *cursor) delta(ev *event) {
	if c.null() {
		return
	}
	if !c.eat('{') {
		c.fail()
		return
	}
	for k, ok := c.field(true); ok; k, ok = c.field(false) {
		switch string(k) {
		case "content":
			ev.text = c.strOrNull()
		case "reasoning_content", "reasoning":
			if s := c.strOrNull(); len(s) > 0 {
				ev.more = s
			}
		case "tool_calls":
			l := c.list()
			ev.toolCall = len(l) > 2
		default:
			c.skip()
		}
	}
}

func (c *cursor) usage(ev *event) {
	if c.null() {
		return
	}
	if !c.eat('{') {
		c.fail()
		return
	}
	for k, ok := c.field(true); ok; k, ok = c.field(false) {
		switch string(k) {
		case "prompt_tokens":
			ev.prompt = c.count()
		case "completion_tokens":
			ev.completion = c.count()
		case "prompt_tokens_details":
			c.promptDetails(ev)
		default:
			c.skip()
		}
	}
}

func (c *cursor) promptDetails(ev *event) {
	if c.null() {
		return
	}
	if !c.eat('{') {
		c.fail()
		return
	}
	for k, ok := c.field(true); ok; k, ok = c.field(false) {
		if string(k) == "cached_tokens" {
			ev.cached.Total = c.count()
			ev.hasCached = ev.hasCached || ev.cached.Total >= 0
			continue
		}
		c.skip()
	}
}

// extension walks SGLang's sglext object, which may carry the tiers.
func (c *cursor) extension(ev *event) {
	if c.null() {
		return
	}
	if !c.eat('{') {
		c.fail()
		return
	}
	for k, ok := c.field(true); ok; k, ok = c.field(false) {
		if string(k) == "cached_tokens_details" {
			c.tiers(ev)
			continue
		}
		c.skip()
	}
}

// parseSlow reads any JSON, then walks its compact, re-encoded form; so both ways share one meaning.
func parseSlow(p protocol, line []byte) (event, error) {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		return event{}, err
	}
	if d.More() {
		return event{}, errNotObject
	}
	wholeNumbers(v)
	if l, ok := v["choices"].([]any); ok && len(l) > 1 {
		v["choices"] = l[:1]
	}
	b, err := json.Marshal(v)
	if err != nil {
		return event{}, err
	}
	c, ev := cursor{b: b}, newEvent()
	if p == native {
		c.native(&ev)
	} else {
		c.openAI(&ev)
	}
	if c.bad {
		return event{}, errors.New("a field has an unexpected type")
	}
	return ev, nil
}

// wholeNumbers rewrites counts such as 12.0 or 1e3 as whole numbers, and drops negative ones.
func wholeNumbers(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if n, ok := e.(json.Number); ok {
				f, err := n.Float64()
				switch {
				case err != nil || f < 0 || f > 1e15:
					v[k] = nil
				case f == float64(int64(f)):
					v[k] = int64(f)
				}
				continue
			}
			wholeNumbers(e)
		}
	case []any:
		for _, e := range v {
			wholeNumbers(e)
		}
	}
}

// appendUnescaped appends the text of a JSON string's inside to dst. A broken escape is kept as it is.
func appendUnescaped(dst, s []byte) []byte {
	for {
		i := bytes.IndexByte(s, '\\')
		if i < 0 || i+1 >= len(s) {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		ch := s[i+1]
		s = s[i+2:]
		if j := bytes.IndexByte([]byte(`"\/bfnrt`), ch); j >= 0 {
			dst = append(dst, "\"\\/\b\f\n\r\t"[j])
			continue
		}
		r, n := unescapeRune(ch, s)
		if n < 0 {
			dst = append(dst, '\\', ch)
			continue
		}
		dst = utf8.AppendRune(dst, r)
		s = s[n:]
	}
}

// unescapeRune reads the XXXX of \uXXXX, and a second half of a surrogate pair; n is how many bytes it took, -1 for
// no valid escape.
func unescapeRune(ch byte, s []byte) (r rune, n int) {
	if ch != 'u' {
		return 0, -1
	}
	r, ok := hex4(s)
	if !ok {
		return 0, -1
	}
	if utf16.IsSurrogate(r) && len(s) >= 10 && s[4] == '\\' && s[5] == 'u' {
		if lo, ok := hex4(s[6:]); ok {
			if full := utf16.DecodeRune(r, lo); full != utf8.RuneError {
				return full, 10
			}
		}
	}
	return r, 4
}

func hex4(s []byte) (rune, bool) {
	var r rune
	if len(s) < 4 {
		return 0, false
	}
	for _, ch := range s[:4] {
		switch {
		case ch-'0' < 10:
			r = r<<4 | rune(ch-'0')
		case ch|0x20 >= 'a' && ch|0x20 <= 'f':
			r = r<<4 | rune(ch|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// countIDs is how many numbers a JSON list has.
func countIDs(list []byte) int {
	if len(bytes.TrimSpace(bytes.Trim(list, "[]"))) == 0 {
		return 0
	}
	return bytes.Count(list, []byte{','}) + 1
}

// appendIDs appends the numbers of a JSON list of token ids; what is no id is left out.
func appendIDs(dst []int32, list []byte) []int32 {
	for f := range bytes.FieldsFuncSeq(list, func(r rune) bool { return r < '0' || r > '9' }) {
		if n, err := strconv.ParseInt(string(f), 10, 32); err == nil {
			dst = append(dst, int32(n))
		}
	}
	return dst
}
