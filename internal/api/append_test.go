package api

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"
)

// sameString checks that s comes back from its JSON as encoding/json would give it.
func sameString(t *testing.T, s string) {
	t.Helper()
	got := AppendString([]byte("x"), s)[1:]
	var back string
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatalf("%q became %s: %v", s, got, err)
	}
	if want := strings.ToValidUTF8(s, "\x00"); utf8.ValidString(s) && back != s || !utf8.ValidString(s) && back == want {
		t.Fatalf("%q came back as %q", s, back)
	}
	std, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var viaStd string
	if err := json.Unmarshal(std, &viaStd); err != nil || viaStd != back {
		t.Fatalf("%q: %q by hand, %q by encoding/json", s, back, viaStd)
	}
	if strings.ContainsAny(string(got), "\n\r") {
		t.Fatalf("%q: a raw line end would break the framing of events", s)
	}
	if string(AppendString(nil, []byte(s))) != string(got) {
		t.Fatalf("%q: bytes and string differ", s)
	}
}

func TestAppendString(t *testing.T) {
	for _, s := range []string{"", "a", `"\`, "\x00\x01\x1f\x7f", "\n\r\t", "é漢😀", "\u2028", "a\xff", "\xe2\x82", "\xed\xa0\x80", "x\xc3", "\ufffd"} {
		sameString(t, s)
	}
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\"\n\xff漢")
	f.Fuzz(sameString)
}

func TestAppendSeconds(t *testing.T) {
	for v, want := range map[float64]string{0: "0.000000", 1.5: "1.500000", math.Inf(1): "null", 1e-9: "0.000000"} {
		if got := string(AppendSeconds(nil, v)); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	if got := string(AppendSeconds(nil, math.NaN())); got != "null" {
		t.Errorf("NaN: %s", got)
	}
}

// Whole objects, byte for byte: clients in the wild read some of them with string searches.
func TestObjects(t *testing.T) {
	running := Finish{ID: -1}
	seed := uint64(math.MaxUint64)
	env := Envelope{ID: "cmpl-1", Object: "text_completion", Created: 1700000000, Model: `m"x`}
	for name, c := range map[string]struct{ got, want string }{
		"running": {
			string(AppendGenerate(nil, &Generated{Text: []byte(`a\n`), IDs: []byte("1,2"), Index: 3, Meta: Meta{ID: "r", Finish: running, Prompt: 4, Completion: 2}})),
			`{"text":"a\n","output_ids":[1,2],"meta_info":{"id":"r","finish_reason":null,"prompt_tokens":4,"completion_tokens":2,"reasoning_tokens":0,"cached_tokens":0,"cached_tokens_details":null,"weight_version":"default","num_retractions":0},"index":3}`,
		},
		"done": {
			string(AppendGenerate(nil, &Generated{Index: -1, Meta: Meta{ID: "r", Finish: Finish{Reason: "stop", ID: 7}, Prompt: 4, Completion: 2, Cached: true, Device: 1, Host: 2, Computed: 1, Retractions: 1, Seed: &seed,
				Timing: &Timing{E2E: 1.25, Queue: .5, Load: 0, TTFT: 1, DecodeRate: math.NaN(), Received: 1, Finished: 2.25}}})),
			`{"text":"","output_ids":[],"meta_info":{"id":"r","finish_reason":{"type":"stop","matched":7},"prompt_tokens":4,"completion_tokens":2,"reasoning_tokens":0,"cached_tokens":3,"cached_tokens_details":{"device":1,"host":2},"computed_tokens":1,"weight_version":"default","num_retractions":1,"sampling_seed":18446744073709551615,` +
				`"e2e_latency":1.250000,"queue_time":0.500000,"load_time":0.000000,"time_to_first_token":1.000000,"decode_throughput":null,"request_received_ts":1.000000,"request_finished_ts":2.250000}}`,
		},
		"stop string": {string((&Finish{Reason: "stop", Text: "\n", ID: -1}).appendNative(nil)), `{"type":"stop","matched":"\n"}`},
		"length":      {string((&Finish{Reason: "length", Length: 5, ID: -1}).appendNative(nil)), `{"type":"length","length":5}`},
		"abort":       {string((&Finish{Reason: "abort", Message: "gone", ID: -1}).appendNative(nil)), `{"type":"abort","message":"gone"}`},
		"text chunk": {
			string(AppendClose(AppendTextChoice(env.AppendOpen(nil), 0, []byte("hi"), &running), nil)),
			`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m\"x","choices":[{"index":0,"text":"hi","logprobs":null,"finish_reason":null,"matched_stop":null}]}`,
		},
		"usage": {
			string(AppendClose(env.AppendOpen(nil), &Usage{Prompt: 5, Completion: 2, Device: 3, Host: 1})),
			`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m\"x","choices":[],"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4,"device":3,"host":1},"reasoning_tokens":0,"completion_tokens_details":{"reasoning_tokens":0}}}`,
		},
		"role delta":      {string(AppendDelta(nil, 1, &Message{Role: true, Content: []byte{}}, &running)), `{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"matched_stop":null}`},
		"reasoning delta": {string(AppendDelta(nil, 0, &Message{Reasoning: []byte("hm")}, &running)), `{"index":0,"delta":{"reasoning_content":"hm"},"logprobs":null,"finish_reason":null,"matched_stop":null}`},
		"last delta":      {string(AppendDelta(nil, 0, &Message{}, &Finish{Reason: "stop", Text: "X", ID: -1})), `{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","matched_stop":"X"}`},
		"message":         {string(AppendMessage(nil, 0, &Message{Role: true, Content: []byte("a")}, &Finish{Reason: "length", ID: -1})), `{"index":0,"message":{"role":"assistant","content":"a","reasoning_content":null},"logprobs":null,"finish_reason":"length","matched_stop":null}`},
		"native 400":      {string(AppendFault(nil, Native, &Fault{Status: 400, Type: "Bad Request", Message: "no"})), `{"error":{"message":"no"}}`},
		"native 503":      {string(AppendFault(nil, Native, &Fault{Status: 503, Type: "Service Unavailable", Message: "no"})), `{"object":"error","message":"no","type":"Service Unavailable","param":null,"code":503}`},
		"openai 400":      {string(AppendFault(nil, OpenAI, &Fault{Status: 400, Type: "Bad Request", Message: "no", Param: "n"})), `{"object":"error","message":"no","type":"Bad Request","param":"n","code":400}`},
		"no model":        {string(AppendFault(nil, OpenAI, &Fault{Status: 404, Type: "invalid_request_error", Message: "no", Param: "model", Code: "model_not_found"})), `{"error":{"message":"no","type":"invalid_request_error","param":"model","code":"model_not_found"}}`},
		"stream error":    {string(AppendStreamFault(nil, OpenAI, &Fault{Status: 500, Type: "Internal Server Error", Message: "no"})), `data: {"error":{"object":"error","message":"no","type":"Internal Server Error","param":null,"code":500,"retryable":false}}` + "\n\n"},
	} {
		if c.got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, c.got, c.want)
		}
		if !json.Valid([]byte(strings.TrimPrefix(strings.TrimSpace(c.got), EventStart))) {
			t.Errorf("%s: no valid JSON", name)
		}
	}
}

func BenchmarkAppendGenerate(b *testing.B) {
	g := &Generated{Text: []byte("some words of an answer"), IDs: []byte("12,3456,789"), Index: -1, Meta: Meta{ID: "0123456789abcdef0123456789abcdef", Finish: Finish{ID: -1}, Prompt: 10240, Completion: 3, Cached: true, Device: 9216}}
	buf := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendGenerate(buf[:0], g)
	}
}
