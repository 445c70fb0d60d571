package record

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func sample(t testing.TB) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "report", "testdata", "sample.json"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	b := sample(t)
	s, err := Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if r := s.Rows[0]; r.TPOT.P99.OK() || r.TPOT.P99.Why() != "one output token: no time between tokens" {
		t.Errorf("the reason of an absent number came back as %q", r.TPOT.P99.Why())
	}
	var out bytes.Buffer
	if err := Encode(&out, s); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), b) {
		t.Error("decoding and encoding changed the record")
	}
	again, err := Decode(&out)
	if err != nil || !reflect.DeepEqual(again, s) {
		t.Errorf("the second decoding differs: %v", err)
	}
}

func TestReasonStandsBesideNull(t *testing.T) {
	s := &Study{Rows: []Row{row()}}
	s.Rows[0].LimitS = Absent("no roofline")
	Explain(s, "not measured")
	var b bytes.Buffer
	if err := Encode(&b, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"limit_s": null`, `"limit_s": "no roofline"`, `"kv": []`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in the record", want)
		}
	}
	if strings.Contains(b.String(), "NaN") {
		t.Error("NaN in the record")
	}
}

func TestRefuses(t *testing.T) {
	good := string(sample(t))
	for name, c := range map[string]struct {
		from, to string
		err      error
	}{
		"unknown schema":        {`"larder.study/1"`, `"larder.study/2"`, ErrSchema},
		"no schema":             {`"schema"`, `"scheme"`, ErrSchema},
		"unknown field":         {`"tool":`, `"tools":`, ErrInvalid},
		"null without a reason": {`"input_tok_per_s": `, `"input_tok_per_s": null, "x": `, ErrInvalid},
		"arm":                   {`"arm": "recompute"`, `"arm": "disk"`, ErrInvalid},
		"truncated":             {good[len(good)/2:], "", ErrInvalid},
		"trailing":              {good[len(good)-3:], good[len(good)-3:] + "{}", ErrInvalid},
		"negative duration":     {`"duration_s": `, `"duration_s": -`, ErrInvalid},
		"wrong type":            {`"requests": 4`, `"requests": "4"`, ErrInvalid},
	} {
		bad := strings.Replace(good, c.from, c.to, 1)
		if bad == good {
			t.Fatalf("%s: nothing to replace", name)
		}
		if s, err := Decode(strings.NewReader(bad)); !errors.Is(err, c.err) || s != nil {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
	}
}

// A null whose reason was taken away must not pass for a number or for a known absence.
func TestNullNeedsReason(t *testing.T) {
	good := string(sample(t))
	bad := strings.Replace(good, `"reason": "one output token: no time between tokens"`, `"reason": ""`, 1)
	if _, err := Decode(strings.NewReader(bad)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "rows[0].tpot_ms.") {
		t.Errorf("%v", err)
	}
	s := &Study{Rows: []Row{row()}}
	Explain(s, "not measured")
	s.Rows[0].Share, s.Rows[0].Why = Number{}, nil
	if err := Encode(new(bytes.Buffer), s); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "rows[0].share_of_limit") {
		t.Errorf("%v", err)
	}
}

func TestNumber(t *testing.T) {
	zero := 0.0
	for _, v := range []float64{1 / zero, -1 / zero, zero / zero} {
		if n := Of(v); n.OK() || n.Why() == "" || n.Or(7) != 7 {
			t.Errorf("Of(%v) = %+v", v, n)
		}
	}
	if v, ok := Of(0).Get(); !ok || v != 0 {
		t.Error("zero is a number")
	}
}

func TestFailedChecks(t *testing.T) {
	s := &Study{Complete: true, Checks: []Check{{Name: "a", OK: true}, {Name: "b"}}}
	if s.OK() || !reflect.DeepEqual(s.FailedChecks(), []string{"b"}) {
		t.Errorf("%v", s.FailedChecks())
	}
	s.Checks[1].OK = true
	if !s.OK() {
		t.Error("all checks hold")
	}
	if s.Complete = false; s.OK() {
		t.Error("an incomplete study is not OK")
	}
}

// The format's page names every field.
func TestFormatIsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "format", "study.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[reflect.Type]bool{}
	var visit func(reflect.Type)
	visit = func(ty reflect.Type) {
		for ty.Kind() == reflect.Slice || ty.Kind() == reflect.Pointer {
			ty = ty.Elem()
		}
		if ty.Kind() != reflect.Struct || ty.PkgPath() != numberType.PkgPath() || ty == numberType || seen[ty] {
			return
		}
		seen[ty] = true
		for i := range ty.NumField() {
			f := ty.Field(i)
			if !bytes.Contains(page, []byte("`"+jsonName(f)+"`")) {
				t.Errorf("docs/format/study.md does not name `%s` of %s", jsonName(f), ty.Name())
			}
			visit(f.Type)
		}
	}
	visit(reflect.TypeFor[Study]())
	if len(seen) < 20 {
		t.Errorf("only %d structs visited", len(seen))
	}
}

func row() Row { return Row{Arm: HBMArm, Batch: 1, Requests: 1, DurationS: 1} }

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"schema":"larder.study/1"}`))
	f.Add([]byte(`{"schema":"larder.study/1","rows":[{"arm":"hbm","batch":1,"duration_s":1e400}]}`))
	f.Add([]byte(`{"schema":"larder.study/1","rows":null,"break_even":{"why":{"margin":""}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Decode(bytes.NewReader(b))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := Encode(&out, s); err != nil {
			t.Fatalf("what was decoded cannot be encoded: %v", err)
		}
		if _, err := Decode(&out); err != nil {
			t.Fatalf("what was encoded cannot be decoded: %v", err)
		}
	})
}
