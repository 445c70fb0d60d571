package loadgen

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"larder/internal/loadgen/mockserver"
	"larder/internal/workload"
)

// decode feeds an answer to a fresh stream, each piece at its time, cut where cut says.
func decode(p protocol, a mockserver.Answer, cut func(s string) []string) *Outcome {
	o := &Outcome{Item: &workload.Item{OutputLen: 4}, PromptTokens: -1}
	s := newStream(o, p)
	at := time.Duration(0)
	for i, piece := range a.Pieces {
		at = time.Duration(i+1) * time.Millisecond
		for _, part := range cut(piece.Data) {
			s.feed(at, []byte(part))
		}
	}
	s.flush(at)
	s.finish()
	return o
}

func whole(s string) []string { return []string{s} }

// bytewise cuts at every byte, so through every CRLF, escape, UTF-8 sequence and number.
func bytewise(s string) []string {
	parts := make([]string, len(s))
	for i := range parts {
		parts[i] = s[i : i+1]
	}
	return parts
}

func request(p protocol) *mockserver.Request {
	body := `{"stream":true,"max_tokens":4,"max_completion_tokens":4,"sampling_params":{"max_new_tokens":4}}`
	return &mockserver.Request{Path: []string{"/generate", "/v1/completions", "/v1/chat/completions"}[p], Body: []byte(body)}
}

// Every dialect of a well-formed answer gives the same output, however the bytes are cut.
func TestDialects(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	atRandom := func(s string) []string {
		var parts []string
		for s != "" {
			n := 1 + r.IntN(len(s))
			parts, s = append(parts, s[:n]), s[n:]
		}
		return parts
	}
	cases := map[string]mockserver.Options{
		"plain": {}, "crlf": {CRLF: true}, "comments": {Comments: true}, "no space": {NoSpace: true}, "no blank lines": {NoBlankLines: true},
		"all odd": {CRLF: true, Comments: true, NoSpace: true, NoBlankLines: true}, "no done": {NoDone: true}, "role": {Role: true},
		"reasoning": {Reasoning: true}, "ids": {IDs: true}, "usage": {Usage: true}, "inline": {UsageInline: true},
		"continuous": {Continuous: true, Usage: true}, "incremental": {Incremental: true, IDs: true}, "unicode": {Text: "é漢😀\"\\\n"},
	}
	for name, o := range cases {
		if o.Text == "" {
			o.Text = "ab"
		}
		for _, p := range []protocol{native, completions, chat} {
			for cutName, cut := range map[string]func(string) []string{"whole": whole, "bytes": bytewise, "random": atRandom} {
				got := decode(p, mockserver.Stream(request(p), o), cut)
				if got.Class != "" || got.Text != strings.Repeat(o.Text, 4) || len(got.Chunks) != 4 || got.OutputTokens != 4 || got.FinishReason != "length" {
					t.Errorf("%s, protocol %d, cut %s: %+v, error %v", name, p, cutName, got, got.Err)
				}
				if want := time.Millisecond; got.First != want && !o.Role {
					t.Errorf("%s, protocol %d, cut %s: first output at %v, want %v", name, p, cutName, got.First, want)
				}
			}
		}
	}
}

// A role-only chunk, an empty chunk, a comment and a usage chunk are no first token.
func TestFirstTokenIsOutput(t *testing.T) {
	got := decode(chat, mockserver.Stream(request(chat), mockserver.Options{Role: true, Usage: true}), whole)
	if got.First != 2*time.Millisecond || len(got.Chunks) != 4 {
		t.Errorf("first output at %v in %d chunks, want the second piece and 4", got.First, len(got.Chunks))
	}
	got = decode(completions, mockserver.Answer{Pieces: []mockserver.Piece{
		{Data: ": ping\n\n"},
		{Data: `data: {"choices":[{"text":"","finish_reason":null}],"usage":{"completion_tokens":0}}` + "\n\n"},
		{Data: `data: {"choices":[{"text":"x","finish_reason":"stop"}]}` + "\n\n"},
		{Data: `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}` + "\n\ndata: [DONE]\n\n"},
	}}, whole)
	want := []Chunk{{3 * time.Millisecond, 0}}
	if !reflect.DeepEqual(got.Chunks, want) || got.OutputTokens != 3 || got.PromptTokens != 7 || got.TokenSource != SourceUsage || got.Done != 4*time.Millisecond {
		t.Errorf("%+v, want one chunk %v, 3 tokens by usage, done at 4 ms", got, want)
	}
}

// Tokens of a chunk are counted, not assumed to be one; a chunk without new tokens is no arrival.
func TestTokensPerChunk(t *testing.T) {
	o := mockserver.Options{PerChunk: 3, Continuous: true, IDs: true}
	for _, p := range []protocol{native, completions, chat} {
		got := decode(p, mockserver.Stream(request(p), o), whole)
		if len(got.Chunks) != 2 || got.Chunks[0].Tokens != 3 || got.Chunks[1].Tokens != 1 {
			t.Errorf("protocol %d: chunks %v, want 3 and 1 tokens", p, got.Chunks)
		}
	}
	line := `data: {"text":"ab","meta_info":{"completion_tokens":2,"finish_reason":null}}` + "\n\n"
	got := decode(native, mockserver.Answer{Pieces: []mockserver.Piece{{Data: line}, {Data: line}, {Data: "data: [DONE]\n\n"}}}, whole)
	if len(got.Chunks) != 1 || got.Text != "ab" {
		t.Errorf("a repeated chunk counts: %v, text %q", got.Chunks, got.Text)
	}
}

// Output without text (a token that is half a character, or a server without a tokenizer) is still output.
func TestOutputWithoutText(t *testing.T) {
	for name, o := range map[string]mockserver.Options{"counts": {Text: "-"}, "ids": {Text: "-", IDs: true, NoCounts: true}} {
		got := decode(native, mockserver.Stream(request(native), o), whole)
		if got.Class != "" || got.First != time.Millisecond || got.OutputTokens != 4 {
			t.Errorf("%s: %+v", name, got)
		}
		if o.IDs && (!reflect.DeepEqual(got.OutputIDs, []int32{100, 101, 102, 103}) || got.TokenSource != SourceIDs) {
			t.Errorf("%s: ids %v from %s", name, got.OutputIDs, got.TokenSource)
		}
	}
	got := decode(completions, mockserver.Stream(request(completions), mockserver.Options{Text: "-", Usage: true}), whole)
	if _, timed := got.TTFT(); got.Class != "" || timed || got.OutputTokens != 4 {
		t.Errorf("text that never came has no TTFT, but the tokens count: %+v", got)
	}
}

func TestCachedTokensByTier(t *testing.T) {
	o := mockserver.Options{Prompt: 100, Cached: [3]int{60, 20, 4}, Usage: true}
	got := decode(native, mockserver.Stream(request(native), o), whole)
	if got.PromptTokens != 100 || got.Cached == nil || *got.Cached != (Cached{84, 60, 20, 4}) {
		t.Errorf("native: prompt %d, cached %+v", got.PromptTokens, got.Cached)
	}
	got = decode(chat, mockserver.Stream(request(chat), o), whole)
	if got.PromptTokens != 100 || got.Cached == nil || *got.Cached != (Cached{84, -1, -1, -1}) {
		t.Errorf("usage has the total alone: prompt %d, cached %+v", got.PromptTokens, got.Cached)
	}
	got = decode(completions, mockserver.Answer{Pieces: []mockserver.Piece{
		{Data: `data: {"choices":[{"text":"x","finish_reason":"stop"}]}` + "\n\n"},
		{Data: `data: {"choices":[],"sglext":{"cached_tokens_details":{"device":5,"host":null}}}` + "\n\ndata: [DONE]\n\n"},
	}}, whole)
	if got.Cached == nil || *got.Cached != (Cached{-1, 5, -1, -1}) {
		t.Errorf("extension: cached %+v", got.Cached)
	}
	if got = decode(native, mockserver.Stream(request(native), mockserver.Options{}), whole); got.Cached != nil || got.PromptTokens != -1 {
		t.Errorf("nothing said, but prompt %d, cached %+v", got.PromptTokens, got.Cached)
	}
}

// Bad streams are failures with a message, never a fast success.
func TestBadStreams(t *testing.T) {
	good := `data: {"text":"a","meta_info":{"completion_tokens":1,"finish_reason":null}}` + "\n\n"
	for name, c := range map[string]struct {
		p                  protocol
		text, class, wants string
	}{
		"error frame":       {native, `data: {"error":{"message":"too long","code":400}}` + "\n\ndata: [DONE]\n\n", ClassStream, "too long"},
		"error after token": {native, good + `data: {"error":{"message":"boom"}}` + "\n\ndata: [DONE]\n\n", ClassStream, "boom"},
		"error event":       {chat, "event: error\ndata: {\"detail\":\"gone\"}\n\n", ClassStream, "gone"},
		"error text":        {completions, `data: {"error":"plain"}` + "\n\n", ClassStream, "plain"},
		"abort":             {native, `data: {"text":"","meta_info":{"completion_tokens":0,"finish_reason":{"type":"abort","message":"no room"}}}` + "\n\ndata: [DONE]\n\n", ClassStream, "no room"},
		"nothing":           {native, "", ClassEmpty, "no output"},
		"only done":         {chat, "data: [DONE]\n\n", ClassEmpty, "no output"},
		"early end":         {native, good, ClassStream, "ended early"},
		"no JSON":           {completions, "data: hello\n\n", ClassStream, "bad event"},
		"cut JSON":          {completions, `data: {"choices":[{"text":"a"` + "\n\n", ClassStream, "bad event"},
		"wrong types":       {completions, `data: {"choices":[{"text":7}]}` + "\n\n", ClassStream, "bad event"},
		"web page":          {native, "<html>\n<body>login</body>\n", ClassStream, "not an event stream"},
	} {
		got := decode(c.p, mockserver.Answer{Pieces: []mockserver.Piece{{Data: c.text}}}, whole)
		if got.Class != c.class || got.Err == nil || !strings.Contains(got.Err.Error(), c.wants) {
			t.Errorf("%s: class %q, error %v; want %q with %q", name, got.Class, got.Err, c.class, c.wants)
		}
	}
}

func TestLinesOfAnyLength(t *testing.T) {
	long := strings.Repeat("x", 8<<20)
	got := decode(completions, mockserver.Answer{Pieces: []mockserver.Piece{
		{Data: `data: {"choices":[{"text":"` + long + `","finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"}}}, func(s string) []string {
		var parts []string
		for ; len(s) > 16384; s = s[16384:] {
			parts = append(parts, s[:16384])
		}
		return append(parts, s)
	})
	if got.Class != "" || len(got.Text) != len(long) || len(got.Chunks) != 1 {
		t.Errorf("8 MB line: class %q (%v), %d bytes", got.Class, got.Err, len(got.Text))
	}
	split := "data: {\"choices\":[{\"text\":\"x\",\ndata: \"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
	if got = decode(completions, mockserver.Answer{Pieces: []mockserver.Piece{{Data: split}}}, whole); got.Text != "x" || got.Class != "" {
		t.Errorf("one event in two data lines: %q, %v", got.Text, got.Err)
	}
	several := strings.Repeat(`data: {"choices":[{"text":"y"}]}`+"\n\n", 3)
	if got = decode(completions, mockserver.Answer{Pieces: []mockserver.Piece{{Data: several}}}, whole); len(got.Chunks) != 3 {
		t.Errorf("three events in one read: %d chunks", len(got.Chunks))
	}
}

// Nobody counted: the requested length stands in, and says so.
func TestUncountedTokens(t *testing.T) {
	got := decode(completions, mockserver.Stream(request(completions), mockserver.Options{PerChunk: 2}), whole)
	if got.OutputTokens != 4 || got.TokenSource != SourceRequested || got.Chunks[0].Tokens != 0 {
		t.Errorf("%+v", got)
	}
	// A count in the last chunk counts what came before, too: it is no burst of tokens.
	got = decode(completions, mockserver.Stream(request(completions), mockserver.Options{PerChunk: 2, UsageInline: true}), whole)
	if got.OutputTokens != 4 || got.TokenSource != SourceUsage || len(got.Chunks) != 2 || got.Chunks[1].Tokens != 0 {
		t.Errorf("%+v", got)
	}
}

// The cursor and encoding/json must agree on every line that the cursor takes.
func FuzzCursor(f *testing.F) {
	for _, p := range []protocol{native, completions, chat} {
		for _, o := range []mockserver.Options{{IDs: true, Prompt: 3}, {Usage: true, Continuous: true, Role: true, Text: "é\"\n"}} {
			for _, piece := range mockserver.Stream(request(p), o).Pieces {
				for _, line := range strings.Split(piece.Data, "\n") {
					f.Add(int(p), strings.TrimPrefix(line, "data: "))
				}
			}
		}
	}
	f.Add(1, `{"choices":[{"text":"\ud83d\ude00\u12"}],"usage":{"prompt_tokens":1.5e1}}`)
	f.Fuzz(func(t *testing.T, pn int, line string) {
		p := protocol(uint(pn) % 3)
		c, fast := cursor{b: []byte(line)}, newEvent()
		if p == native {
			c.native(&fast)
		} else {
			c.openAI(&fast)
		}
		c.end()
		slow, err := parseSlow(p, []byte(line))
		if c.bad || err != nil || !utf8.ValidString(line) || hasDuplicateKeys(line) {
			return // of two equal keys, a map keeps the last, and a walk parts of both
		}
		show := func(e event) string {
			return fmt.Sprintf("%q %q %q %v %v %d %d %+v %d", appendUnescaped(nil, e.text), appendUnescaped(nil, e.more), e.finish, e.errorText != nil, e.choices, e.prompt, e.completion, e.cached, countIDs(e.ids))
		}
		if a, b := show(fast), show(slow); a != b {
			t.Errorf("%q: cursor %s, encoding/json %s", line, a, b)
		}
	})
}

// BenchmarkStream measures the read path on a stream of 200 chunks, a chunk a read; one operation is one event.
func BenchmarkStream(b *testing.B) {
	for name, c := range map[string]struct {
		p protocol
		o mockserver.Options
	}{
		"native":     {native, mockserver.Options{Tokens: 200, Text: "word ", Prompt: 9}},
		"completion": {completions, mockserver.Options{Tokens: 200, Text: "word ", Continuous: true}},
		"chat":       {chat, mockserver.Options{Tokens: 200, Text: "word "}},
	} {
		b.Run(name, func(b *testing.B) {
			a := mockserver.Stream(request(c.p), c.o)
			events := make([][]byte, 200)
			for i := range events {
				events[i] = []byte(a.Pieces[i].Data)
			}
			o := &Outcome{Item: &workload.Item{OutputLen: 200}, Chunks: make([]Chunk, 0, 256)}
			s := newStream(o, c.p)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%200 == 0 {
					*o = Outcome{Item: o.Item, Chunks: o.Chunks[:0], Cached: o.Cached, FinishReason: o.FinishReason}
					*s = stream{o: o, proto: c.p, raw: s.raw[:0], rest: s.rest[:0]}
				}
				s.feed(time.Duration(i), events[i%200])
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// hasDuplicateKeys says whether some key may come twice; it errs on the side of yes.
func hasDuplicateKeys(line string) bool {
	seen := map[string]bool{}
	for _, part := range strings.Split(line, `"`) {
		part = strings.ToLower(part)
		if len(part) > 3 && seen[part] || strings.Contains(part, "\\") {
			return true
		}
		seen[part] = true
	}
	return false
}

// FuzzStream: no bytes make the reader panic, and how they are cut into reads changes nothing.
func FuzzStream(f *testing.F) {
	for p := range 3 {
		for _, o := range []mockserver.Options{{}, {CRLF: true, Comments: true, Role: true, Usage: true}, {NoSpace: true, NoBlankLines: true, IDs: true, Incremental: true}} {
			text := ""
			for _, piece := range mockserver.Stream(request(protocol(p)), o).Pieces {
				text += piece.Data
			}
			f.Add(p, text)
		}
	}
	f.Add(0, "event: error\ndata: {\"x\":1}\n\n")
	f.Add(1, "data: {\"choices\":\ndata: []}\n\n<html>\r\n")
	f.Fuzz(func(t *testing.T, pn int, text string) {
		p := protocol(uint(pn) % 3)
		a := mockserver.Answer{Pieces: []mockserver.Piece{{Data: text}}}
		one, many := decode(p, a, whole), decode(p, a, bytewise)
		if fmt.Sprint(one.Err) != fmt.Sprint(many.Err) {
			t.Errorf("%q: error %v read whole, %v byte by byte", text, one.Err, many.Err)
		}
		one.Err, many.Err, one.Item, many.Item = nil, nil, nil, nil
		if !reflect.DeepEqual(one, many) {
			t.Errorf("%q:\n%+v read whole,\n%+v byte by byte", text, one, many)
		}
	})
}
