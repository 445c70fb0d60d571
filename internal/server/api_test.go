package server

import (
	"encoding/json"
	"strings"
	"testing"

	"larder/internal/infer"
)

func check(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestGenerate(t *testing.T) {
	f := serve(t, Config{}, saying("hello world", infer.Cached{Device: 2, Host: 1}), nil)
	const timing = `"e2e_latency":0,"queue_time":0,"load_time":0,"time_to_first_token":0,"decode_throughput":0,"request_received_ts":0,"request_finished_ts":0}}`
	check(t, f.post("/generate", `{"text":"abcd","sampling_params":{"temperature":0,"max_new_tokens":3},"rid":"r1"}`, 200),
		`{"text":"hel","output_ids":[104,101,108],"meta_info":{"id":"r1","finish_reason":{"type":"length","length":3},"prompt_tokens":4,"completion_tokens":3,"reasoning_tokens":0,"cached_tokens":3,"cached_tokens_details":{"device":2,"host":1},"computed_tokens":1,"weight_version":"default","num_retractions":0,`+timing)
	// The end token counts and is among the ids, but has no text.
	check(t, f.post("/generate", `{"input_ids":[1,2,3],"sampling_params":{"temperature":0}}`, 200),
		`{"text":"hello world","output_ids":[104,101,108,108,111,32,119,111,114,108,100,256],"meta_info":{"id":"ID","finish_reason":{"type":"stop","matched":256},"prompt_tokens":3,"completion_tokens":12,"reasoning_tokens":0,"cached_tokens":3,"cached_tokens_details":{"device":2,"host":1},"computed_tokens":0,"weight_version":"default","num_retractions":0,`+timing)
	// PUT is POST; a batch answers with a list, and n > 1 makes a list of one prompt.
	w := f.do("PUT", "/generate", `{"input_ids":[[1,2,3],[4,5,6]],"sampling_params":[{"temperature":0,"max_new_tokens":1},{"max_new_tokens":2,"sampling_seed":5}],"rid":["a","b"]}`)
	var batch []struct {
		Text string
		IDs  []int `json:"output_ids"`
		Meta struct {
			ID   string
			Seed *uint64 `json:"sampling_seed"`
		} `json:"meta_info"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &batch); err != nil || len(batch) != 2 || batch[0].Text != "h" || batch[1].Text != "he" || batch[1].Meta.ID != "b" {
		t.Errorf("batch: %v %s", err, w.Body)
	}
	if batch[0].Meta.Seed != nil || batch[1].Meta.Seed == nil || *batch[1].Meta.Seed != 5 {
		t.Errorf("seeds: a greedy answer has none, a sampled one its own: %s", w.Body)
	}
	w = f.do("POST", "/generate", `{"text":"abc","sampling_params":{"n":3,"max_new_tokens":2},"rid":"z"}`)
	if err := json.Unmarshal(w.Body.Bytes(), &batch); err != nil || len(batch) != 3 || batch[2].Meta.ID != "z_2" || *batch[0].Meta.Seed+1 != *batch[1].Meta.Seed {
		t.Errorf("n: %v %s", err, w.Body)
	}
}

func TestGenerateNoTokens(t *testing.T) {
	f := serve(t, Config{}, saying("hello", infer.Cached{}), nil)
	got := f.post("/generate", `{"text":"abcd","sampling_params":{"max_new_tokens":0}}`, 200)
	if !strings.HasPrefix(got, `{"text":"","output_ids":[],`) || !strings.Contains(got, `"finish_reason":{"type":"length","length":0}`) || !strings.Contains(got, `"completion_tokens":0,`) {
		t.Errorf("max_new_tokens 0: %s", got)
	}
}

func TestGenerateStream(t *testing.T) {
	f := serve(t, Config{}, saying("hé!", infer.Cached{}), nil)
	w := f.do("POST", "/generate", `{"text":"abcd","sampling_params":{"temperature":0},"stream":true,"rid":"r"}`)
	if got := w.Header().Get("Content-Type"); w.Code != 200 || !strings.HasPrefix(got, "text/event-stream") {
		t.Errorf("status %d, content type %q", w.Code, got)
	}
	got := events(t, w.Body.String())
	meta := func(finish, n string) string {
		return `"meta_info":{"id":"r","finish_reason":` + finish + `,"prompt_tokens":4,"completion_tokens":` + n + `,"reasoning_tokens":0,"cached_tokens":0,"cached_tokens_details":{"device":0,"host":0},"computed_tokens":4,"weight_version":"default","num_retractions":0`
	}
	want := []string{ // the text is cumulative and waits for whole characters; every token has its frame
		`{"text":"h","output_ids":[104],` + meta("null", "1") + "}}",
		`{"text":"h","output_ids":[104,195],` + meta("null", "2") + "}}",
		`{"text":"hé","output_ids":[104,195,169],` + meta("null", "3") + "}}",
		`{"text":"hé!","output_ids":[104,195,169,33],` + meta("null", "4") + "}}",
		`{"text":"hé!","output_ids":[104,195,169,33,256],` + meta(`{"type":"stop","matched":256}`, "5") + `,"e2e_latency":0,"queue_time":0,"load_time":0,"time_to_first_token":0,"decode_throughput":0,"request_received_ts":0,"request_finished_ts":0}}`,
	}
	if len(got) != len(want) {
		t.Fatalf("%d events, want %d: %q", len(got), len(want), got)
	}
	for i := range want {
		check(t, blank(got[i]), want[i])
	}
}

func TestGenerateStreamInterval(t *testing.T) {
	f := serve(t, Config{}, saying("abcdefgh", infer.Cached{}), nil)
	w := f.do("POST", "/generate", `{"text":"x","sampling_params":{"temperature":0,"max_new_tokens":8,"stream_interval":3},"stream":true}`)
	var texts []string
	for _, e := range events(t, w.Body.String()) {
		var v struct{ Text string }
		if err := json.Unmarshal([]byte(e), &v); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, v.Text)
	}
	if got := strings.Join(texts, " "); got != "a abcd abcdefg abcdefgh" {
		t.Errorf("frames %s", got)
	}
}

func TestGenerateStreamBatch(t *testing.T) {
	f := serve(t, Config{}, echoing(), nil)
	w := f.do("POST", "/generate", `{"text":["ab","cd"],"sampling_params":{"n":2,"max_new_tokens":4},"stream":true}`)
	last := map[int]string{}
	for _, e := range events(t, w.Body.String()) {
		var v struct {
			Text  string
			Index *int
		}
		if err := json.Unmarshal([]byte(e), &v); err != nil || v.Index == nil {
			t.Fatalf("%s: %v", e, err)
		}
		if !strings.HasPrefix(v.Text, last[*v.Index]) {
			t.Errorf("sequence %d: %q after %q", *v.Index, v.Text, last[*v.Index])
		}
		last[*v.Index] = v.Text
	}
	if len(last) != 4 || last[0] != "abab" || last[1] != "abab" || last[2] != "cdcd" || last[3] != "cdcd" {
		t.Errorf("texts %v", last)
	}
}

func TestCompletions(t *testing.T) {
	f := serve(t, Config{}, saying("hello", infer.Cached{Device: 1}), nil)
	const head = `{"id":"cmpl-ID","object":"text_completion","created":0,"model":"tiny","choices":[`
	const one = `"prompt_tokens_details":{"cached_tokens":1,"device":1,"host":0},"reasoning_tokens":0,"completion_tokens_details":{"reasoning_tokens":0}}}`
	check(t, f.post("/v1/completions", `{"model":"tiny","prompt":"ab","max_tokens":2,"temperature":0,"best_of":1}`, 200),
		head+`{"index":0,"text":"he","logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,`+one)
	check(t, f.post("/v1/completions", `{"prompt":[1,2],"temperature":0,"echo":true,"stop":["lo","zz"]}`, 200),
		head+`{"index":0,"text":"\u0001\u0002hel","logprobs":null,"finish_reason":"stop","matched_stop":"lo"}],"usage":{"prompt_tokens":2,"total_tokens":7,"completion_tokens":5,`+one)
	// Two prompts of two choices: the prompts count once each.
	got := f.post("/v1/completions", `{"prompt":["ab","c"],"n":2,"max_tokens":1}`, 200)
	if !strings.Contains(got, `"usage":{"prompt_tokens":3,"total_tokens":7,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2,`) || strings.Count(got, `"text":"h"`) != 4 || !strings.Contains(got, `{"index":3,`) {
		t.Errorf("batch: %s", got)
	}
	if got := f.post("/v1/completions", `{"prompt":[[1,2],[3]],"max_tokens":1}`, 200); strings.Count(got, `"text":"h"`) != 2 {
		t.Errorf("lists of ids: %s", got)
	}
	if got := f.post("/v1/completions", `{"prompt":"ab"}`, 200); !strings.Contains(got, `"text":"hello"`) || !strings.Contains(got, `"finish_reason":"stop","matched_stop":256`) {
		t.Errorf("end token: %s", got)
	}
}

func TestCompletionsStream(t *testing.T) {
	f := serve(t, Config{}, saying("hé", infer.Cached{Host: 2}), nil)
	const head = `{"id":"cmpl-ID","object":"text_completion","created":0,"model":"tiny","choices":[`
	usage := func(completion, total string) string {
		return `"usage":{"prompt_tokens":2,"total_tokens":` + total + `,"completion_tokens":` + completion + `,"prompt_tokens_details":{"cached_tokens":2,"device":0,"host":2},"reasoning_tokens":0,"completion_tokens_details":{"reasoning_tokens":0}}`
	}
	chunk := func(text, finish, matched string) string {
		return head + `{"index":0,"text":"` + text + `","logprobs":null,"finish_reason":` + finish + `,"matched_stop":` + matched + `}]`
	}
	for body, want := range map[string][]string{
		`{"prompt":"ab","stream":true,"echo":true}`: {chunk("abh", "null", "null") + "}", chunk("é", "null", "null") + "}", chunk("", `"stop"`, "256") + "}"},
		`{"prompt":"ab","stream":true,"max_tokens":1,"stream_options":{"include_usage":true}}`: {
			chunk("h", `"length"`, "null") + "}", head + "]," + usage("1", "3") + "}",
		},
		`{"prompt":"ab","stream":true,"max_tokens":3,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`: {
			chunk("h", "null", "null") + "," + usage("1", "3") + "}", chunk("é", `"length"`, "null") + "," + usage("3", "5") + "}", head + "]," + usage("3", "5") + "}",
		},
	} {
		got := events(t, f.do("POST", "/v1/completions", body).Body.String())
		if len(got) != len(want) {
			t.Fatalf("%s: %d events, want %d: %q", body, len(got), len(want), got)
		}
		for i := range want {
			check(t, blank(got[i]), want[i])
		}
	}
}

func TestChat(t *testing.T) {
	f := serve(t, Config{}, saying("hi", infer.Cached{}), nil)
	check(t, f.post("/v1/chat/completions", `{"model":"default","messages":[{"role":"user","content":"yo"}],"temperature":0}`, 200),
		`{"id":"chatcmpl-ID","object":"chat.completion","created":0,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"hi","reasoning_content":null},"logprobs":null,"finish_reason":"stop","matched_stop":256}],"usage":{"prompt_tokens":8,"total_tokens":11,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0,"device":0,"host":0},"reasoning_tokens":0,"completion_tokens_details":{"reasoning_tokens":0}}}`)
	const head = `{"id":"chatcmpl-ID","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[{"index":0,"delta":`
	const tail = `,"logprobs":null,"finish_reason":null,"matched_stop":null}]}`
	got := events(t, f.do("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"yo"}],"stream":true,"max_completion_tokens":2}`).Body.String())
	want := []string{
		head + `{"role":"assistant","content":""}` + tail, head + `{"content":"h"}` + tail, head + `{"content":"i"}` + tail,
		head + `{},"logprobs":null,"finish_reason":"length","matched_stop":null}]}`,
	}
	if len(got) != len(want) {
		t.Fatalf("events %q", got)
	}
	for i := range want {
		check(t, blank(got[i]), want[i])
	}
}

func TestChatTemplate(t *testing.T) {
	f := serve(t, Config{}, echoing(), nil)
	for body, want := range map[string]string{
		`{"messages":[{"role":"developer","content":"be"},{"role":"user","content":[{"type":"text","text":"yo"}]}],"max_tokens":16}`: "system:be;user:yo;"[:16],
		`{"messages":[{"role":"user","content":""}],"max_tokens":13,"chat_template_kwargs":{"enable_thinking":false}}`:               "user:;(quick)",
		`{"messages":[{"role":"user","content":""}],"max_tokens":7,"chat_template_kwargs":{"enable_thinking":true,"x":1}}`:           "user:;u",
	} {
		if got := f.post("/v1/chat/completions", body, 200); !strings.Contains(got, `"content":"`+want+`"`) {
			t.Errorf("%s: %s", body, got)
		}
	}
	// Without max_tokens the answer may fill the context.
	got := f.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"yo"}]}`, 200)
	if !strings.Contains(got, `"total_tokens":200,`) {
		t.Errorf("default length: %s", got)
	}
}

func TestReasoning(t *testing.T) {
	const said = "<think>\nhm, é\n\n</think>\n\nyes <think>"
	f := serve(t, Config{ReasoningParser: "qwen3"}, saying(said, infer.Cached{}), nil)
	ask := func(more string) string {
		return `{"messages":[{"role":"user","content":"yo"}],"temperature":0` + more + `}`
	}
	got := f.post("/v1/chat/completions", ask(""), 200)
	if !strings.Contains(got, `"content":"yes <think>","reasoning_content":"hm, é"}`) || strings.Contains(got, `"reasoning_tokens":0`) {
		t.Errorf("whole: %s", got)
	}
	if got := f.post("/v1/chat/completions", ask(`,"separate_reasoning":false`), 200); !strings.Contains(got, `"content":"<think>\nhm, é\n\n</think>\n\nyes <think>","reasoning_content":null`) {
		t.Errorf("not asked for: %s", got)
	}
	var content, thought strings.Builder
	for _, e := range events(t, f.do("POST", "/v1/chat/completions", ask(`,"stream":true`)).Body.String()) {
		var v struct {
			Choices []struct {
				Delta struct {
					Content   string
					Reasoning string `json:"reasoning_content"`
				}
			}
		}
		if err := json.Unmarshal([]byte(e), &v); err != nil {
			t.Fatal(err)
		}
		content.WriteString(v.Choices[0].Delta.Content)
		thought.WriteString(v.Choices[0].Delta.Reasoning)
	}
	check(t, thought.String()+"|"+content.String(), "hm, é|yes <think>")
}

func TestStopStringsAndTokens(t *testing.T) {
	f := serve(t, Config{}, saying("one two three", infer.Cached{}), nil)
	for sampling, want := range map[string]string{
		`"stop":"two"`:                               `{"text":"one ",`,
		`"stop":["tx","o t"]`:                        `{"text":"one tw",`,
		`"stop":"two","no_stop_trim":true`:           `{"text":"one two",`,
		`"stop":["three!"]`:                          `{"text":"one two three",`,
		`"stop":["",null]`:                           `{"text":"one two three",`,
		`"stop_token_ids":[119]`:                     `{"text":"one t",`,
		`"stop_token_ids":[119],"no_stop_trim":true`: `{"text":"one tw",`,
		`"stop":"n","min_new_tokens":3`:              `{"text":"one two three",`,
		`"stop":"o","min_new_tokens":3`:              `{"text":"one tw",`,
		`"ignore_eos":true,"max_new_tokens":16`:      `{"text":"one two threeon",`,
		`"ignore_eos":true,"max_new_tokens":16,"skip_special_tokens":false`: `{"text":"one two three<|end|>on",`,
	} {
		if got := f.post("/generate", `{"text":"q","sampling_params":{"temperature":0,`+sampling+`}}`, 200); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", sampling, got)
		}
	}
	got := f.post("/generate", `{"text":"q","sampling_params":{"temperature":0,"stop":"two"}}`, 200)
	if !strings.Contains(got, `"finish_reason":{"type":"stop","matched":"two"}`) || !strings.Contains(got, `"completion_tokens":7,`) {
		t.Errorf("a stop string counts the tokens it took: %s", got)
	}
	if got := f.post("/v1/completions", `{"prompt":"q","stop":"two","include_stop_str_in_output":true}`, 200); !strings.Contains(got, `"text":"one two"`) {
		t.Errorf("the other name of no_stop_trim: %s", got)
	}
}

func TestWithoutTokenizer(t *testing.T) {
	f := serve(t, Config{}, echoing(), func(b *Backend) { b.Tokenizer, b.Model.TokenizerNote = nil, "run make data" })
	if got := f.post("/generate", `{"input_ids":[7,8],"sampling_params":{"max_new_tokens":3}}`, 200); !strings.HasPrefix(got, `{"text":"7 8 7","output_ids":[7,8,7],`) {
		t.Errorf("generate: %s", got)
	}
	if got := f.post("/v1/completions", `{"prompt":[7,8],"max_tokens":1,"echo":true}`, 200); !strings.Contains(got, `"text":"7 8 7"`) {
		t.Errorf("completions: %s", got)
	}
	for path, body := range map[string]string{
		"/generate":            `{"text":"a"}`,
		"/v1/completions":      `{"prompt":"a"}`,
		"/v1/chat/completions": `{"messages":[{"role":"user","content":"a"}]}`,
		"/tokenize":            `{"prompt":"a"}`,
		"/detokenize":          `{"tokens":[1]}`,
	} {
		if got := f.post(path, body, 400); !strings.Contains(got, "no tokenizer, so it takes token ids only (run make data)") {
			t.Errorf("%s: %s", path, got)
		}
	}
	if got := f.post("/generate", `{"input_ids":[1],"sampling_params":{"stop":"a"}}`, 400); !strings.Contains(got, "stop strings need a tokenizer") {
		t.Errorf("stop: %s", got)
	}
	if got := f.do("GET", "/model_info", "").Body.String(); !strings.Contains(got, `"has_tokenizer":false`) || !strings.Contains(got, "run make data") {
		t.Errorf("model_info: %s", got)
	}
}
