package workload

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// TraceSpec asks for a recorded trace: requests at their recorded times, with prompts of exact ids.
type TraceSpec struct {
	Kind     string // mooncake (JSON lines with 512-token block ids), azure or burstgpt (CSV, lengths only)
	Path     string
	Requests int     // at most; 0: all
	Slowdown float64 // factor on the recorded times; 0: 1

	VocabLow, VocabSize int // usable ids are in [VocabLow, VocabSize)
	Seed, Salt          uint64
}

// traceBlock is how many tokens one block id of a Mooncake trace stands for.
const traceBlock = 512

// row is one recorded request.
type row struct {
	at      float64 // seconds
	in, out int
	blocks  []uint64
}

// Trace reads a trace. Equal block ids give equal blocks of 512 tokens, different ids blocks that differ from their
// first tokens on; what the ids do not cover, and all of a trace without ids, is unique to its request. Another Salt
// gives other tokens with the same sharing. A row that can not be read ends it with its line: a trace with holes is
// another trace.
func Trace(spec TraceSpec) (*Set, error) {
	if spec.Slowdown == 0 {
		spec.Slowdown = 1
	}
	if !(spec.Slowdown > 0) || math.IsInf(spec.Slowdown, 0) {
		return nil, fmt.Errorf("slow-down factor %v must be a finite number above 0", spec.Slowdown)
	}
	rows, err := spec.read()
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(rows, func(a, b row) int { return int(min(max((a.at-b.at)*1e9, -1), 1)) })
	if spec.Requests > 0 && len(rows) > spec.Requests {
		rows = rows[:spec.Requests]
	}
	ids := PrefixSet{VocabLow: spec.VocabLow, VocabSize: spec.VocabSize, Seed: spec.Seed, Salt: spec.Salt}
	usable := ids.usable()
	if len(usable) < 2 {
		return nil, fmt.Errorf("only %d usable token ids in [%d, %d)", len(usable), spec.VocabLow, spec.VocabSize)
	}
	items := make([]Item, len(rows))
	in, out := make([]int, len(rows)), make([]int, len(rows))
	parallel(len(rows), func(i int) {
		r := rows[i]
		items[i] = Item{IDs: ids.tracePrompt(usable, r, i, len(rows)), Due: seconds((r.at - rows[0].at) * spec.Slowdown)}
		in[i], out[i] = r.in, r.out
	})
	return lengthSet(items, in, out), nil
}

// tracePrompt makes a row's prompt: its blocks, cut to its length, and a tail of its own.
func (p PrefixSet) tracePrompt(usable []int32, r row, i, rows int) []int32 {
	prompt := make([]int32, 0, r.in)
	for _, b := range r.blocks {
		n := min(traceBlock, r.in-len(prompt))
		if n <= 0 {
			break
		}
		whole := p.draw(make([]int32, 0, traceBlock), usable, 'b', int(b), math.MaxInt32, traceBlock)
		prompt = append(prompt, whole[:n]...)
	}
	return p.draw(prompt, usable, 't', i, rows, r.in-len(prompt))
}

func (spec TraceSpec) read() ([]row, error) {
	if spec.Path == "" {
		return nil, errors.New("a trace needs its file: give --dataset-path FILE; nothing is downloaded")
	}
	f, err := os.Open(spec.Path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer f.Close()
	var rows []row
	switch spec.Kind {
	case "mooncake":
		rows, err = readMooncake(f)
	case "azure":
		rows, err = readCSV(f, "TIMESTAMP", "ContextTokens", "GeneratedTokens")
	case "burstgpt":
		rows, err = readCSV(f, "Timestamp", "Request tokens", "Response tokens")
	default:
		return nil, fmt.Errorf("unknown trace %q: known are mooncake, azure, burstgpt", spec.Kind)
	}
	if err != nil {
		return nil, fmt.Errorf("trace %s: %w", spec.Path, err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("trace %s has no requests", spec.Path)
	}
	return rows, nil
}

// readMooncake reads {"timestamp": ms, "input_length", "output_length", "hash_ids"} lines.
func readMooncake(r io.Reader) ([]row, error) {
	var rows []row
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var m struct {
			At     *float64 `json:"timestamp"`
			In     *int     `json:"input_length"`
			Out    *int     `json:"output_length"`
			Blocks []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if m.At == nil || m.In == nil || m.Out == nil {
			return nil, fmt.Errorf("line %d: timestamp, input_length and output_length are needed", n)
		}
		one, err := newRow(*m.At/1000, *m.In, *m.Out, n)
		if err != nil {
			return nil, err
		}
		one.blocks = m.Blocks
		rows = append(rows, one)
	}
	return rows, lines.Err()
}

// readCSV reads a table with a head line that names the three columns.
func readCSV(r io.Reader, at, in, out string) ([]row, error) {
	c := csv.NewReader(r)
	head, err := c.Read()
	if err != nil {
		return nil, fmt.Errorf("head line: %w", err)
	}
	columns := [3]int{}
	for i, name := range []string{at, in, out} {
		columns[i] = slices.IndexFunc(head, func(h string) bool { return strings.TrimSpace(strings.TrimPrefix(h, "\ufeff")) == name })
		if columns[i] < 0 {
			return nil, fmt.Errorf("no column %q in %q", name, head)
		}
	}
	var rows []row
	for {
		fields, err := c.Read()
		if err == io.EOF {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := c.FieldPos(0)
		when, err := timestamp(fields[columns[0]])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		numbers := [2]int{}
		for i := range numbers {
			if numbers[i], err = strconv.Atoi(strings.TrimSpace(fields[columns[i+1]])); err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
		}
		one, err := newRow(when, numbers[0], numbers[1], line)
		if err != nil {
			return nil, err
		}
		rows = append(rows, one)
	}
}

// newRow refuses what no server could be asked for. A trace may record answers without a token; one is asked for then.
func newRow(at float64, in, out, line int) (row, error) {
	if math.IsNaN(at) || math.IsInf(at, 0) || in < 1 || out < 0 || in > 1<<28 {
		return row{}, fmt.Errorf("line %d: time %v, %d input and %d output tokens", line, at, in, out)
	}
	return row{at: at, in: in, out: max(out, 1)}, nil
}

// timestamp reads seconds, or a date with a time.
func timestamp(text string) (float64, error) {
	text = strings.TrimSpace(text)
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		return v, nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", time.RFC3339Nano} {
		if t, err := time.Parse(layout, text); err == nil {
			return float64(t.UnixNano()) / 1e9, nil
		}
	}
	return 0, fmt.Errorf("%q is no time", text)
}
