package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Errors of Decode, wrapped with detail.
var (
	ErrSchema  = errors.New("not a study record of a known schema")
	ErrInvalid = errors.New("invalid study record")
)

// Encode writes s as indented JSON. It sets s.Schema and the reasons that stand beside absent numbers, and refuses a
// record that Decode would refuse.
func Encode(w io.Writer, s *Study) error {
	s.Schema = Schema
	s.fillEmpty()
	if err := walk(reflect.ValueOf(s), "", tell); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := s.validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	return enc.Encode(s)
}

// fillEmpty makes lists that were never filled empty instead of null.
func (s *Study) fillEmpty() {
	for _, part := range []any{s, &s.Workload, &s.BreakEven, &s.BreakEven.Fit, &s.Published} {
		v := reflect.ValueOf(part).Elem()
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Slice && f.IsNil() && !strings.Contains(v.Type().Field(i).Tag.Get("json"), ",omitempty") {
				f.Set(reflect.MakeSlice(f.Type(), 0, 0))
			}
		}
	}
}

// Decode reads a record. An unknown schema is ErrSchema; unknown fields, numbers absent without a reason and values
// that contradict each other are ErrInvalid.
func Decode(r io.Reader) (*Study, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if head.Schema != Schema {
		return nil, fmt.Errorf("%w: %q, this program reads %q", ErrSchema, head.Schema, Schema)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	s := new(Study)
	if err := dec.Decode(s); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: something follows the record", ErrInvalid)
	}
	if err := walk(reflect.ValueOf(s), "", learn); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return s, nil
}

// validate checks what every renderer relies on.
func (s *Study) validate() error {
	for _, c := range s.Ceilings {
		if !(c.Value > 0) || math.IsInf(c.Value, 0) {
			return fmt.Errorf("ceiling %q is %v", c.Name, c.Value)
		}
	}
	for i, list := range [][]Row{s.Rows, s.Decode, s.HeldOut} {
		name := []string{"rows", "decode", "held_out"}[i]
		for j := range list {
			if err := list[j].validate(); err != nil {
				return fmt.Errorf("%s[%d]: %w", name, j, err)
			}
		}
	}
	for i, c := range s.Comparisons {
		if !slices.Contains([]string{VerdictA, VerdictB, VerdictOpen, VerdictNone}, c.Verdict) {
			return fmt.Errorf("comparisons[%d]: verdict %q", i, c.Verdict)
		}
	}
	return nil
}

func (r *Row) validate() error {
	if !slices.Contains([]string{Recompute, HostArm, HBMArm}, r.Arm) {
		return fmt.Errorf("arm %q", r.Arm)
	}
	if r.Batch < 1 || r.Requests < 0 || r.Failed < 0 || r.Failed > r.Requests {
		return fmt.Errorf("batch %d, %d requests, %d failed", r.Batch, r.Requests, r.Failed)
	}
	if !(r.DurationS >= 0) || math.IsInf(r.DurationS, 0) {
		return fmt.Errorf("duration %v s", r.DurationS)
	}
	return nil
}

// OK reports whether the study is complete and every check held.
func (s *Study) OK() bool { return s.Complete && len(s.FailedChecks()) == 0 }

// FailedChecks are the names of the checks that did not hold.
func (s *Study) FailedChecks() []string {
	var names []string
	for _, c := range s.Checks {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}

// Ceiling returns a ceiling's value by name.
func (s *Study) Ceiling(name string) Number {
	for _, c := range s.Ceilings {
		if c.Name == name {
			return Of(c.Value)
		}
	}
	return Absent("ceiling " + name + " was not measured")
}
