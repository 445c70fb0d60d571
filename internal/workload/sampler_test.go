package workload

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// words is a tokenizer of one token per letter a to z, with a BOS that Encode adds.
type words struct{}

func (words) Encode(text string) []int32 {
	ids := []int32{26}
	for _, r := range text {
		if r >= 'a' && r <= 'z' {
			ids = append(ids, r-'a')
		}
	}
	return ids
}

func (words) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteByte("abcdefghijklmnopqrstuvwxyz<"[id])
	}
	return b.String()
}

func (words) VocabSize() int          { return 26 }
func (words) IDs() []int32            { return upTo(27) }
func (words) SpecialTokensAdded() int { return 1 }

func TestRandomIDs(t *testing.T) {
	s := must(NewSampler(42))(t)
	set := must(s.RandomIDs(RandomSpec{Requests: 5, InputLen: 100, OutputLen: 50, RangeRatio: 0.5, SendIDs: true, VocabSize: 1000}, nil))(t)
	for i, want := range []int{88, 78, 64, 92, 57} {
		it := set.Items[i]
		if it.PromptLen != want || len(it.IDs) != want || it.Text != "" {
			t.Errorf("item %d: %d ids, reported %d, want %d", i, len(it.IDs), it.PromptLen, want)
		}
		for j := 1; j < len(it.IDs); j++ {
			if it.IDs[j] != (it.IDs[j-1]+1)%1000 {
				t.Fatalf("item %d is not a run of ids at %d", i, j)
			}
		}
	}
	if want := []string{"#Input tokens: 379", "#Output tokens: 216"}; !slices.Equal(set.Notes, want) {
		t.Errorf("notes %q, want %q", set.Notes, want)
	}
	s = must(NewSampler(42))(t)
	set = must(s.RandomIDs(RandomSpec{Requests: 5, InputLen: 100, OutputLen: 50, RangeRatio: 0.5}, words{}))(t)
	if it := set.Items[0]; it.PromptLen != 87 || len(it.Text) != 87 || it.IDs != nil {
		t.Errorf("text mode takes the special token off: %d letters, reported %d", len(it.Text), it.PromptLen)
	}
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const shareGPT = `[
 {"conversations":[{"value":"hello there"},{"value":"general kenobi"}]},
 {"conversations":[{"value":"alone"}]},
 {"conversation":[{"value":"abc"},{"value":"defg"},{"value":"x"}]}]`

func TestRandomRepeatsShareGPT(t *testing.T) {
	s := must(NewSampler(1))(t)
	set := must(s.Random(RandomSpec{Requests: 9, InputLen: 30, OutputLen: 4, RangeRatio: 1, Path: writeFile(t, shareGPT)}, words{}))(t)
	if len(set.Items) != 2 {
		t.Fatalf("%d items of a file with two usable conversations", len(set.Items))
	}
	for _, it := range set.Items {
		if it.PromptLen != 29 || len(it.Text) != 29 || it.OutputLen != 4 {
			t.Errorf("%q: length %d, output %d", it.Text, it.PromptLen, it.OutputLen)
		}
		if !strings.HasPrefix(it.Text, "<abc<abc") && !strings.HasPrefix(it.Text, "<hellothere<") {
			t.Errorf("%q is not a repeated first turn", it.Text)
		}
	}
}

func TestShareGPT(t *testing.T) {
	path := writeFile(t, shareGPT)
	s := must(NewSampler(1))(t)
	set := must(s.ShareGPT(ShareGPTSpec{Requests: 5, Path: path, ContextLen: 12}, words{}))(t)
	if len(set.Items) != 1 || set.Items[0].Text != "abc" || set.Items[0].PromptLen != 4 || set.Items[0].OutputLen != 5 {
		t.Errorf("items %+v", set.Items)
	}
	for text, want := range map[string]string{
		`{"a":1}`: "not a JSON list", `[]`: "none of its 0", `[{"conversations":[{"value":"a"},{}]}]`: `without "value"`,
	} {
		if _, err := s.ShareGPT(ShareGPTSpec{Requests: 1, Path: writeFile(t, text)}, words{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}

func TestSharedPrefix(t *testing.T) {
	spec := SharedPrefixSpec{Groups: 3, PromptsPerGroup: 4, SystemLen: 40, QuestionLen: 10, OutputLen: 7, RangeRatio: 1, SendIDs: true, VocabSize: 500, Ordered: true, RoutingKey: "run"}
	s := must(NewSampler(42))(t)
	set := must(s.SharedPrefix(spec, nil))(t)
	for i, it := range set.Items {
		first := set.Items[i/4*4]
		if len(it.IDs) != 50 || it.PromptLen != 50 || it.OutputLen != 7 || !slices.Equal(it.IDs[:40], first.IDs[:40]) {
			t.Errorf("item %d: %d ids, does not start as its group does", i, len(it.IDs))
		}
		if want := "run_" + string(rune('0'+i/4)); it.RoutingKey != want {
			t.Errorf("item %d: routing key %q, want %q", i, it.RoutingKey, want)
		}
	}
	spec.Ordered, spec.SendIDs = false, false
	s = must(NewSampler(42))(t)
	texts := must(s.SharedPrefix(spec, words{}))(t)
	sorted := true
	for i, it := range texts.Items {
		letters := strings.Count(it.Text, "") - 1 - strings.Count(it.Text, "<") - 2
		if it.PromptLen != letters+1 || strings.Index(it.Text, "\n\n") != 40 {
			t.Errorf("item %d: reported %d, encodes to %d", i, it.PromptLen, letters+1)
		}
		sorted = sorted && it.RoutingKey == set.Items[i].RoutingKey
	}
	if sorted {
		t.Error("items are not shuffled")
	}
}

// In zipf mode the pool of texts is that of uniform mode; only which group a request belongs to changes.
func TestSharedPrefixZipf(t *testing.T) {
	spec := SharedPrefixSpec{Groups: 8, PromptsPerGroup: 4, SystemLen: 5, QuestionLen: 5, OutputLen: 1, RangeRatio: 1, SendIDs: true, VocabSize: 500, Ordered: true}
	even := must(must(NewSampler(42))(t).SharedPrefix(spec, nil))(t)
	spec.ZipfAlpha = 1.2
	skewed := must(must(NewSampler(42))(t).SharedPrefix(spec, nil))(t)
	for i, g := range []int{3, 1, 4, 2, 0, 7, 3, 3} {
		if !slices.Equal(skewed.Items[i].IDs[:5], even.Items[g*4].IDs[:5]) || !slices.Equal(skewed.Items[i].IDs[5:], even.Items[i].IDs[5:]) {
			t.Errorf("request %d should have the prefix of group %d and the question of slot %d", i, g, i)
		}
	}
}

func TestArrivals(t *testing.T) {
	s := must(NewSampler(7))(t)
	due := must(s.Arrivals(5000, 2000))(t)
	if due[0] != 0 || !slices.IsSorted(due) {
		t.Error("arrivals must start at 0 and not go back")
	}
	if mean := due[4999].Seconds() / 4999; math.Abs(mean*2000-1) > 0.05 {
		t.Errorf("mean interval %v s at 2000/s", mean)
	}
	due = must(s.Arrivals(3, math.Inf(1)))(t)
	if !slices.Equal(due, []time.Duration{0, 0, 0}) {
		t.Errorf("infinite rate: %v", due)
	}
	due = must(s.Arrivals(4, 1e-300))(t)
	if !slices.IsSorted(due) || due[3] < 0 {
		t.Errorf("tiny rate overflows: %v", due)
	}
	for _, rate := range []float64{0, -1, math.NaN()} {
		if _, err := s.Arrivals(3, rate); err == nil {
			t.Errorf("rate %v was taken", rate)
		}
	}
}

func TestRefusals(t *testing.T) {
	s := must(NewSampler(1))(t)
	ok := SharedPrefixSpec{Groups: 1, PromptsPerGroup: 1, SystemLen: 1, QuestionLen: 1, RangeRatio: 1}
	ratio, zipfAlpha, empty := ok, ok, ok
	ratio.RangeRatio, zipfAlpha.ZipfAlpha, empty.SystemLen, empty.QuestionLen = math.NaN(), math.Inf(1), 0, 0
	for name, f := range map[string]func() error{
		"no tokenizer":   func() error { _, err := s.SharedPrefix(ok, nil); return err },
		"NaN ratio":      func() error { _, err := s.SharedPrefix(ratio, words{}); return err },
		"infinite alpha": func() error { _, err := s.SharedPrefix(zipfAlpha, words{}); return err },
		"empty prompts":  func() error { _, err := s.SharedPrefix(empty, words{}); return err },
		"no file":        func() error { _, err := s.Random(RandomSpec{Requests: 1, InputLen: 1}, words{}); return err },
		"no vocabulary": func() error {
			_, err := s.RandomIDs(RandomSpec{Requests: 1, InputLen: 1, SendIDs: true}, nil)
			return err
		},
		"no requests":       func() error { _, err := s.RandomIDs(RandomSpec{InputLen: 1}, words{}); return err },
		"33-bit seed":       func() error { _, err := NewSampler(1 << 32); return err },
		"short fixed reply": func() error { _, err := s.ShareGPT(ShareGPTSpec{Requests: 1, OutputLen: 3}, words{}); return err },
	} {
		if err := f(); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// Adapters and arrivals alternate their draws; the vectors are numpy's and Python's.
func TestPlanLikeTheReference(t *testing.T) {
	due, names, err := must(NewSampler(9))(t).Plan(10, Arrival{Rate: 5}, Adapters{Names: []string{"a", "b", "c"}, Distribution: "skewed", Alpha: 1.5})
	if got := strings.Join(names, ""); err != nil || got != "abaaaacbcb" {
		t.Errorf("skewed adapters %q, %v", got, err)
	}
	if got := due[9].Seconds(); math.Abs(got-1.178758432377578) > 1e-8 {
		t.Errorf("the last arrival is at %v", got)
	}
	_, names, err = must(NewSampler(9))(t).Plan(12, Arrival{Rate: math.Inf(1)}, Adapters{Names: []string{"a", "b", "c"}, Distribution: "uniform"})
	if got := strings.Join(names, ""); err != nil || got != "bcbbaacabcbc" {
		t.Errorf("uniform adapters %q, %v", got, err)
	}
	_, names, err = must(NewSampler(9))(t).Plan(4, Arrival{Rate: math.Inf(1)}, Adapters{Names: []string{"a", "b"}, Distribution: "distinct"})
	if got := strings.Join(names, ""); err != nil || got != "abab" {
		t.Errorf("distinct adapters %q, %v", got, err)
	}
	for _, a := range []Adapters{{[]string{"a"}, "distinct", 0}, {[]string{"a", "b"}, "skewed", 1}, {[]string{"a"}, "odd", 0}} {
		if _, _, err := must(NewSampler(9))(t).Plan(1, Arrival{Rate: 1}, a); err == nil {
			t.Errorf("%+v was taken", a)
		}
	}
}

func TestArrivalShapes(t *testing.T) {
	plan := func(n int, a Arrival) []time.Duration {
		t.Helper()
		due, _, err := must(NewSampler(11))(t).Plan(n, a, Adapters{})
		if err != nil {
			t.Fatal(err)
		}
		return due
	}
	if due := plan(5, Arrival{Rate: 4, Constant: true}); due[4] != time.Second {
		t.Errorf("constant: %v", due)
	}
	if due := plan(3, Arrival{Ramp: "linear", RampFrom: 1, RampTo: 3, Constant: true}); due[2] != 1500*time.Millisecond {
		t.Errorf("linear ramp: %v", due)
	}
	if due := plan(4, Arrival{Ramp: "exponential", RampFrom: 1, RampTo: 8, Constant: true}); due[3] != 1750*time.Millisecond {
		t.Errorf("exponential ramp: %v", due)
	}
	for _, k := range []float64{0.25, 0.5, 4} {
		due := plan(4000, Arrival{Rate: 100, Burstiness: k})
		var sum, squares float64
		for i := 1; i < len(due); i++ {
			d := (due[i] - due[i-1]).Seconds() * 100
			sum, squares = sum+d, squares+d*d
		}
		mean := sum / 3999
		if cv := (squares/3999 - mean*mean) * k; math.Abs(mean-1) > 0.12 || math.Abs(cv-1) > 0.25 {
			t.Errorf("burstiness %v: mean interval %v, squared variation times burstiness %v; both should be near 1", k, mean, cv)
		}
	}
	for _, a := range []Arrival{{Rate: 1, Burstiness: -1}, {Rate: 1, Burstiness: math.NaN()}, {Rate: 1, Burstiness: 2, Constant: true}, {Ramp: "odd", RampFrom: 1, RampTo: 1}, {Ramp: "linear", RampFrom: 1}} {
		if a.Validate() == nil {
			t.Errorf("%+v was taken", a)
		}
	}
}
