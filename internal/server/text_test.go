package server

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"larder/internal/api"
	"larder/internal/infer"
)

// naiveStop is the specification: read text byte by byte and stop at the first end of any stop string that begins at
// or after from, the longest one if several end there.
func naiveStop(text string, from int, stops []string, keep bool) (shown, hit string) {
	for end := from; end <= len(text); end++ {
		for _, s := range stops {
			if strings.HasSuffix(text[from:end], s) && len(s) > len(hit) {
				hit = s
			}
		}
		if hit != "" {
			if keep {
				return text[:end], hit
			}
			return text[:end-len(hit)], hit
		}
	}
	return text, ""
}

// TestStopStringsAgainstSpecification draws texts and stop strings from few letters, so that they nearly match often.
func TestStopStringsAgainstSpecification(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	word := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString([]string{"a", "b", "é"}[rng.IntN(3)])
		}
		return b.String()
	}
	for round := range 3000 {
		text, keep, minNew := word(rng.IntN(40)), rng.IntN(2) == 0, 0
		stops := make([]string, rng.IntN(4))
		for i := range stops {
			stops[i] = word(1 + rng.IntN(5))
		}
		if rng.IntN(3) == 0 {
			minNew = rng.IntN(10)
		}
		ids := bytesTokenizer{}.Encode(text, nil)
		from := 0 // text that is certain before token minNew is not searched
		for i, skip := 0, (&bytesStream{}); i < len(ids) && i+1 < minNew; i++ {
			from += len(skip.Push(ids[i]))
		}
		want, wantHit := naiveStop(text, from, stops, keep)
		q := &sequence{keep: keep, sink: newSink(&bytesStream{}, stops, keep), req: infer.Request{MinNew: minNew}}
		var streamed strings.Builder
		for i, id := range ids {
			ev := infer.Event{Tokens: []int32{id}, StopID: -1}
			if i == len(ids)-1 {
				ev.Finish = infer.FinishLength
			}
			err := q.take(&ev, time.Now())
			streamed.Write(q.delta())
			if !strings.HasPrefix(want, streamed.String()) {
				t.Fatalf("seed %d round %d: %q streamed, final text %q (text %q stops %q)", seed, round, streamed.String(), want, text, stops)
			}
			if err != nil || q.ended {
				break
			}
		}
		if streamed.String() != want || q.finish.Text != wantHit || len(ids) > 0 && !q.ended {
			t.Fatalf("seed %d round %d: text %q stops %q keep %v min %d: got %q (%q), want %q (%q)", seed, round, text, stops, keep, minNew, streamed.String(), q.finish.Text, want, wantHit)
		}
	}
}

// TestReasoningInAnyPieces cuts an answer in every two places: the parts must be the same as in one piece.
func TestReasoningInAnyPieces(t *testing.T) {
	for text, want := range map[string][2]string{
		"<think>\nhm\n</think>\n\nyes": {"hm", "yes"},
		"\n<think>a b</think>c":        {"a b", "c"},
		"<think>\n\n</think>\n\nyes":   {"", "yes"},
		"<think>never ends ":           {"never ends ", ""},
		"no thought":                   {"", "no thought"},
		"<thin air":                    {"", "<thin air"},
		"<think>a</thin</think> b ":    {"a</thin", "b "},
		"<think>a \n b</think>":        {"a \n b", ""},
		"":                             {"", ""},
	} {
		for i := range len(text) + 1 {
			for j := i; j <= len(text); j++ {
				var p reasoning
				var got [2]string
				for k, piece := range []string{text[:i], text[i:j], text[j:]} {
					thought, content := p.push([]byte(piece), k == 2)
					got[0] += string(thought)
					got[1] += string(content)
				}
				if got != want {
					t.Fatalf("%q cut at %d and %d: %q, want %q", text, i, j, got, want)
				}
			}
		}
	}
}

func TestLongStopStringIsLinear(t *testing.T) {
	s := newStopString(strings.Repeat("a", maxStopLength))
	for range 1 << 20 { // quadratic work would take minutes
		if s.step('a') {
			s.have = int(s.fail[s.have-1])
		}
	}
	if s.have != maxStopLength-1 {
		t.Errorf("state %d", s.have)
	}
}

func TestEvents(t *testing.T) {
	// Several tokens in one event, the last of which stops: all count, the last has no text.
	q := &sequence{sink: newSink(&bytesStream{}, nil, false)}
	if err := q.take(&infer.Event{Tokens: []int32{'a', 'b', 'c'}, Finish: infer.FinishStop, StopID: 'c'}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if string(q.shown()) != "ab" || len(q.ids) != 3 || q.finish.ID != 'c' {
		t.Errorf("text %q ids %v finish %+v", q.shown(), q.ids, q.finish)
	}
	// A stop string in the middle of an event: what follows does not count.
	q = &sequence{sink: newSink(&bytesStream{}, []string{"b"}, false)}
	if err := q.take(&infer.Event{Tokens: []int32{'a', 'b', 'c'}, StopID: -1}, time.Now()); err != errStopString {
		t.Fatal(err)
	}
	if string(q.shown()) != "a" || len(q.ids) != 2 || q.finish.Text != "b" {
		t.Errorf("text %q ids %v finish %+v", q.shown(), q.ids, q.finish)
	}
	// Half a character at the end becomes U+FFFD.
	q = &sequence{sink: newSink(&bytesStream{}, []string{"z"}, false)}
	if err := q.take(&infer.Event{Tokens: []int32{'a', 0xc3}, Finish: infer.FinishLength, StopID: -1}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if string(q.shown()) != "a\ufffd" {
		t.Errorf("text %q", q.shown())
	}
}

func TestMeter(t *testing.T) {
	var m meter
	start := time.Unix(1000, 0)
	for s := range 10 {
		m.add(start.Add(time.Duration(s)*time.Second), 10+s)
	}
	for at, want := range map[int]float64{10: 17, 9: 16, 30: 0} { // the second in progress does not count
		if got := m.perSecond(start.Add(time.Duration(at) * time.Second)); got != want {
			t.Errorf("at %d s: %v, want %v", at, got, want)
		}
	}
}

// FuzzRequest sends any body to each route that takes one. The server may refuse; it may not fail, panic or leave
// anything behind.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{
		`{"text":"abc","sampling_params":{"max_new_tokens":3,"stop":["c"]},"stream":true}`, `{"input_ids":[[1,2],[3]],"sampling_params":[{"n":2},{"n":2}]}`,
		`{"prompt":["a","b"],"n":2,"echo":true,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`,
		`{"messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":4}`, `{"prompt":[1,2,299],"temperature":0.5,"seed":-1,"top_k":3}`,
		`{"tokens":[1,2]}`, `{"rid":"a"}`, `{"text":"\ud800","rid":"\u0000"}`,
	} {
		for i := range 7 {
			f.Add(byte(i), []byte(s))
		}
	}
	fx := serve(f, Config{MaxSequences: 4, ReasoningParser: "qwen3"}, echoing(), nil)
	paths := []string{"/generate", "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/abort_request", "/flush_cache"}
	f.Fuzz(func(t *testing.T, which byte, body []byte) {
		path := paths[int(which)%len(paths)]
		r := httptest.NewRequest("POST", path, strings.NewReader(string(body)))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		fx.ServeHTTP(w, r)
		if w.Code >= 500 || w.Code < 200 {
			t.Fatalf("%s %q: %d %s", path, body, w.Code, w.Body)
		}
		if strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream") {
			for _, e := range events(t, w.Body.String()) {
				if _, err := api.Decode[map[string]any]([]byte(e)); err != nil {
					t.Fatalf("%s %q: event %s: %v", path, body, e, err)
				}
			}
		}
		if n := len(fx.live.cancels); n != 0 {
			t.Fatalf("%s %q: %d requests still live", path, body, n)
		}
	})
}

// BenchmarkShort answers short requests over loopback, client and server on the same cores.
func BenchmarkShort(b *testing.B) {
	for name, body := range map[string]string{
		"whole":  `{"input_ids":[1,2,3,4],"sampling_params":{"temperature":0,"max_new_tokens":4}}`,
		"stream": `{"input_ids":[1,2,3,4],"sampling_params":{"temperature":0,"max_new_tokens":4},"stream":true}`,
	} {
		b.Run(name, func(b *testing.B) { benchmarkOver(b, "/generate", body) })
	}
}

// BenchmarkLongPrompt answers requests of 10,240 ids.
func BenchmarkLongPrompt(b *testing.B) {
	ids := strings.TrimSuffix(strings.Repeat("151,", 10240), ",")
	benchmarkOver(b, "/generate", `{"input_ids":[`+ids+`],"sampling_params":{"temperature":0,"max_new_tokens":1}}`)
}

func benchmarkOver(b *testing.B, path, body string) {
	hs := serve(b, Config{}, echoing(), func(bk *Backend) { bk.Tokenizer, bk.Model.ContextLength, bk.Model.MaxTotal = nil, 1<<20, 0 }).wire()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	defer client.CloseIdleConnections()
	b.SetParallelism(16)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			resp := ask(b, client, hs.URL+path, body)
			if got := readAll(b, resp.Body); resp.StatusCode != 200 || len(got) < 100 {
				b.Error(fmt.Sprint(resp.StatusCode, got))
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}
