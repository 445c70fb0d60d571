package tokenizer

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// qwenData is where scripts/fetch_tokenizer.sh puts Qwen3's tokenizer.
var qwenData = filepath.Join("..", "..", "data", "tokenizer")

// goldenCase is one line of the files that scripts/make_tokenizer_cases.py makes.
type goldenCase struct {
	Text   *string
	Repeat []any
	Runs   bool
	IDs    []int32

	Decode     []int32
	All, Plain string
}

func (c *goldenCase) input() string {
	if c.Text != nil {
		return *c.Text
	}
	return strings.Repeat(c.Repeat[0].(string), int(c.Repeat[1].(float64)))
}

func (c *goldenCase) ids() []int32 {
	if !c.Runs {
		return c.IDs
	}
	var ids []int32
	for i := 0; i < len(c.IDs); i += 2 {
		ids = append(ids, slices.Repeat(c.IDs[i:i+1], int(c.IDs[i+1]))...)
	}
	return ids
}

func loadTiny(t testing.TB) *Tokenizer { return load(t, filepath.Join("testdata", "tiny")) }

func loadQwen(t testing.TB) *Tokenizer {
	if _, err := os.Stat(filepath.Join(qwenData, "tokenizer.json")); err != nil {
		t.Skip("no Qwen3 tokenizer data: run scripts/fetch_tokenizer.sh")
	}
	return load(t, qwenData)
}

func load(t testing.TB, path string) *Tokenizer {
	t.Helper()
	tok, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func readCases(t testing.TB, name string) []goldenCase {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var cases []goldenCase
	for d := json.NewDecoder(bufio.NewReader(z)); d.More(); {
		var c goldenCase
		if err := d.Decode(&c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if len(cases) < 1000 {
		t.Fatalf("%s: only %d cases", name, len(cases))
	}
	return cases
}

func checkCases(t *testing.T, tok *Tokenizer, cases []goldenCase) {
	wrong := 0
	for _, c := range cases {
		if c.Text == nil && c.Repeat == nil {
			checkDecode(t, tok, &c)
			continue
		}
		if got, want := tok.Encode(c.input(), nil), c.ids(); !slices.Equal(got, want) {
			if wrong++; wrong <= 10 {
				t.Errorf("Encode(%.200q) = %.400v, want %.400v", c.input(), got, want)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d cases differ", wrong, len(cases))
	}
}

func checkDecode(t *testing.T, tok *Tokenizer, c *goldenCase) {
	t.Helper()
	for skip, want := range map[bool]string{false: c.All, true: c.Plain} {
		if got := tok.Decode(c.Decode, skip); got != want {
			t.Errorf("Decode(%v, %v) = %q, want %q", c.Decode, skip, got, want)
		}
	}
}

func TestGoldenTiny(t *testing.T)  { checkCases(t, loadTiny(t), readCases(t, "tiny.jsonl.gz")) }
func TestGoldenQwen3(t *testing.T) { checkCases(t, loadQwen(t), readCases(t, "qwen3.jsonl.gz")) }
