package xfer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"larder/internal/device"
	"larder/internal/kv"
)

// machine is a memory whose copies cost what a made-up machine's do: each a fixed time a piece, a batch less, and the
// kernel least but slow in bytes.
func machine() *memory {
	m := newMemory()
	m.methods = []device.CopyMethod{device.CopyEach, device.CopyBatch, device.CopyKernel}
	m.cost = func(how device.CopyMethod, pieces int, bytes int64) time.Duration {
		n, size := time.Duration(pieces), time.Duration(bytes)
		switch how {
		case device.CopyBatch:
			return 50*time.Millisecond + n*100*time.Microsecond + size
		case device.CopyKernel:
			return 50*time.Millisecond + 2*size
		}
		return n*10*time.Millisecond + size
	}
	return m
}

func TestTableChooses(t *testing.T) {
	table, err := Measure(machine(), "made up")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		bytes  int64
		pieces int
		want   Method
	}{
		{4 << 20, 2, Runs}, // a few pieces: a batch's fixed time is not earned back
		{4 << 20, 4, Runs},
		{1 << 20, 200, Batch},
		{16 << 10, 64, Batch},
		{4 << 10, 256, Kernel},
		{100, 100000, Kernel}, // smaller and more than anything measured
	} {
		for _, to := range []kv.Tier{kv.Device, kv.Host} {
			if got := table.choose(to, c.bytes, c.pieces); got != c.want {
				t.Errorf("%d pieces of %d bytes to the %v: %v, want %v", c.pieces, c.bytes, to, got, c.want)
			}
		}
	}
	if got := (*Table)(nil).choose(kv.Device, 1, 1000); got != Runs {
		t.Errorf("no table chooses %v", got)
	}
}

// TestTableIsKept: a second start finds the table; another machine, another set of methods or a broken file does not.
func TestTableIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	ask := func(identity string, m *memory) bool {
		t.Helper()
		before := m.copies
		table, fresh, err := Cached(dir, identity, m)
		if err != nil || table.Identity != identity {
			t.Fatalf("%+v, %v", table, err)
		}
		if !fresh && m.copies > before {
			t.Error("a kept table was measured")
		}
		return fresh
	}
	if !ask("one", machine()) || ask("one", machine()) || !ask("two", machine()) {
		t.Error("kept where it should not be, or not where it should")
	}
	plain := machine()
	plain.methods = []device.CopyMethod{device.CopyEach, device.CopyKernel}
	if !ask("one", plain) || ask("one", plain) {
		t.Error("a table with methods that are gone is used")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if err := os.WriteFile(f, []byte("{"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if !ask("one", machine()) || ask("one", machine()) {
		t.Error("a broken file is used, or stays broken")
	}
	broken := machine()
	broken.fail = func(int) error { return errShort }
	if _, _, err := Cached(dir, "three", broken); !errors.Is(err, errShort) {
		t.Errorf("a machine whose copies fail: %v", err)
	}
	single := newMemory()
	if table, err := Measure(single, "one way"); err != nil || len(table.Cells) != 0 || single.copies != 0 {
		t.Errorf("where there is nothing to choose: %+v, %v", table, err)
	}
}

func TestMethodNames(t *testing.T) {
	for m := Auto; m <= Kernel; m++ {
		text, err := m.MarshalText()
		var back Method
		if err != nil || back.UnmarshalText(text) != nil || back != m {
			t.Errorf("%v is read as %v", m, back)
		}
	}
	if new(Method).UnmarshalText([]byte("dma")) == nil || Kernel.Available(newMemory()) || !Rows.Available(newMemory()) {
		t.Error("what is not there is")
	}
}

// TestRows: what lies at equal distances on both sides goes as one 2-D copy, without being asked to.
func TestRows(t *testing.T) {
	r := newRig(t, 64, 64)
	var moves []kv.Move
	for i := range kv.BlockID(16) {
		moves = append(moves, r.move(kv.Host, 3*i, 2*i))
	}
	r.Submit(moves)
	r.reports(16)
	if len(r.records) != 1 || r.records[0].Method != Rows || r.records[0].Pieces != 16 || r.mem.copies != 1 {
		t.Fatalf("%+v, %d copies", r.records, r.mem.copies)
	}
	for i := range kv.BlockID(16) {
		if string(r.block(kv.Device, 2*i)) != string(r.block(kv.Host, 3*i)) {
			t.Errorf("block %d is wrong", i)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}
