package runlog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func ptr[T any](v T) *T { return &v }

func sample() *Run {
	return &Run{Schema: Schema, Tool: "larder test", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), DurationS: 1.5, Backend: "sglang", Dataset: "random-ids", Rate: "inf",
		Count: 3, Warnings: []string{}, Server: []Reading{{AtMS: 1000, Running: ptr(2.0)}}, Requests: []Request{
			{Index: 0, Prompt: "ab", PromptLen: 10, Asked: 4, ServerCount: ptr(10), Output: 4, CountedBy: "usage", SentMS: ptr(1.0), FirstByteMS: ptr(4.0), FirstMS: ptr(5.0), DoneMS: ptr(11.0),
				Gaps: []float64{2, 4}, GapTokens: []int{2, 1}, Cached: &Cached{Total: 8, Device: ptr(8), Host: ptr(0)}},
			{Index: 1, Prompt: "cd", PromptLen: 10, Asked: 1, Output: 1, CountedBy: "requested", DueMS: 2, SentMS: ptr(3.0), FirstMS: ptr(7.5), DoneMS: ptr(8.0), Gaps: []float64{}},
			{Index: 2, Prompt: "ef", PromptLen: 10, Asked: 1, Gaps: []float64{}, Class: "http", Error: "503, \"busy\"", Status: 503, Reason: "it failed before any output", SentMS: ptr(4.0), DoneMS: ptr(6.0)},
		}}
}

func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	for range 2 {
		if err := Write(&b, sample()); err != nil {
			t.Fatal(err)
		}
	}
	runs, err := Read(&b)
	if err != nil || len(runs) != 2 || !reflect.DeepEqual(runs[1], sample()) {
		t.Fatalf("%v\n%+v", err, runs)
	}
}

func TestDerived(t *testing.T) {
	q := &sample().Requests[0]
	ttft, _ := q.TTFT()
	tpot, _ := q.TPOT()
	e2e, _ := q.E2E()
	if ttft != 4 || tpot != 2 || e2e != 10 {
		t.Errorf("ttft %v tpot %v e2e %v", ttft, tpot, e2e)
	}
	var itl []float64
	q.ITLs(func(ms float64) { itl = append(itl, ms) })
	if !reflect.DeepEqual(itl, []float64{1, 1, 4}) {
		t.Errorf("itl %v", itl)
	}
	tokens, last := 0, 0.0
	q.Arrivals(func(at float64, n int) { tokens, last = tokens+n, at })
	if tokens != 4 || last != 11 {
		t.Errorf("%d tokens, the last at %v", tokens, last)
	}
	if _, ok := sample().Requests[1].TPOT(); ok {
		t.Error("one token has a time per output token")
	}
	if _, ok := sample().Requests[2].TTFT(); ok {
		t.Error("a failure has a TTFT")
	}
}

func TestCSV(t *testing.T) {
	var b bytes.Buffer
	if err := CSV(&b, sample()); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(rows) != 4 || rows[1] != "0,ab,10,4,10,4,usage,0.000,1.000,4.000,5.000,11.000,4.000,2.000,10.000,4.000,8,8,0,,,,," {
		t.Errorf("%q", rows)
	}
	if !strings.HasSuffix(rows[3], `,http,503,"503, ""busy"""`) || strings.Contains(b.String(), "NaN") {
		t.Errorf("%q", rows[3])
	}
}

func TestRefuses(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, sample()); err != nil {
		t.Fatal(err)
	}
	good := b.String()
	for name, bad := range map[string]string{
		"empty": "", "another schema": strings.Replace(good, "requests/1", "requests/2", 1), "cut": good[:strings.LastIndex(good, `{"i":2`)], "half a line": good[:len(good)-20],
		"unknown field": strings.Replace(good, `"prompt":`, `"promt":`, 1), "other file": `{"tag":null,"backend":"sglang"}`, "text": "hello\n",
	} {
		if _, err := Read(strings.NewReader(bad)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The format's page names every field.
func TestFormatIsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "format", "requests.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, ty := range []reflect.Type{reflect.TypeFor[Run](), reflect.TypeFor[Request](), reflect.TypeFor[Cached](), reflect.TypeFor[Reading]()} {
		for i := range ty.NumField() {
			name, _, _ := strings.Cut(ty.Field(i).Tag.Get("json"), ",")
			if name != "-" && !bytes.Contains(page, []byte("`"+name+"`")) {
				t.Errorf("docs/format/requests.md does not name `%s` of %s", name, ty.Name())
			}
		}
	}
	for _, name := range csvHead {
		if !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("docs/format/requests.md does not name the column `%s`", name)
		}
	}
}
