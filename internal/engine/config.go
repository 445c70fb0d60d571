package engine

import (
	"errors"
	"fmt"

	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/kv/cache"
	"larder/internal/sched"
)

// Runner computes. Launch queues a pass, with Config.Overlap one more than is under way; Wait waits for the oldest and
// returns one token per sequence with a Draw, in order; the slice is valid until the next call. The batch does not change
// until then. An error of either is final: the device is not asked again.
type Runner interface {
	Launch(*device.Batch) error
	Wait() ([]int32, error)
}

// Mover carries moves out. Notify's channel receives when Poll may have something to tell; Pending counts what was
// submitted and not told.
type Mover interface {
	Submit([]kv.Move)
	Poll(func(kv.Move, error)) int
	Notify() <-chan struct{}
	Pending() int
}

// Config makes an engine. It is copied by New.
type Config struct {
	Runner Runner
	Mover  Mover // nil without a host tier

	Vocab      int     // ids are below it
	ContextLen int     // most tokens of a request, prompt and output
	EOS        []int32 // the model's own end tokens

	Cache         cache.Config
	MaxRunning    int // most requests at once, and most sequences of one pass
	MaxQueued     int // most requests that wait besides
	StepTokens    int // most rows of one pass
	MinLoadTokens int // shorter hits on the host are computed instead of loaded
	Policy        sched.Policy
	Overlap       bool // prepare and launch a step while the one before is computed

	CheckSteps bool // check the invariants after every step; for tests and debugging
	Listener   Listener
}

// Validate reports what is wrong with the config.
func (c *Config) Validate() error {
	switch {
	case c.Runner == nil:
		return errors.New("engine: no model")
	case c.Mover == nil && c.Cache.HostBlocks > 0:
		return errors.New("engine: a host tier needs a mover")
	case c.Vocab < 1 || c.ContextLen < 2:
		return fmt.Errorf("engine: vocabulary of %d and context of %d tokens", c.Vocab, c.ContextLen)
	}
	if err := c.Cache.Validate(); err != nil {
		return err
	}
	s := c.sched()
	return s.Validate()
}

func (c *Config) sched() sched.Config {
	return sched.Config{
		MaxRunning:    c.MaxRunning,
		MaxQueued:     c.MaxQueued,
		StepTokens:    c.StepTokens,
		MinLoadTokens: c.MinLoadTokens,
		Overlap:       c.Overlap,
		NoHold:        c.Cache.NoPrefix,
		Policy:        c.Policy,
		Layout:        c.Cache.Layout,
		DeviceBlocks:  c.Cache.DeviceBlocks,
	}
}
