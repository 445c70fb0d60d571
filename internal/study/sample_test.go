package study

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"larder/internal/record"
)

var update = flag.Bool("update", false, "rewrite the sample record that package report renders in its tests")

// The sample is what the quick preset gives in the fake world: the record that package report is tested with. It
// changes only when the study does, and then this diff shows how.
func TestSampleRecord(t *testing.T) {
	c, err := Preset("quick")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(64)
	env := w.env()
	env.KV = []record.KVRow{sampleKV("example: 4 requests, 2 in flight")}
	s, err := Run(context.Background(), c, env)
	if err != nil {
		t.Fatal(err)
	}
	s.Started, s.WallS = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), 71.5
	var b bytes.Buffer
	if err := record.Encode(&b, s); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("..", "report", "testdata", "sample.json")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s is not what the study writes now; run the test with -update and read the diff", path)
	}
}

// sampleKV moves 2 x 4 requests of 4.5 MiB each way in 9 ms.
func sampleKV(name string) record.KVRow {
	one := func(v float64) record.Summary {
		n := record.Of(v)
		return record.Summary{N: 20, Mean: n, Min: n, P50: n, P90: n, P99: n, Max: n}
	}
	const bytes = 4718592
	gib := 2 * 4 * float64(bytes) / (1 << 30) / 0.009
	return record.KVRow{
		Name: name, Requests: 4, InFlight: 2, BytesPerWay: bytes, Pieces: 1, SubmitMS: record.Of(0.02),
		LoadSpanMS: one(3.1), StoreSpanMS: one(3.2), E2EMS: one(4.4), LoadActiveMS: one(1.5), StoreActiveMS: one(1.6),
		LoadGiBs: one(1.42), StoreGiBs: one(1.37), DuplexGiBs: one(2.0), MakespanMS: one(9), BatchGiBs: one(gib),
		LoadAloneGiBs: record.Of(5.1), StoreAloneGiBs: record.Of(4.9), Share: record.Of(0.47),
	}
}
