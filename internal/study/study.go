// Package study measures recompute, host memory and HBM side by side: the same prompts through the same server and
// client, with the KV of their prefix forced into one tier (or none) and read back before each burst. It fills a
// record; it serves nothing, renders nothing and parses no flags.
//
// Start at Run. Env holds everything that it is given, so that a test can give fakes.
package study

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/loadgen"
	"larder/internal/record"
	"larder/internal/workload"
)

// ErrChecks says that the study ran to its end but some of its checks did not hold; it is wrapped with their names.
// The record is complete all the same.
var ErrChecks = errors.New("checks failed")

// Driver sends requests over HTTP. loadgen.Run is one through DriverFunc.
type Driver interface {
	Run(ctx context.Context, cfg loadgen.Config, items []workload.Item) (*loadgen.Result, error)
}

// DriverFunc makes a Driver of a function.
type DriverFunc func(ctx context.Context, cfg loadgen.Config, items []workload.Item) (*loadgen.Result, error)

// Run calls f.
func (f DriverFunc) Run(ctx context.Context, cfg loadgen.Config, items []workload.Item) (*loadgen.Result, error) {
	return f(ctx, cfg, items)
}

// Roofline is the work that a forward pass cannot avoid; *arch.Config implements it.
type Roofline interface {
	// PrefillFLOPs is the floating point operations of newTokens tokens behind context cached ones.
	PrefillFLOPs(newTokens, context int) float64
	// DecodeBytes is the bytes read for one token of each of batch sequences with so much context.
	DecodeBytes(batch, context int) float64
}

// Env is what a study is given: a running server and the powers to force and prove residency.
type Env struct {
	BaseURL string        // of the server
	Driver  Driver        // reaches it over HTTP
	Placer  infer.Placer  // forces and reads back residency
	Control infer.Control // flushes and counts; an infer.Checker too, if it has that power
	Tap     *Tap          // sees the engine's own times and counts; nil: the time split is absent

	Tool        string
	Host        record.Host // Device fields are filled from Device
	Device      device.Info
	Ceilings    []device.Ceiling
	Model       *arch.Config // as served
	FullLayers  int          // before any cut
	Weights     string       // "dummy" or a path's last element
	WeightBytes int64
	Roofline    Roofline // nil: limits are absent
	Layout      kv.Layout
	WritePolicy string

	KV       []record.KVRow // from kvbench, measured before; may be nil
	KVReason string         // why KV is nil

	Progress Progress // may be nil
}

func (e *Env) validate() error {
	switch {
	case e.Driver == nil || e.Placer == nil || e.Control == nil:
		return errors.New("study: the driver, the placer and the control must be set")
	case e.Model == nil:
		return errors.New("study: the model must be set")
	}
	return e.Layout.Validate()
}

// Progress hears how far a study is. Calls come one at a time.
type Progress interface {
	Update(Update)
}

// Update is the state of a running study.
type Update struct {
	Phase    string        // what is being done now
	Fraction float64       // of the predicted work, 0 to 1
	Elapsed  time.Duration // since the start
	ETA      time.Duration // left, by the prediction corrected with what was measured; 0 at the end
}

// Run carries out the study. It always returns a record when it has begun to measure: after a failed check with
// ErrChecks, after a cancelled context or a broken server with that error and Complete unset.
func Run(ctx context.Context, cfg Config, env Env) (*record.Study, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := env.validate(); err != nil {
		return nil, err
	}
	r, err := newRun(ctx, &cfg, &env)
	if err != nil {
		return nil, err
	}
	err = r.measure(ctx)
	r.conclude(ctx, err)
	if err != nil {
		return r.out, err
	}
	if failed := r.out.FailedChecks(); len(failed) > 0 {
		return r.out, fmt.Errorf("%w: %s", ErrChecks, strings.Join(failed, "; "))
	}
	return r.out, nil
}
