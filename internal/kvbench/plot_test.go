package kvbench

import (
	"bytes"
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

// TestPlot draws two rows, one of which stopped early, and reads the page as XML: every bar is within the drawing, and
// nothing comes from outside.
func TestPlot(t *testing.T) {
	res, err := Run(t.Context(), newMemory(t), small())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Plot(&out, "a machine <x>", []Row{{"all", res}, {"cut", &Result{Config: small(), Phases: res.Phases[:1]}}, {"none", nil}}); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	if strings.Contains(page, "http") || strings.Contains(page, "<script") || strings.Contains(page, "machine <x>") {
		t.Error("something from outside is in the page")
	}
	if n := strings.Count(page, `class="bar"`); n != 4 {
		t.Errorf("%d bars, want 4", n)
	}
	for part := range strings.SplitSeq(page, "<svg") {
		svg, _, ok := strings.Cut(part, "</svg>")
		if !ok {
			continue
		}
		d := xml.NewDecoder(strings.NewReader("<svg" + svg + "</svg>"))
		for {
			tok, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%v in %s", err, svg)
			}
			if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "rect" {
				for _, a := range e.Attr {
					if a.Name.Local == "width" && (a.Value == "0.0" || strings.ContainsAny(a.Value, "-NI")) {
						t.Errorf("a bar of width %s", a.Value)
					}
				}
			}
		}
	}
}

// TestSeedText: our rows stand beside the document's, which are the published figures; what was not measured is said.
func TestSeedText(t *testing.T) {
	var bytesEachWay []int
	for _, p := range PublishedRows() {
		bytesEachWay = append(bytesEachWay, 864/p.Shards)
		moved := p.DuplexGiBs * p.MakespanMS / 1e3 * 1024 / 2 / float64(p.Requests) // MiB each way, by its own figures
		if moved < 0.98*float64(864/p.Shards) || moved > 1.02*float64(864/p.Shards) {
			t.Errorf("%d requests moved %.0f MiB each way, not %d", p.Requests, moved, 864/p.Shards)
		}
	}
	res, err := Run(t.Context(), newMemory(t), small())
	if err != nil {
		t.Fatal(err)
	}
	first := PublishedRows()[0]
	var out strings.Builder
	if err := SeedText(&out, []Row{{first.OwnName(), res}}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 5 || !strings.Contains(lines[1], "115.8") || strings.Count(lines[1], "not measured") != 1 || strings.Count(lines[2], "not measured") != 2 {
		t.Errorf("%v\n%s", bytesEachWay, out.String())
	}
}
