package workload

import (
	"slices"
	"strings"
	"testing"
	"time"
)

const mooncake = `{"timestamp": 5000, "input_length": 1100, "output_length": 7, "hash_ids": [46, 47, 48]}
{"timestamp": 3000, "input_length": 1024, "output_length": 0, "hash_ids": [46, 47]}

{"timestamp": 6500, "input_length": 600, "output_length": 3, "hash_ids": [46]}
`

func TestMooncakeTrace(t *testing.T) {
	spec := TraceSpec{Kind: "mooncake", Path: writeFile(t, mooncake), Slowdown: 2, VocabSize: 1000, Seed: 1, Salt: 2}
	set := must(Trace(spec))(t)
	a, b, c := set.Items[0], set.Items[1], set.Items[2]
	if a.Due != 0 || b.Due != 4*time.Second || c.Due != 7*time.Second {
		t.Errorf("due at %v, %v, %v", a.Due, b.Due, c.Due)
	}
	if len(a.IDs) != 1024 || len(b.IDs) != 1100 || len(c.IDs) != 600 || a.OutputLen != 1 || b.OutputLen != 7 || b.PromptLen != 1100 {
		t.Errorf("lengths %d, %d, %d", len(a.IDs), len(b.IDs), len(c.IDs))
	}
	if n := shared(a.IDs, b.IDs); n != 1024 {
		t.Errorf("two blocks in common, but %d tokens", n)
	}
	if n := shared(a.IDs, c.IDs); n < 512 || n > 513 {
		t.Errorf("one block in common, but %d tokens", n)
	}
	if slices.Equal(a.IDs[:512], a.IDs[512:1024]) {
		t.Error("two block ids gave one block")
	}
	spec.Salt, spec.Requests = 3, 1
	if other := must(Trace(spec))(t); len(other.Items) != 1 || shared(other.Items[0].IDs, a.IDs) > 3 {
		t.Error("another salt must give other tokens")
	}
}

func TestTableTraces(t *testing.T) {
	azure := "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.1805900,396,109\n"
	set := must(Trace(TraceSpec{Kind: "azure", Path: writeFile(t, azure), VocabSize: 50}))(t)
	if got := set.Items[1].Due; got.Round(time.Millisecond) != 1500*time.Millisecond || len(set.Items[1].IDs) != 396 || set.Items[1].OutputLen != 109 {
		t.Errorf("azure: due %v, %d ids", got, len(set.Items[1].IDs))
	}
	burst := "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,,1,GPT-4,472,18,490,API log\n45,,2,ChatGPT,1087,230,1317,API log\n"
	set = must(Trace(TraceSpec{Kind: "burstgpt", Path: writeFile(t, burst), VocabSize: 50}))(t)
	if set.Items[1].Due != 40*time.Second || len(set.Items[0].IDs) != 472 || shared(set.Items[0].IDs, set.Items[1].IDs) > 0 {
		t.Errorf("burstgpt: due %v, %d ids", set.Items[1].Due, len(set.Items[0].IDs))
	}
}

func TestBadTraces(t *testing.T) {
	for text, want := range map[string]string{
		"":                 "no requests",
		"{":                "line 1",
		`{"timestamp": 1}`: "line 1: timestamp, input_length",
		mooncake + "[1]\n": "line 5",
		`{"timestamp":1,"input_length":0,"output_length":1}`: "line 1",
	} {
		if _, err := Trace(TraceSpec{Kind: "mooncake", Path: writeFile(t, text), VocabSize: 50}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"a,b\n1,2\n": "no column",
		"TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,2\n": "line 2",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n1,x,2\n":    "line 2",
		"TIMESTAMP,ContextTokens,GeneratedTokens\nnan,1,2\n":  "line 2",
	} {
		if _, err := Trace(TraceSpec{Kind: "azure", Path: writeFile(t, text), VocabSize: 50}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	ok := writeFile(t, mooncake)
	for _, s := range []TraceSpec{{Kind: "mooncake", Path: ok}, {Kind: "odd", Path: ok, VocabSize: 9}, {Kind: "mooncake", VocabSize: 9}, {Kind: "mooncake", Path: ok, VocabSize: 9, Slowdown: -1}} {
		if _, err := Trace(s); err == nil {
			t.Errorf("%+v was taken", s)
		}
	}
}

func TestCustom(t *testing.T) {
	text := `{"conversations":[{"content":"abc"},{"content":"defg"}]}` + "\nnot json\n" + `{"conversation":[{"value":"hello"},{"value":"you"}]}` + "\n"
	s := must(NewSampler(1))(t)
	set := must(s.Custom(ShareGPTSpec{Requests: 5, Path: writeFile(t, text), Suffix: "!"}, words{}))(t)
	if len(set.Items) != 2 || !strings.Contains(strings.Join(set.Notes, "\n"), "1 lines") {
		t.Fatalf("%d items, notes %q", len(set.Items), set.Notes)
	}
	for _, it := range set.Items {
		if it.Text != "abc!Assistant:" && it.Text != "hello!Assistant:" {
			t.Errorf("prompt %q", it.Text)
		}
	}
	if _, err := s.Custom(ShareGPTSpec{Requests: 1, Path: writeFile(t, "x\n")}, words{}); err == nil || !strings.Contains(err.Error(), "1 lines are no JSON") {
		t.Errorf("nothing usable: %v", err)
	}
}
