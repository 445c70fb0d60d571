package infer

import (
	"errors"
	"math"
	"strings"
	"testing"

	"larder/internal/sample"
)

func valid() *Request {
	return &Request{ID: "a", Tokens: []int32{1, 2, 3}, MaxNew: 5, StopIDs: []int32{9}, Sampling: sample.Params{Temperature: 1, TopP: 1}}
}

func TestValidate(t *testing.T) {
	if err := valid().Validate(10, 8); err != nil {
		t.Fatalf("a request that fills the context exactly: %v", err)
	}
	for name, c := range map[string]struct {
		change func(*Request)
		want   error
		says   string
	}{
		"no tokens":      {func(r *Request) { r.Tokens = nil }, ErrInvalid, "no tokens"},
		"negative id":    {func(r *Request) { r.Tokens[1] = -1 }, ErrInvalid, "input_ids[1] is -1"},
		"id too high":    {func(r *Request) { r.Tokens[2] = 10 }, ErrInvalid, "vocabulary of 10"},
		"stop id":        {func(r *Request) { r.StopIDs[0] = 10 }, ErrInvalid, "stop_token_ids[0]"},
		"input too long": {func(r *Request) { r.Tokens = make([]int32, 8) }, ErrTooLong, "8 tokens"},
		"sum too long":   {func(r *Request) { r.MaxNew = 6 }, ErrTooLong, "max_new_tokens (6)"},
		"sum overflows":  {func(r *Request) { r.MaxNew = math.MaxInt }, ErrTooLong, "context length"},
		"max 0":          {func(r *Request) { r.MaxNew = 0 }, ErrInvalid, "max_new_tokens 0"},
		"min > max":      {func(r *Request) { r.MinNew = 6 }, ErrInvalid, "min_new_tokens 6"},
		"min < 0":        {func(r *Request) { r.MinNew = -1 }, ErrInvalid, "min_new_tokens -1"},
		"NaN":            {func(r *Request) { r.Sampling.Temperature = float32(math.NaN()) }, ErrInvalid, "temperature NaN"},
		"top_p":          {func(r *Request) { r.Sampling.TopP = 0 }, ErrInvalid, "top_p"},
	} {
		r := valid()
		c.change(r)
		err := r.Validate(10, 8)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		} else if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q does not say %q in one line", name, err, c.says)
		}
	}
}
