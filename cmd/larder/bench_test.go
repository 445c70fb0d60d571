package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"larder/internal/loadgen/mockserver"
	"larder/internal/runlog"
)

// bench runs the subcommand against a mock server and returns code, stdout and stderr.
func bench(t *testing.T, s *mockserver.Server, args ...string) (int, string, string) {
	t.Helper()
	if s == nil {
		s = &mockserver.Server{}
	}
	srv := httptest.NewServer(s)
	defer srv.Close()
	var out, log bytes.Buffer
	base := []string{"--base-url", srv.URL, "--dataset-name", "random-ids", "--tokenize-prompt", "--vocab-size", "1000", "--settle", "0", "--output-file", "none"}
	code := benchMain(append(base, args...), &out, &log)
	return code, out.String(), log.String()
}

func TestBenchPrintsTheBlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.jsonl")
	s := &mockserver.Server{Answer: func(r *mockserver.Request) mockserver.Answer {
		return mockserver.Stream(r, mockserver.Options{Prompt: 50, Cached: [3]int{40, 5, 0}})
	}}
	code, out, log := bench(t, s, "--num-prompt", "6", "--random-input", "50", "--random-output", "4", "--random-range", "1", "--output-file", path,
		"--header", "A=1", "B=2", "--goodput", "ttft:1e5", "tpot:1e5", "--tag", "x", "--output-details", "--cache-report", "--logprob-start-len", "-1")
	if code != exitOK {
		t.Fatalf("code %d\n%s", code, log)
	}
	for _, want := range []string{"============ Serving Benchmark Result ============\nBackend: sglang\nTraffic request rate: inf\nMax request concurrency: not set\nSuccessful requests: 6\n",
		"Total input tokens: 300\n", "Total generated tokens: 24\n", "Cache hit rate (of the server's tokens): 90.0%", "  host:                                  30", "6 (100.0%)"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var line map[string]any
	if err := json.Unmarshal(b, &line); err != nil || line["tag"] != "x" || line["completed"] != 6.0 || line["request_rate"] != "inf" {
		t.Errorf("%v: %s", err, b)
	}
	seen := s.Seen()
	if len(seen) != 7 || seen[0].Header.Get("A") != "1" || seen[0].Header.Get("B") != "2" {
		t.Errorf("%d requests, header %v", len(seen), seen[0].Header)
	}
	first, warm := seen[1].Field("input_ids").([]any), seen[0].Field("input_ids").([]any)
	if len(first) != 50 || len(warm) != 50 || warm[0] == first[0] {
		t.Errorf("the warm-up sent %v…, a measured request %v…", warm[0], first[0])
	}
}

// The same flags give the prompts of the reference: the lengths of its check vector.
func TestBenchSendsTheReferencesLengths(t *testing.T) {
	s := &mockserver.Server{}
	code, _, log := bench(t, s, "--self-check", "--num-prompts", "5", "--random-input-len", "100", "--random-output-len", "50", "--random-range-ratio", "0.5", "--warmup-requests", "0", "--max-concurrency", "1")
	if code != exitOK || len(s.Seen()) != 5 || !strings.Contains(log, "self-check: 1 streams") {
		t.Fatalf("code %d, %d requests\n%s", code, len(s.Seen()), log)
	}
	in, out := []int{88, 78, 64, 92, 57}, []float64{45, 31, 50, 43, 47}
	for i, r := range s.Seen() {
		if n := len(r.Field("input_ids").([]any)); n != in[i] || r.Field("sampling_params.max_new_tokens") != out[i] {
			t.Errorf("request %d: %d ids, %v tokens; want %d and %v", i, n, r.Field("sampling_params.max_new_tokens"), in[i], out[i])
		}
	}
}

func TestBenchFailures(t *testing.T) {
	broken := &mockserver.Server{Answer: func(r *mockserver.Request) mockserver.Answer {
		if r.N%2 == 0 {
			return mockserver.Answer{Pieces: []mockserver.Piece{{Data: "data: {\"error\":{\"message\":\"too long\"}}\n\ndata: [DONE]\n\n"}}}
		}
		return mockserver.Stream(r, mockserver.Options{})
	}}
	code, out, log := bench(t, broken, "--num-prompts", "4", "--random-output-len", "3", "--warmup-requests", "0", "--max-concurrency", "1")
	if code != exitFailed || !strings.Contains(out, "Successful requests: 2\n") || !strings.Contains(log, "2 of 4 requests failed; the first: stream: ") || !strings.Contains(log, "too long") {
		t.Errorf("code %d\n%s\n%s", code, out, log)
	}
	code, out, log = bench(t, &mockserver.Server{Answer: func(*mockserver.Request) mockserver.Answer { return mockserver.Answer{Status: 404} }})
	if code != exitFailed || out != "" || !strings.Contains(log, "the warm-up failed (http): 404") {
		t.Errorf("code %d\n%s\n%s", code, out, log)
	}
	var so, se bytes.Buffer
	code = benchMain([]string{"--base-url", "http://127.0.0.1:1", "--ready-check-timeout-sec", "0.01"}, &so, &se)
	if code != exitFailed || strings.Count(se.String(), "\n") != 1 || !strings.Contains(se.String(), "not ready") {
		t.Errorf("nobody there: code %d\n%s", code, se.String())
	}
}

// What can not be done is refused in one line with code 2, before anything is sent.
func TestBenchRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"unknown flag":    {[]string{"--nonsense", "1"}, "unknown flag --nonsense"},
		"ambiguous":       {[]string{"--random", "1"}, "ambiguous flag --random"},
		"no value":        {[]string{"--num-prompts"}, "needs a value"},
		"value of switch": {[]string{"--flush-cache=1"}, "takes no value"},
		"no number":       {[]string{"--num-prompts", "many"}, "num-prompts"},
		"backend":         {[]string{"--backend", "trt"}, "--backend trt is not supported"},
		"data set":        {[]string{"--dataset-name", "mmmu"}, "--dataset-name mmmu is not supported"},
		"no trace file":   {[]string{"--dataset-name", "mooncake"}, "--dataset-path"},
		"trace and rate":  {[]string{"--dataset-name", "azure", "--request-rate", "3"}, "own times"},
		"ramp":            {[]string{"--ramp-up-strategy", "linear"}, "--ramp-up-start-rps"},
		"burstiness":      {[]string{"--burstiness", "-1"}, "burstiness"},
		"rate":            {[]string{"--request-rate", "0"}, "--request-rate 0"},
		"NaN":             {[]string{"--request-rate", "nan"}, "--request-rate NaN"},
		"zipf":            {[]string{"--gsp-group-distribution", "zipf"}, "--gsp-zipf-alpha"},
		"image":           {[]string{"--image-count", "2"}, "benchmark for text"},
		"profile":         {[]string{"--profile"}, "profiling is not supported"},
		"trace":           {[]string{"--use-trace-timestamps"}, "timestamps"},
		"ids to chat":     {[]string{"--backend", "vllm-chat"}, "not token ids"},
		"goodput":         {[]string{"--goodput", "itl:3"}, "--goodput"},
		"body":            {[]string{"--extra-request-body", "[1]"}, "--extra-request-body"},
		"header":          {[]string{"--header", "novalue"}, "--header"},
		"text, no file":   {[]string{"--dataset-name", "random"}, "need a tokenizer"},
		"style":           {[]string{"--report-style", "0.1"}, "report-style"},
		"seed":            {[]string{"--seed", "4294967296"}, "seed"},
		"lora":            {[]string{"--lora-name", "a", "--lora-request-distribution", "distinct"}, "more than one"},
		"port":            {[]string{"--port", "70000"}, "--port"},
	} {
		code, out, log := bench(t, nil, c.args...)
		last := strings.TrimSuffix(log, "\n")
		if i := strings.LastIndex(last, "\n"); i >= 0 {
			last = last[i+1:]
		}
		if code != exitUsage || out != "" || !strings.Contains(last, c.want) {
			t.Errorf("%s: code %d, %q; want %q", name, code, log, c.want)
		}
	}
}

// A trace keeps its times and its sharing; prefix_repetition sends every prefix equally often.
func TestBenchExactData(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	text := `{"timestamp":0,"input_length":600,"output_length":2,"hash_ids":[1,2]}` + "\n" + `{"timestamp":30,"input_length":520,"output_length":2,"hash_ids":[1,3]}` + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &mockserver.Server{}
	code, out, log := bench(t, s, "--dataset-name", "mooncake", "--dataset-path", path, "--use-trace", "--warmup-requests", "0", "--mooncake-slow", "0.5")
	if code != exitOK || !strings.Contains(out, "Traffic request rate: trace\n") || !strings.Contains(log, "--salt ") || len(s.Seen()) != 2 {
		t.Fatalf("code %d\n%s\n%s", code, out, log)
	}
	a, b := s.Seen()[0].Field("input_ids").([]any), s.Seen()[1].Field("input_ids").([]any)
	if len(a) != 600 || len(b) != 520 || a[511] != b[511] || a[0] != b[0] {
		t.Errorf("%d and %d ids", len(a), len(b))
	}
	s = &mockserver.Server{}
	code, _, log = bench(t, s, "--dataset-name", "prefix_repetition", "--num-prompts", "6", "--prefix-repetition-num-prefixes", "3", "--prefix-repetition-prefix-len", "9",
		"--prefix-repetition-suffix-len", "4", "--prefix-repetition-output-len", "2", "--warmup-requests", "0", "--max-concurrency", "1", "--salt", "5")
	seen := s.Seen()
	if code != exitOK || len(seen) != 6 {
		t.Fatalf("code %d, %d requests\n%s", code, len(seen), log)
	}
	first := func(i int) any { return seen[i].Field("input_ids").([]any)[0] }
	if first(0) != first(3) || first(1) != first(4) || first(0) == first(1) {
		t.Error("the prefixes do not repeat")
	}
}

// Priming sends the prefixes before anything is measured; --cold takes the server's word for the hits, and only that.
func TestBenchPrimeAndCold(t *testing.T) {
	s := &mockserver.Server{}
	code, _, log := bench(t, s, "--dataset-name", "prefix_repetition", "--num-prompts", "4", "--prefix-repetition-num-prefixes", "2", "--prefix-repetition-output-len", "2",
		"--warmup-requests", "0", "--prime")
	seen := s.Seen()
	if code != exitOK || len(seen) != 6 || !strings.Contains(log, "priming: 2 prefixes") {
		t.Fatalf("code %d, %d requests\n%s", code, len(seen), log)
	}
	for i, r := range seen[:2] {
		if n := len(r.Field("input_ids").([]any)); n != 256 || r.Field("sampling_params.max_new_tokens") != 1.0 {
			t.Errorf("primer %d has %d ids", i, n)
		}
	}
	for hits, want := range map[int]int{0: exitOK, 50: exitChecks} {
		warm := &mockserver.Server{Answer: func(r *mockserver.Request) mockserver.Answer {
			return mockserver.Stream(r, mockserver.Options{Prompt: 100, Cached: [3]int{hits, 0, 0}})
		}}
		if code, _, log := bench(t, warm, "--num-prompts", "2", "--random-output-len", "2", "--cold"); code != want {
			t.Errorf("%d%% hits: code %d, want %d\n%s", hits, code, want, log)
		}
	}
	if code, _, log := bench(t, nil, "--num-prompts", "2", "--random-output-len", "2", "--cold"); code != exitChecks || !strings.Contains(log, "can not be proven") {
		t.Errorf("a server that reports no hits: code %d\n%s", code, log)
	}
}

func TestBenchFlagForms(t *testing.T) {
	c, code, err := parseBench([]string{"--dataset-name=random-ids", "--gsp-zipf=1.5", "--gsp-group-d", "zipf", "--request-rate", "8", "--lora-name", "a", "b", "--max-con", "16", "--flush-cache", "--port", "1"}, nil, nil)
	if err != nil || code >= 0 {
		t.Fatal(code, err)
	}
	if c.Dataset != "random-ids" || c.GSPZipf != 1.5 || c.Rate != 8 || strings.Join(c.LoRA, ",") != "a,b" || c.Concurrency != 16 || !c.Flush || c.Seed != 42 {
		t.Errorf("%+v", c)
	}
	var out bytes.Buffer
	if code := benchMain([]string{"--help"}, &out, &out); code != exitOK || !strings.Contains(out.String(), "--random-input-len=1024") || strings.Contains(out.String(), "image-count") {
		t.Errorf("help: code %d\n%s", code, out.String())
	}
	for _, c := range []struct{ backend, port string }{{"vllm", "8000"}, {"vllm-chat", "30000"}, {"sglang", "30000"}, {"lmdeploy", "23333"}} {
		if got := (&benchCmd{Backend: c.backend, Host: "::1"}).url(); got != "http://[::1]:"+c.port {
			t.Errorf("%s: %s", c.backend, got)
		}
	}
}

// The files of single requests hold what was sent and measured; the server's counters are read beside the run.
func TestBenchOutputs(t *testing.T) {
	dir := t.TempDir()
	log, table, page := filepath.Join(dir, "r.jsonl"), filepath.Join(dir, "r.csv"), filepath.Join(dir, "r.html")
	prompt := 0
	s := &mockserver.Server{Answer: func(r *mockserver.Request) mockserver.Answer {
		prompt += 50
		return mockserver.Stream(r, mockserver.Options{Prompt: 50, Cached: [3]int{40, 5, 0}, PerChunk: 2})
	}, Control: func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/metrics" {
			return false
		}
		fmt.Fprintf(w, "sglang:prompt_tokens_total %d\nsglang:cached_tokens_total{cache_source=\"device\"} %d\nsglang:num_running_reqs 1\n", prompt, prompt*4/5)
		return true
	}}
	args := []string{"--num-prompts", "6", "--random-input-len", "50", "--random-output-len", "4", "--random-range-ratio", "1", "--max-concurrency", "1",
		"--output-requests", log, "--output-csv", table, "--output-html", page}
	for range 2 {
		code, out, errs := bench(t, s, args...)
		if code != exitOK || !strings.Contains(out, "Names:                                   sglang") || !strings.Contains(out, "Prompt tokens:                           300") ||
			!strings.Contains(out, "WARNING: the server counted 240 cached tokens during the run, its answers name 270.") {
			t.Fatalf("code %d\n%s%s", code, out, errs)
		}
	}
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	runs, err := runlog.Read(f)
	if err != nil || len(runs) != 2 || len(runs[1].Requests) != 6 {
		t.Fatalf("%v %v", err, runs)
	}
	for i := range runs[0].Requests {
		a, b := &runs[0].Requests[i], &runs[1].Requests[i]
		if a.Prompt != b.Prompt || a.Prompt == runs[0].Requests[(i+1)%6].Prompt || a.Output != 4 || len(a.Gaps) != 1 || a.GapTokens[0] != 2 || *a.Cached.Host != 5 || *a.ServerCount != 50 {
			t.Errorf("%+v\n%+v", a, b)
		}
	}
	for path, want := range map[string]string{table: "i,prompt,", page: "<h2>Timeline of the requests</h2>"} {
		if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if code, _, errs := bench(t, s, "--output-csv", filepath.Join(dir, "no", "x.csv")); code != exitUsage || !strings.Contains(errs, "--output-csv") {
		t.Errorf("code %d %s", code, errs)
	}
	if code, out, _ := bench(t, nil, "--num-prompts", "2", "--random-output-len", "2"); code != exitOK || !strings.Contains(out, "unavailable: GET /metrics: 404 Not Found") {
		t.Errorf("code %d\n%s", code, out)
	}
	if code, out, _ := bench(t, nil, "--num-prompts", "2", "--random-output-len", "2", "--no-metrics"); code != exitOK || strings.Contains(out, "own counters") {
		t.Errorf("code %d\n%s", code, out)
	}
}
