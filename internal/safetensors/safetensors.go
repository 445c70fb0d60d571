// Package safetensors reads Hugging Face checkpoints: model.safetensors, or shards named by
// model.safetensors.index.json. It maps the files and hands out tensors as bytes of the mapping; it converts nothing
// and knows no model. Every size, offset and shape of a header is checked against the file when it is opened, so a
// truncated or forged file is one line of error and never a fault later.
//
// Start at Open; OpenFile reads a single file.
package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"larder/internal/arch"
)

// ErrNoTensor is wrapped when a checkpoint has no tensor of a name.
var ErrNoTensor = errors.New("no such tensor in the checkpoint")

// Tensor is one tensor of a mapped file. Data is row-major and little-endian, valid until Close, aligned to nothing.
type Tensor struct {
	Name  string
	File  string // path of the file that holds it, for errors
	DType arch.DType
	Shape []int
	Data  []byte
}

// File is one mapped file. Its methods are safe for concurrent use, except Close.
type File struct {
	path    string
	data    []byte // the whole file
	entries map[string]entry
}

// OpenFile maps a file and checks its header.
func OpenFile(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	var head [8]byte
	if info.Size() >= 8 {
		if _, err := f.ReadAt(head[:], 0); err != nil {
			return nil, err
		}
	}
	// Looked at before mapping, so that a large file of another kind costs nothing.
	if _, err := headerSize(head[:], info.Size()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	data, err := mapFile(f, info.Size())
	if err != nil {
		return nil, fmt.Errorf("%s: cannot map: %w", path, err)
	}
	entries, err := parseHeader(data, info.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), unmap(data))
	}
	file := &File{path: path, data: data, entries: make(map[string]entry, len(entries))}
	for _, e := range entries {
		file.entries[e.name] = e
	}
	return file, nil
}

// Names lists the file's tensors, sorted.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.entries)) }

// Tensor finds a tensor. The error is one line naming the file and the tensor; it wraps ErrNoTensor where there is
// none, and is of another kind where its type is not BF16, F16 or F32.
func (f *File) Tensor(name string) (Tensor, error) {
	e, ok := f.entries[name]
	if !ok {
		return Tensor{}, fmt.Errorf("%s: tensor %s: %w", f.path, show(name), ErrNoTensor)
	}
	dtype := dtypeOf(e.dtype)
	if dtype == 0 {
		return Tensor{}, fmt.Errorf("%s: tensor %s: dtype %s is not supported (supported: BF16, F16, F32)", f.path, show(name), show(e.dtype))
	}
	return Tensor{Name: name, File: f.path, DType: dtype, Shape: slices.Clone(e.shape), Data: f.data[e.begin:e.end:e.end]}, nil
}

// Release says that a tensor's bytes were read for the last time: their pages leave the process. Reading them again
// is allowed and slow.
func (f *File) Release(name string) {
	if e, ok := f.entries[name]; ok {
		release(f.data, e.begin, e.end)
	}
}

// Close unmaps the file. No tensor of it may be used after.
func (f *File) Close() error {
	data := f.data
	f.data, f.entries = nil, nil
	return unmap(data)
}

// Checkpoint is the tensors of a folder. Its methods are safe for concurrent use, except Close.
type Checkpoint struct {
	dir   string
	files []*File
	where map[string]*File // by tensor name
}

// Open maps the checkpoint in dir: model.safetensors or, where there is none, the shards that
// model.safetensors.index.json names.
func Open(dir string) (*Checkpoint, error) {
	single, index := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "model.safetensors.index.json")
	if _, err := os.Stat(single); err == nil {
		return openSingle(dir, single)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	text, err := os.ReadFile(index)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: no model.safetensors and no model.safetensors.index.json", dir)
	}
	if err != nil {
		return nil, err
	}
	return openShards(dir, index, text)
}

func openSingle(dir, path string) (*Checkpoint, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	c := &Checkpoint{dir: dir, files: []*File{f}, where: make(map[string]*File, len(f.entries))}
	for name := range f.entries {
		c.where[name] = f
	}
	return c, nil
}

func openShards(dir, index string, text []byte) (*Checkpoint, error) {
	shards, err := parseIndex(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", index, err)
	}
	c := &Checkpoint{dir: dir, where: map[string]*File{}}
	for _, shard := range slices.Sorted(maps.Keys(shards)) {
		f, err := OpenFile(filepath.Join(dir, shard))
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.files = append(c.files, f)
		for _, name := range shards[shard] {
			if _, ok := f.entries[name]; !ok {
				err := fmt.Errorf("%s: tensor %s: %w, though %s says so", f.path, show(name), ErrNoTensor, filepath.Base(index))
				return nil, errors.Join(err, c.Close())
			}
			c.where[name] = f
		}
	}
	return c, nil
}

// parseIndex reads which shard holds which tensors.
func parseIndex(text []byte) (map[string][]string, error) {
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("not an index: %s", oneLine(err))
	}
	if len(index.WeightMap) == 0 {
		return nil, errors.New("not an index: weight_map is missing or empty")
	}
	shards := map[string][]string{}
	for name, shard := range index.WeightMap {
		// An index from elsewhere must not reach outside its folder.
		if shard == "" || shard == "." || shard != filepath.Base(shard) || !filepath.IsLocal(shard) {
			return nil, fmt.Errorf("tensor %s: %q is not a file name", show(name), shard)
		}
		shards[shard] = append(shards[shard], name)
	}
	for _, names := range shards {
		slices.Sort(names)
	}
	return shards, nil
}

// Names lists the checkpoint's tensors, sorted.
func (c *Checkpoint) Names() []string { return slices.Sorted(maps.Keys(c.where)) }

// Tensor finds a tensor, with the errors of File.Tensor.
func (c *Checkpoint) Tensor(name string) (Tensor, error) {
	f, ok := c.where[name]
	if !ok && len(c.files) == 1 {
		return c.files[0].Tensor(name)
	}
	if !ok {
		return Tensor{}, fmt.Errorf("%s: tensor %s: %w", filepath.Join(c.dir, "model.safetensors.index.json"), show(name), ErrNoTensor)
	}
	return f.Tensor(name)
}

// Release is File.Release.
func (c *Checkpoint) Release(name string) {
	if f, ok := c.where[name]; ok {
		f.Release(name)
	}
}

// Close unmaps all files.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	c.files, c.where = nil, nil
	return errors.Join(errs...)
}
