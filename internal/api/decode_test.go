package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// idsBody is a request with n random ids, as the stock benchmark client writes it.
func idsBody(n int) []byte {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	var b strings.Builder
	b.WriteString(`{"input_ids": [`)
	for i := range n {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, rng.IntN(151936))
	}
	b.WriteString(`], "sampling_params": {"temperature": 0.0, "max_new_tokens": 1, "ignore_eos": true}, "stream": true, "lora_path": null, "return_logprob": false, "logprob_start_len": -1}`)
	return []byte(b.String())
}

func TestDecodeGenerate(t *testing.T) {
	r, err := DecodeGenerate(idsBody(1000))
	if err != nil {
		t.Fatal(err)
	}
	slow, err := Decode[GenerateRequest](idsBody(1000))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(slow, r); d != "" {
		t.Errorf("by hand and by encoding/json (-want +got):\n%s", d)
	}
	if len(r.InputIDs.IDs[0]) != 1000 || *r.Sampling.All[0].MaxNewTokens != 1 || !*r.Stream || r.Refused() != "" {
		t.Errorf("decoded %d ids, %+v", len(r.InputIDs.IDs[0]), r)
	}
}

func TestNullAndAbsentAreDefaults(t *testing.T) {
	r, err := DecodeGenerate([]byte(`{"text":null,"input_ids":null,"sampling_params":null,"stream":null,"rid":null,"cache_salt":null,"image_data":null,"unknown":{"a":[1]}}`))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&GenerateRequest{}, r); d != "" {
		t.Errorf("nulls are not defaults:\n%s", d)
	}
	p, err := DecodeGenerate([]byte(`{"text":"a","sampling_params":{"temperature":null,"stop":null,"n":null,"regex":null,"stop_token_ids":null}}`))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]SamplingParams{{}}, p.Sampling.All); d != "" {
		t.Errorf("nulls are not defaults:\n%s", d)
	}
}

func TestPromptShapes(t *testing.T) {
	for body, want := range map[string]Prompt{
		`"a"`:                 {Texts: []string{"a"}},
		`["a","b"]`:           {Texts: []string{"a", "b"}, List: true},
		`[1,2]`:               {IDs: [][]int32{{1, 2}}},
		` [ 1 , 2 ] `:         {IDs: [][]int32{{1, 2}}},
		`[[1,2],[3]]`:         {IDs: [][]int32{{1, 2}, {3}}, List: true},
		`[[],[3]]`:            {IDs: [][]int32{{}, {3}}, List: true},
		`[]`:                  {IDs: [][]int32{{}}},
		`[-1]`:                {IDs: [][]int32{{-1}}},
		`[2147483647]`:        {IDs: [][]int32{{2147483647}}},
		`null`:                {},
		"\"\\ud83d\\ude00x\"": {Texts: []string{"😀x"}},
	} {
		r, err := DecodeCompletion([]byte(`{"prompt":` + body + `}`))
		if err != nil {
			t.Errorf("%s: %v", body, err)
		} else if d := cmp.Diff(want, r.Prompt); d != "" {
			t.Errorf("%s (-want +got):\n%s", body, d)
		}
	}
	for _, body := range []string{`1`, `true`, `{}`, `[1,"a"]`, `["a",1]`, `[1.5]`, `[1e3]`, `[2147483648]`, `[null]`, `[1,null]`, `[[1],2]`, `[[1],[null]]`, `[[[1]]]`, `[true]`} {
		_, err := DecodeCompletion([]byte(`{"prompt":` + body + `}`))
		var bad *BadBody
		if !errors.As(err, &bad) || bad.Param != "prompt" || !strings.Contains(bad.Msg, "expected a string, a list of strings") {
			t.Errorf("%s: error %#v", body, err)
		}
	}
}

func TestBadBodies(t *testing.T) {
	for body, want := range map[string]string{
		``:                    "not valid JSON: unexpected end",
		`{`:                   "not valid JSON: unexpected end",
		`{"input_ids":[1,]}`:  "not valid JSON",
		`{"input_ids":[01]}`:  "not valid JSON",
		`{"input_ids":[1}`:    "not valid JSON",
		`{"input_ids":[1]} x`: "after top-level value",
		`{"input_ids":[1],}`:  "not valid JSON",
		`null`:                "must be a JSON object",
		`[1]`:                 "the body: expected an object, got array",
		`{"sampling_params":{"temperature":NaN},"input_ids":[1]}`:     "invalid character 'N'",
		`{"sampling_params":{"temperature":"hot"},"input_ids":[1]}`:   "temperature: expected a number, got string",
		`{"sampling_params":{"temperature":1e999},"input_ids":[1]}`:   "temperature: expected a number, got number 1e999",
		`{"sampling_params":{"max_new_tokens":1.5},"input_ids":[1]}`:  "max_new_tokens: expected an integer, got number 1.5",
		`{"sampling_params":{"max_new_tokens":true},"input_ids":[1]}`: "expected an integer, got bool",
		`{"sampling_params":7}`:                      "sampling_params: expected an object or a list of objects",
		`{"sampling_params":{"stop":[1]}}`:           "stop: expected a string or a list of strings",
		`{"stream":"yes"}`:                           "stream: expected true or false, got string",
		`{"rid":{}}`:                                 "rid: expected a string or a list of strings",
		`{"input_ids":` + strings.Repeat("[", 20000): "not valid JSON",
	} {
		_, err := DecodeGenerate([]byte(body))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.60s: error %v, want %q", body, err, want)
		}
	}
}

func TestRefused(t *testing.T) {
	for body, want := range map[string]string{
		`{"return_logprob":true}`:                          "return_logprob",
		`{"return_logprob":false}`:                         "",
		`{"image_data":"http://x"}`:                        "image_data",
		`{"image_data":[null,null]}`:                       "",
		`{"lora_path":["a",null]}`:                         "lora_path",
		`{"priority":0}`:                                   "",
		`{"priority":3}`:                                   "priority",
		`{"sampling_params":{"regex":"a+"}}`:               "regex",
		`{"sampling_params":{"json_schema":""}}`:           "",
		`{"sampling_params":{"logit_bias":{}}}`:            "",
		`{"sampling_params":{"repetition_penalty":1}}`:     "",
		`{"sampling_params":{"repetition_penalty":1.1}}`:   "repetition_penalty",
		`{"sampling_params":{"frequency_penalty":0.5}}`:    "frequency_penalty",
		`{"sampling_params":[{},{"presence_penalty":-1}]}`: "presence_penalty",
	} {
		r, err := DecodeGenerate([]byte(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		got := r.Refused()
		for i := range r.Sampling.All {
			if got == "" {
				got = r.Sampling.All[i].Refused()
			}
		}
		if got != want {
			t.Errorf("%s: refused %q, want %q", body, got, want)
		}
	}
	for body, want := range map[string]string{
		`{"best_of":1}`: "", `{"best_of":2}`: "best_of", `{"best_of":2,"n":2}`: "", `{"logprobs":0}`: "logprobs",
		`{"logprobs":null}`: "", `{"suffix":"x"}`: "suffix", `{"response_format":{"type":"text"}}`: "",
		`{"response_format":{"type":"json_object"}}`: "response_format", `{"user":"me","metadata":{}}`: "",
	} {
		r, err := DecodeCompletion([]byte(body))
		if err != nil || r.Refused() != want {
			t.Errorf("%s: refused %q, want %q (%v)", body, r.Refused(), want, err)
		}
	}
	for body, want := range map[string]string{
		`{"logprobs":false,"top_logprobs":0,"tools":[]}`: "", `{"logprobs":true}`: "logprobs", `{"tools":[{}]}`: "tools",
		`{"continue_final_message":true}`: "continue_final_message",
	} {
		r, err := DecodeChat([]byte(body))
		if err != nil || r.Refused() != want {
			t.Errorf("%s: refused %q, want %q (%v)", body, r.Refused(), want, err)
		}
	}
}

func TestChatContent(t *testing.T) {
	r, err := DecodeChat([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"assistant","content":null},{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	got := []Content{r.Messages[0].Content, r.Messages[1].Content, r.Messages[2].Content}
	if want := []Content{{Text: "ab"}, {}, {Refused: "image_url"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("contents %+v, want %+v", got, want)
	}
	if _, err := DecodeChat([]byte(`{"messages":[{"role":"user","content":7}]}`)); err == nil {
		t.Error("a number passed as content")
	}
}

// sameDecode decodes body by hand and by encoding/json alone, which must agree on value and error.
func sameDecode(t *testing.T, body []byte) {
	t.Helper()
	fast, ferr := DecodeGenerate(body)
	slow, serr := Decode[GenerateRequest](body)
	if fmt.Sprint(ferr) != fmt.Sprint(serr) {
		t.Fatalf("%q: by hand %v, by encoding/json %v", body, ferr, serr)
	}
	if ferr == nil {
		if d := cmp.Diff(slow, fast); d != "" {
			t.Fatalf("%q (-encoding/json +by hand):\n%s", body, d)
		}
	}
}

var seeds = []string{
	`{"input_ids":[1,2,3]}`, `{"input_ids":[[1,2],[3]],"stream":true}`, `{"a":{"input_ids":[9]},"input_ids":[1]}`,
	`{"a":"\"input_ids\":[9]","input_ids":[1]}`, `{"a\"b":[],"input_ids":[1]}`, `{"a":"\\","input_ids":[1]}`,
	`{"input_ids":[1],"input_ids":[2]}`, `{"input_ids":[1],"INPUT_IDS":[2]}`, `{"INPUT_IDS":[2]}`,
	`{"input_ids":[1],"input_idſ":[2]}`, `{"input\u005fids":[4],"input_ids":[1]}`, `{"input_ids":[],"x":1}`,
	`{"input_ids":[0,00]}`, `{"input_ids":[-0]}`, `{"input_ids":[1 2]}`, `{"input_ids":[1,2],"sampling_params":{"n":"x"}}`,
	`{"x":}{,"input_ids":[1]}`, `{"x":[1}],"input_ids":[1]}`, `{"x" "y","input_ids":[1]}`, `{"input_ids":[9999999999]}`,
	"{\"input_ids\":[1\n,\t2 ]\r}", `{"input_ids":[1]]}`, `{"input_ids":[[1],[2],]}`, `{"input_ids":[[1][2]]}`, `{"x":1 2,"input_ids":[1]}`,
	`{"input_ids":[1],"text":"a\ud800b"}`, "{\"input_ids\":[1],\"text\":\"\xff\"}", `{"input_ids":[[1,null]]}`, ` {"input_ids":[1]}`,
}

func TestByHandLikeEncodingJSON(t *testing.T) {
	for _, body := range seeds {
		sameDecode(t, []byte(body))
	}
	rng := rand.New(rand.NewPCG(7, 7))
	for range 20000 { // bodies that are nearly right: one byte of a seed changed, dropped or doubled
		b := []byte(seeds[rng.IntN(len(seeds))])
		i := rng.IntN(len(b))
		switch rng.IntN(3) {
		case 0:
			b[i] = `{}[],:"\0129 -n`[rng.IntN(15)]
		case 1:
			b = append(b[:i], b[i+1:]...)
		default:
			b = append(b[:i+1], b[i:]...)
		}
		sameDecode(t, b)
	}
}

func FuzzGenerateBody(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) { sameDecode(t, body) })
}

func FuzzOpenAIBody(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","prompt":"a","stream":true,"stream_options":{"include_usage":true}}`, `{"prompt":[[1],[2]],"n":2}`,
		`{"messages":[{"role":"user","content":"hi"}],"max_tokens":3}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := DecodeCompletion(body)
		if (err == nil) != (c != nil) {
			t.Fatal("neither request nor error, or both")
		}
		if err == nil {
			_ = c.Refused()
			if !json.Valid(body) {
				t.Fatalf("took %q, which is no JSON", body)
			}
		}
		if m, err := DecodeChat(body); err == nil {
			_ = m.Refused()
		}
	})
}

func BenchmarkDecodeIDs(b *testing.B) {
	body := idsBody(10240)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := DecodeGenerate(body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeIDsEncodingJSON(b *testing.B) {
	body := idsBody(10240)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := Decode[GenerateRequest](body); err != nil {
			b.Fatal(err)
		}
	}
}
