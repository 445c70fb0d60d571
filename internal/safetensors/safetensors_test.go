package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"larder/internal/arch"
)

// file makes a file of a header and data bytes.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range data {
		b = append(b, byte(i))
	}
	return b
}

const good = `{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]},` +
	`"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"s":{"dtype":"F16","shape":[],"data_offsets":[20,22]},` +
	`"none":{"dtype":"F16","shape":[0,4],"data_offsets":[22,22]},"ids":{"dtype":"I64","shape":[1],"data_offsets":[22,30]}}   `

func put(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpenFile(t *testing.T) {
	f, err := OpenFile(put(t, t.TempDir(), "x.safetensors", file(good, 30)))
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Names(); !slices.Equal(got, []string{"a", "b", "ids", "none", "s"}) {
		t.Errorf("names %v", got)
	}
	for _, tt := range []struct {
		name  string
		dtype arch.DType
		shape []int
		data  []byte
	}{
		{"a", arch.BF16, []int{2, 3}, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{"b", arch.F32, []int{2}, []byte{12, 13, 14, 15, 16, 17, 18, 19}},
		{"s", arch.F16, nil, []byte{20, 21}},
		{"none", arch.F16, []int{0, 4}, []byte{}},
	} {
		got, err := f.Tensor(tt.name)
		if err != nil {
			t.Fatal(err)
		}
		if got.DType != tt.dtype || !slices.Equal(got.Shape, tt.shape) || !bytes.Equal(got.Data, tt.data) || got.Name != tt.name {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
	_, err = f.Tensor("ids")
	if err == nil || !strings.Contains(err.Error(), "x.safetensors: tensor ids: dtype I64 is not supported") {
		t.Errorf("a type that models do not use: %v", err)
	}
	_, err = f.Tensor("nope")
	if !errors.Is(err, ErrNoTensor) || !strings.Contains(err.Error(), "x.safetensors: tensor nope") {
		t.Errorf("a missing tensor: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Released pages come back from the file.
func TestRelease(t *testing.T) {
	n := 5 * os.Getpagesize()
	header := `{"a":{"dtype":"F16","shape":[` + strconv.Itoa(n/2) + `],"data_offsets":[0,` + strconv.Itoa(n) + `]}}`
	f, err := OpenFile(put(t, t.TempDir(), "x.safetensors", file(header, n)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a, err := f.Tensor("a")
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(a.Data)
	f.Release("a")
	f.Release("nope")
	if !bytes.Equal(before, a.Data) {
		t.Error("released bytes differ when read again")
	}
}

func TestBadFiles(t *testing.T) {
	one := func(desc string) string { return `{"w":{` + desc + `}}` }
	for _, tt := range []struct {
		what    string
		content []byte
		want    string
	}{
		{"empty", nil, "not a safetensors file: 0 bytes"},
		{"seven bytes", make([]byte, 7), "not a safetensors file: 7 bytes"},
		{"a huge header", bytes.Repeat([]byte{0xff}, 64), "a header of 18446744073709551615 bytes"},
		{"header longer than the file", append(binary.LittleEndian.AppendUint64(nil, 100), '{', '}'), "truncated: a header of 100 bytes in a file of 10"},
		{"an array", file(`[]`, 0), "header is not a JSON object"},
		{"cut JSON", file(`{"w":`, 0), "tensor w: bad description"},
		{"not JSON", file(`{w}`, 0), "header is not JSON"},
		{"no closing brace", file(`{`, 0), "header is not JSON"},
		{"two values", file(`{}{}`, 0), "more than one JSON value"},
		{"twice", file(`{"w":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},"w":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}`, 2), "tensor w: named twice"},
		{"a number", file(`{"w":3}`, 0), "tensor w: bad description"},
		{"no dtype", file(one(`"shape":[1],"data_offsets":[0,2]`), 2), "tensor w: dtype or data_offsets missing"},
		{"no offsets", file(one(`"dtype":"F16","shape":[1]`), 2), "tensor w: dtype or data_offsets missing"},
		{"three offsets", file(one(`"dtype":"F16","shape":[1],"data_offsets":[0,2,3]`), 2), "dtype or data_offsets missing"},
		{"negative offset", file(one(`"dtype":"F16","shape":[1],"data_offsets":[-2,0]`), 2), "tensor w: data_offsets [-2, 0]"},
		{"reversed offsets", file(one(`"dtype":"F16","shape":[1],"data_offsets":[2,0]`), 2), "tensor w: data_offsets [2, 0]"},
		{"offset near overflow", file(one(`"dtype":"F16","shape":[1],"data_offsets":[0,9223372036854775807]`), 2), "out of order"},
		{"offset past int64", file(one(`"dtype":"F16","shape":[1],"data_offsets":[0,9223372036854775808]`), 2), "bad description"},
		{"negative shape", file(one(`"dtype":"F16","shape":[-1],"data_offsets":[0,2]`), 2), "tensor w: shape [-1]"},
		{"many dimensions", file(one(`"dtype":"F16","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,2]`), 2), "tensor w: 17 dimensions"},
		{"product overflows", file(one(`"dtype":"F16","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,0]`), 0), "is out of range"},
		{"product wraps to 2", file(one(`"dtype":"F16","shape":[1048577,1099511627776,16777216],"data_offsets":[0,2]`), 2), "is out of range"},
		{"shape and bytes disagree", file(one(`"dtype":"F16","shape":[3],"data_offsets":[0,2]`), 2), "tensor w: shape [3] of F16 needs 6 bytes, data_offsets give 2"},
		{"truncated data", file(one(`"dtype":"F16","shape":[3],"data_offsets":[0,6]`), 5), "tensor w: truncated"},
		{"left over", file(one(`"dtype":"F16","shape":[3],"data_offsets":[0,6]`), 7), "1 bytes after the last tensor"},
		{"hole", file(one(`"dtype":"F16","shape":[1],"data_offsets":[2,4]`), 4), "tensor w: 2 bytes before it"},
		{"overlap", file(`{"v":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"w":{"dtype":"F16","shape":[2],"data_offsets":[2,6]}}`, 6), "tensor w: starts at byte"},
		{"a name with line breaks", file(`{"w\nx":3}`, 0), `tensor "w\nx"`},
	} {
		path := put(t, t.TempDir(), "bad.safetensors", tt.content)
		f, err := OpenFile(path)
		if err == nil {
			f.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", tt.what, err, tt.want)
		}
	}
	if _, err := OpenFile(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}

func TestOpenSharded(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "no model.safetensors and no model.safetensors.index.json") {
		t.Errorf("an empty folder: %v", err)
	}
	put(t, dir, "m-1.safetensors", file(`{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}`, 2))
	put(t, dir, "m-2.safetensors", file(`{"b":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"extra":{"dtype":"F16","shape":[],"data_offsets":[4,6]}}`, 6))
	put(t, dir, "model.safetensors.index.json", []byte(`{"metadata":{"total_size":6},"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}`))
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b, err := c.Tensor("b")
	if err != nil || !bytes.Equal(b.Data, []byte{0, 1, 2, 3}) || b.File != filepath.Join(dir, "m-2.safetensors") {
		t.Errorf("b: %+v, %v", b, err)
	}
	c.Release("b")
	if got := c.Names(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("names %v", got)
	}
	if _, err := c.Tensor("c"); !errors.Is(err, ErrNoTensor) || !strings.Contains(err.Error(), "index.json: tensor c") {
		t.Errorf("a missing tensor: %v", err)
	}
}

func TestBadIndex(t *testing.T) {
	for _, tt := range []struct{ index, want string }{
		{`{`, "index.json: not an index"},
		{`{}`, "weight_map is missing or empty"},
		{`{"weight_map":{"a":3}}`, "index.json: not an index"},
		{`{"weight_map":{"a":"../m-1.safetensors"}}`, `tensor a: "../m-1.safetensors" is not a file name`},
		{`{"weight_map":{"a":".."}}`, `tensor a: ".." is not a file name`},
		{`{"weight_map":{"a":""}}`, `tensor a: "" is not a file name`},
		{`{"weight_map":{"a":"gone.safetensors"}}`, "gone.safetensors"},
		{`{"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors"}}`, "m-1.safetensors: tensor b: no such tensor"},
		{`{"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}}`, "m-2.safetensors: tensor b: truncated"},
	} {
		dir := t.TempDir()
		put(t, dir, "m-1.safetensors", file(`{"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}`, 2))
		put(t, dir, "m-2.safetensors", file(`{"b":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}`, 3))
		put(t, dir, "model.safetensors.index.json", []byte(tt.index))
		c, err := Open(dir)
		if err == nil {
			c.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", tt.index, err, tt.want)
		}
	}
}

// A header that is accepted describes tensors that lie in the file, each of the size that its shape says.
func FuzzHeader(f *testing.F) {
	f.Add(file(good, 30))
	f.Add(file(`{}`, 0))
	f.Add(file(`{"w":{"dtype":"F16","shape":[4294967296,4294967296],"data_offsets":[0,2]}}`, 2))
	f.Add(file(`{"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 2))
	f.Add(file(`{"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}`, 2))
	f.Add(binary.LittleEndian.AppendUint64(nil, 1<<63))
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, err := parseHeader(content, int64(len(content)))
		if err != nil {
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 4096 {
				t.Errorf("an error of %d bytes or several lines: %q", len(err.Error()), err)
			}
			return
		}
		names := map[string]bool{}
		covered := int64(0)
		for _, e := range entries {
			if names[e.name] || e.begin < 8 || e.end < e.begin || e.end > int64(len(content)) {
				t.Fatalf("%+v in a file of %d", e, len(content))
			}
			names[e.name] = true
			covered += e.end - e.begin
			size := dtypeBytes[e.dtype]
			for _, d := range e.shape {
				size *= int64(d)
			}
			if dtypeBytes[e.dtype] != 0 && size != e.end-e.begin {
				t.Fatalf("%+v holds %d bytes", e, size)
			}
		}
		if data := int64(len(content)) - 8 - int64(binary.LittleEndian.Uint64(content)); covered != data {
			t.Errorf("tensors cover %d of %d bytes", covered, data)
		}
	})
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"weight_map":{"a":"m.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../../x"}}`))
	f.Add([]byte(`{"weight_map":{"a":"."}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		shards, err := parseIndex(text)
		if err != nil {
			return
		}
		for shard := range shards {
			if strings.ContainsRune(shard, filepath.Separator) || shard == ".." || shard == "." || shard == "" {
				t.Errorf("shard %q leaves the folder", shard)
			}
		}
	})
}

var sink byte

// BenchmarkRead reads a mapped tensor that is in the page cache, once over.
func BenchmarkRead(b *testing.B) {
	const n = 64 << 20
	header := `{"a":{"dtype":"BF16","shape":[` + strconv.Itoa(n/2) + `],"data_offsets":[0,` + strconv.Itoa(n) + `]}}`
	path := filepath.Join(b.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, file(header, n), 0o644); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(n)
	for b.Loop() {
		f, err := OpenFile(path)
		if err != nil {
			b.Fatal(err)
		}
		a, err := f.Tensor("a")
		if err != nil {
			b.Fatal(err)
		}
		sum := byte(0)
		for i := 0; i < len(a.Data); i += 64 {
			sum += a.Data[i]
		}
		sink = sum
		f.Close()
	}
}
