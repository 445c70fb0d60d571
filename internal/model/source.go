package model

import (
	"fmt"
	"slices"

	"larder/internal/device"
	"larder/internal/safetensors"
)

// Source is where a model's weights come from. Its methods are safe for concurrent use, except Close.
type Source interface {
	// Tensor describes the weight of a name; shape is what the model needs. It does no heavy work. The error is one
	// line that names the tensor and, where there is one, the file.
	Tensor(name string, shape []int) (device.Tensor, error)
	// Release says that a tensor's bytes were read for the last time.
	Release(name string)
	// Close frees what the source holds; no tensor of it may be used after.
	Close() error
}

// checkpoint is a Source over the files of a Hugging Face checkpoint.
type checkpoint struct{ *safetensors.Checkpoint }

// OpenCheckpoint opens the safetensors files in dir.
func OpenCheckpoint(dir string) (Source, error) {
	c, err := safetensors.Open(dir)
	if err != nil {
		return nil, err
	}
	return checkpoint{c}, nil
}

func (c checkpoint) Tensor(name string, shape []int) (device.Tensor, error) {
	t, err := c.Checkpoint.Tensor(name)
	if err != nil {
		return device.Tensor{}, err
	}
	if !slices.Equal(t.Shape, shape) {
		return device.Tensor{}, fmt.Errorf("%s: tensor %s: shape %v, but config.json asks for %v", t.File, name, t.Shape, shape)
	}
	return device.Tensor{Name: name, Shape: shape, DType: t.DType, Data: t.Data}, nil
}
