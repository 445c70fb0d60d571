package report

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"larder/internal/runlog"
)

// benchRun is a run of n requests of which every seventh failed, with a reading a second.
func benchRun(n int) *runlog.Run {
	r := &runlog.Run{Tool: "larder test", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Backend: "vllm", Model: "a <model>", Dataset: "random-ids", Rate: "8.0", MaxConcurrency: 4, Seed: 3}
	noise := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		due := float64(i) * 125
		sent, first, done := due+noise.Float64(), due+20+50*noise.Float64(), due+400+300*noise.Float64()
		q := runlog.Request{Index: i, PromptLen: 100, Asked: 8, Output: 8, DueMS: due, SentMS: &sent, FirstMS: &first, DoneMS: &done}
		for range 7 {
			q.Gaps = append(q.Gaps, (done-first)/7)
		}
		if i%7 == 3 {
			q.Class, q.Error, q.FirstMS, q.Gaps = "http", "503 <busy>", nil, nil
		}
		r.DurationS = max(r.DurationS, done/1000)
		r.Requests = append(r.Requests, q)
	}
	for k := range int(r.DurationS) {
		running, waiting := float64(k%5), 0.0
		r.Server = append(r.Server, runlog.Reading{AtMS: 1000 * float64(k+1), Running: &running, Waiting: &waiting})
	}
	return r
}

func benchHTML(t *testing.T, r *runlog.Run) string {
	t.Helper()
	var b bytes.Buffer
	if err := Bench(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestBenchPage(t *testing.T) {
	for _, n := range []int{1, 5, 60, 4000} {
		page := benchHTML(t, benchRun(n))
		chartsStayInside(t, fmt.Sprintf("%d requests", n), page)
		if strings.Count(page, "<svg ") != 7 {
			t.Errorf("%d requests: %d charts, want 7", n, strings.Count(page, "<svg "))
		}
		for _, bad := range []string{"<script", "<link", "src=", "NaN", "+Inf", "<model>", "<busy>"} {
			if strings.Contains(page, bad) {
				t.Errorf("%d requests: the page has %q", n, bad)
			}
		}
		if len(page) > 600_000 {
			t.Errorf("%d requests make a page of %d bytes", n, len(page))
		}
	}
	page := benchHTML(t, benchRun(60))
	for _, want := range []string{"51 of 60 succeeded", "Failures", "request 3: 503 &lt;busy&gt;", "8.0 requests a second asked for; at most 4 requests in flight", "running", `class="verdict bad"`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// A run in which nothing succeeded, was sent or exists still makes a page that says so.
func TestBenchPageOfNothing(t *testing.T) {
	r := benchRun(14)
	for i := range r.Requests {
		r.Requests[i] = runlog.Request{Index: i, Class: "canceled", Error: "the run ended before it was sent", Reason: "it was never sent"}
	}
	r.Interrupted, r.Server, r.DurationS = true, nil, 0
	page := benchHTML(t, r)
	chartsStayInside(t, "nothing", page)
	if !strings.Contains(page, "None of 14 requests succeeded") || strings.Contains(page, "NaN") {
		t.Error(page)
	}
	if page := benchHTML(t, &runlog.Run{}); !strings.Contains(page, "None of 0 requests") {
		t.Error("a run without requests")
	}
}
