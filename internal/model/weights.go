package model

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"larder/internal/arch"
	"larder/internal/device"
)

// Weights are a model's weights on a device.
type Weights struct {
	Config *arch.Config
	Embed  device.Matrix // [vocab, hidden]
	Layers []Layer
	Head   device.HeadWeights // Head.Out is Embed when the config ties them
}

// Layer is one decoder layer.
type Layer struct {
	Attention device.AttentionWeights
	MLP       device.MLPWeights
}

// Bytes is the memory that the weights take on the device; a tied head counts once.
func (w *Weights) Bytes() int64 {
	n := w.Embed.Size() + w.Head.Norm.Size()
	if !w.Config.TieWordEmbeddings {
		n += w.Head.Out.Size()
	}
	for l := range w.Layers {
		a, m := &w.Layers[l].Attention, &w.Layers[l].MLP
		n += a.Norm.Size() + a.QKV.Size() + a.QNorm.Size() + a.KNorm.Size() + a.O.Size() + m.Norm.Size() + m.Experts.Size()
		if m.Router != nil {
			n += m.Router.Size()
		}
	}
	return n
}

// Load uploads the weights of cfg from src, several tensors at once. Before anything is uploaded every tensor is
// looked up, so that a missing one, a wrong shape or a truncated file ends the load at once with one line that names
// file and tensor. progress may be nil; it is called by one goroutine at a time, with bytes of bf16.
func Load(ctx context.Context, dev device.Weights, cfg *arch.Config, src Source, progress func(done, total int64)) (*Weights, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("model %s: %w", cfg.Name, err)
	}
	w := &Weights{Config: cfg.Clone()}
	units := plan(w)
	tensors := make([][][]device.Tensor, len(units))
	for i := range units {
		var err error
		if tensors[i], err = lookUp(src, &units[i]); err != nil {
			return nil, err
		}
	}
	l := loader{dev: dev, src: src, progress: progress}
	for i := range units {
		l.total += units[i].bytes()
	}
	if err := l.run(ctx, units, tensors); err != nil {
		return nil, err
	}
	if cfg.TieWordEmbeddings {
		w.Head.Out = w.Embed
	}
	return w, nil
}

func lookUp(src Source, u *unit) ([][]device.Tensor, error) {
	groups := make([][]device.Tensor, len(u.groups))
	for g, parts := range u.groups {
		for _, p := range parts {
			t, err := src.Tensor(p.name, p.shape)
			if err != nil {
				return nil, err
			}
			groups[g] = append(groups[g], t)
		}
	}
	return groups, nil
}

// loader uploads units with as many goroutines as there are processors.
type loader struct {
	dev      device.Weights
	src      Source
	progress func(done, total int64)
	total    int64

	mu   sync.Mutex // guards done, err and calls of progress
	done int64
	err  error // the first one
}

func (l *loader) run(ctx context.Context, units []unit, tensors [][][]device.Tensor) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(units)) {
		workers.Go(func() {
			for i := range next {
				if err := l.upload(&units[i], tensors[i]); err != nil {
					cancel()
				}
			}
		})
	}
	for i := range units {
		select {
		case next <- i:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			l.fail(ctx.Err())
			break
		}
	}
	close(next)
	workers.Wait()
	return l.err
}

// fail keeps the first error.
func (l *loader) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

func (l *loader) upload(u *unit, tensors [][]device.Tensor) error {
	if err := u.put(l.dev, tensors); err != nil {
		err = fmt.Errorf("tensor %s: %w", u.groups[0][0].name, err)
		l.fail(err)
		return err
	}
	for _, group := range tensors {
		for i := range group {
			l.src.Release(group[i].Name)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done += u.bytes()
	if l.progress != nil {
		l.progress(l.done, l.total)
	}
	return nil
}
