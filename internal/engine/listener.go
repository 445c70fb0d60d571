package engine

import (
	"time"

	"larder/internal/infer"
	"larder/internal/kv"
)

// Listener hears what the engine does. Each func may be nil. They are called on the engine's own goroutine: they must not block, call the engine, or keep what they are given.
type Listener struct {
	StepDone    func(StepInfo)
	RequestDone func(RequestInfo)
	MovesDone   func(MovesInfo)
}

// StepInfo tells of one pass of the model.
type StepInfo struct {
	Began   time.Time
	Took    time.Duration // from Began, or the result of the step before if that came later, to the end
	Plan    time.Duration // deciding which rows to run
	Compute time.Duration // from the launch, or the result of the step before if that came later, to the result
	Settle  time.Duration // publishing blocks and handing tokens out

	Sequences     int
	DecodeTokens  int
	PrefillTokens int

	Running, Loading, Waiting int // requests after the step
}

// RequestInfo tells of the end of an accepted request.
type RequestInfo struct {
	Request *infer.Request
	Finish  infer.FinishReason
	Err     error // with FinishAbort
	Usage   infer.Usage
}

// MovesInfo tells of blocks moved since the last time.
type MovesInfo struct {
	At     time.Time
	Done   [kv.NumTiers][kv.NumTiers]int // blocks moved, by [from][to]
	Failed [kv.NumTiers][kv.NumTiers]int
	Bytes  int64 // of those moved
}
