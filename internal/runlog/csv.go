package runlog

import (
	"encoding/csv"
	"io"
	"strconv"
)

var csvHead = []string{"i", "prompt", "prompt_tokens", "asked_tokens", "server_prompt_tokens", "output_tokens", "counted_by", "due_ms", "sent_ms", "first_byte_ms",
	"first_ms", "done_ms", "ttft_ms", "tpot_ms", "e2e_ms", "max_gap_ms", "cached_tokens", "cached_device", "cached_host", "cached_storage", "finish", "class", "status", "error"}

// CSV writes one row for each request under a header. What does not exist is an empty cell.
func CSV(w io.Writer, r *Run) error {
	out := csv.NewWriter(w)
	if err := out.Write(csvHead); err != nil {
		return err
	}
	for i := range r.Requests {
		if err := out.Write(r.Requests[i].cells()); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func (r *Request) cells() []string {
	cached := Cached{}
	total := ""
	if r.Cached != nil {
		cached, total = *r.Cached, strconv.Itoa(r.Cached.Total)
	}
	longest := ""
	if len(r.Gaps) > 0 {
		most := 0.0
		for _, g := range r.Gaps {
			most = max(most, g)
		}
		longest = float(most)
	}
	status := ""
	if r.Status != 0 {
		status = strconv.Itoa(r.Status)
	}
	return []string{strconv.Itoa(r.Index), r.Prompt, strconv.Itoa(r.PromptLen), strconv.Itoa(r.Asked), integer(r.ServerCount), strconv.Itoa(r.Output), r.CountedBy,
		float(r.DueMS), optional(r.SentMS), optional(r.FirstByteMS), optional(r.FirstMS), optional(r.DoneMS), known(r.TTFT()), known(r.TPOT()), known(r.E2E()), longest,
		total, integer(cached.Device), integer(cached.Host), integer(cached.Storage), r.Finish, r.Class, status, r.Error}
}

func float(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }

func known(v float64, ok bool) string {
	if !ok {
		return ""
	}
	return float(v)
}

func optional(v *float64) string {
	if v == nil {
		return ""
	}
	return float(*v)
}

func integer(v *int) string {
	if v == nil {
		return ""
	}
	return strconv.Itoa(*v)
}
