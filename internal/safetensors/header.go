package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strings"

	"larder/internal/arch"
)

// maxHeader is the largest header that the format allows.
const maxHeader = 100_000_000

// maxDims keeps what a forged header can put into an error message short.
const maxDims = 16

// entry is a tensor as the header states it; begin and end count from the file's start.
type entry struct {
	name       string
	dtype      string
	shape      []int
	begin, end int64
}

// dtypeBytes gives the element size of the format's types, so that sizes are checked even for tensors that nobody
// reads. Types that are missing here (sub-byte ones) are not checked.
var dtypeBytes = map[string]int64{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
	"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}

// dtypeOf is the type that a model may use, or 0.
func dtypeOf(name string) arch.DType {
	switch name {
	case "BF16":
		return arch.BF16
	case "F16":
		return arch.F16
	case "F32":
		return arch.F32
	}
	return 0
}

// parseHeader reads the header at the start of a file of fileSize bytes; head holds the first bytes of the file, the
// whole header at least. Entries come in the order of their data.
func parseHeader(head []byte, fileSize int64) ([]entry, error) {
	n, err := headerSize(head, fileSize)
	if err != nil {
		return nil, err
	}
	if int64(len(head)) < 8+n {
		return nil, fmt.Errorf("truncated: the header needs %d bytes, %d are there", 8+n, len(head))
	}
	entries, err := parseEntries(head[8:8+n], 8+n)
	if err != nil {
		return nil, err
	}
	if err := checkCoverage(entries, 8+n, fileSize); err != nil {
		return nil, err
	}
	return entries, nil
}

// headerSize reads and checks the 8 bytes that say how long the JSON header is.
func headerSize(head []byte, fileSize int64) (int64, error) {
	if len(head) < 8 || fileSize < 8 {
		return 0, fmt.Errorf("not a safetensors file: %d bytes", fileSize)
	}
	n := binary.LittleEndian.Uint64(head)
	if n > maxHeader {
		return 0, fmt.Errorf("not a safetensors file: a header of %d bytes (at most %d)", n, maxHeader)
	}
	if int64(n) > fileSize-8 {
		return 0, fmt.Errorf("truncated: a header of %d bytes in a file of %d", n, fileSize)
	}
	return int64(n), nil
}

// parseEntries reads the JSON object of the header, key by key so that a tensor named twice is seen.
func parseEntries(text []byte, dataStart int64) ([]entry, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, errors.New("header is not a JSON object")
	}
	var entries []entry
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		name, ok := tok.(string)
		if err != nil || !ok {
			return nil, errors.New("header is not JSON")
		}
		if seen[name] {
			return nil, fmt.Errorf("tensor %s: named twice", show(name))
		}
		seen[name] = true
		if name == "__metadata__" {
			var skip json.RawMessage
			err = dec.Decode(&skip)
		} else {
			var e entry
			e, err = decodeEntry(dec, name, dataStart)
			entries = append(entries, e)
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", show(name), err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, errors.New("header is not JSON")
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("header holds more than one JSON value")
	}
	return entries, nil
}

// decodeEntry reads one tensor's description and checks it against itself.
func decodeEntry(dec *json.Decoder, name string, dataStart int64) (entry, error) {
	var h struct {
		DType   string  `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets []int64 `json:"data_offsets"`
	}
	if err := dec.Decode(&h); err != nil {
		return entry{}, fmt.Errorf("bad description: %s", oneLine(err))
	}
	if h.DType == "" || len(h.Offsets) != 2 {
		return entry{}, errors.New("dtype or data_offsets missing")
	}
	e := entry{name: name, dtype: h.DType, begin: h.Offsets[0], end: h.Offsets[1]}
	if e.begin < 0 || e.end < e.begin || e.end > 1<<62 {
		return entry{}, fmt.Errorf("data_offsets [%d, %d] are out of order", e.begin, e.end)
	}
	if len(h.Shape) > maxDims {
		return entry{}, fmt.Errorf("%d dimensions (at most %d)", len(h.Shape), maxDims)
	}
	elements := uint64(1)
	for _, d := range h.Shape {
		hi, lo := bits.Mul64(elements, uint64(d))
		if d < 0 || d > 1<<40 || hi != 0 || lo > 1<<58 {
			return entry{}, fmt.Errorf("shape %v is out of range", h.Shape)
		}
		elements = lo
		e.shape = append(e.shape, int(d))
	}
	if size := dtypeBytes[e.dtype]; size != 0 && int64(elements)*size != e.end-e.begin {
		return entry{}, fmt.Errorf("shape %v of %s needs %d bytes, data_offsets give %d", h.Shape, e.dtype, int64(elements)*size, e.end-e.begin)
	}
	e.begin += dataStart
	e.end += dataStart
	return e, nil
}

// checkCoverage sorts entries by place and checks that together they are the file's data: no overlap, no hole, no
// byte missing or left over.
func checkCoverage(entries []entry, dataStart, fileSize int64) error {
	slices.SortFunc(entries, func(a, b entry) int {
		switch {
		case a.begin != b.begin:
			return int(min(max(a.begin-b.begin, -1), 1))
		case a.end != b.end:
			return int(min(max(a.end-b.end, -1), 1))
		}
		return strings.Compare(a.name, b.name)
	})
	at := dataStart
	for _, e := range entries {
		switch {
		case e.end > fileSize:
			return fmt.Errorf("tensor %s: truncated: ends at byte %d of a file of %d", show(e.name), e.end, fileSize)
		case e.begin < at:
			return fmt.Errorf("tensor %s: starts at byte %d, inside the tensor before it", show(e.name), e.begin)
		case e.begin > at:
			return fmt.Errorf("tensor %s: %d bytes before it belong to no tensor", show(e.name), e.begin-at)
		}
		at = e.end
	}
	if at != fileSize {
		return fmt.Errorf("%d bytes after the last tensor", fileSize-at)
	}
	return nil
}

// show prints a name that came from a file: as it is where it is plain, quoted and cut where it is not.
func show(name string) string {
	const most = 200
	plain := len(name) > 0 && len(name) <= most
	for i := 0; plain && i < len(name); i++ {
		plain = name[i] > ' ' && name[i] < 0x7f
	}
	if plain {
		return name
	}
	return fmt.Sprintf("%.*q", most, name)
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", " ") }
