// Package infer is the in-process contract between those who want tokens (server, study) and the one who makes them
// (engine). It knows token ids only: no text, no JSON, no device.
//
// Start at Request and Generator; Placer is the second, optional power that the study needs.
package infer

import (
	"context"
	"errors"
	"time"

	"larder/internal/kv"
	"larder/internal/sample"
)

// Errors that Generate, Place and Flush return, wrapped with detail. None of them leaves anything behind: no block,
// no queue entry.
var (
	ErrQueueFull = errors.New("the request queue is full")          // retry later
	ErrTooLong   = errors.New("the request is longer than allowed") // final
	ErrInvalid   = errors.New("invalid request")                    // final
	ErrClosed    = errors.New("the engine is shutting down")        // final here
	ErrDevice    = errors.New("the device failed")                  // final for the request; Health reports it too when the device is gone for all
	ErrInUse     = errors.New("in use by a running request")        // retry later
	ErrNotCached = errors.New("the prefix is not in any tier")      // Place: nothing to place
	ErrNoRoom    = errors.New("no room in the tier")                // Place: the tier is too small
)

// Request asks for a continuation of Tokens. The engine does not change it and keeps it until the last event.
type Request struct {
	ID     string // names the request in what listeners hear; chosen by the caller
	Tokens []int32
	Salt   string // prefix-cache partition; "" shares with all

	Sampling  sample.Params
	MaxNew    int // most tokens to make; at least 1
	MinNew    int // stop tokens are banned before so many
	StopIDs   []int32
	IgnoreEOS bool // the model's own EOS ids do not stop it
}

// FinishReason says why a request ended.
type FinishReason uint8

// The ways in which a request ends.
const (
	NotFinished  FinishReason = iota
	FinishStop                // a stop token or EOS; Event.StopID names it
	FinishLength              // MaxNew or the context length reached
	FinishAbort               // cancelled, or failed; Generate's error says which
)

// Event brings new tokens of one request. Events come in token order; exactly one, the last, has a Finish.
type Event struct {
	Tokens []int32 // new since the last event; valid only during the call; a stop token is included
	Finish FinishReason
	StopID int32 // the token that stopped it, with FinishStop; else -1
	Usage  Usage
}

// Usage is what one request cost so far. Cached.Device + Cached.Host + Computed = PromptTokens once prefill is done.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	Cached           Cached
	Computed         int // prompt tokens that went through the model the first time (not after a retraction)
	Retractions      int // times the request lost its KV to others and was computed again
	Timing           Timing
}

// Cached counts prompt tokens that were not computed, by the tier that held them when the request was admitted. What
// a failed load was to bring is computed and not counted here.
type Cached struct{ Device, Host int }

// Total is the sum over tiers.
func (c Cached) Total() int { return c.Device + c.Host }

// Timing splits a request's time. Zero times have not happened yet.
type Timing struct {
	Queued     time.Time // in the engine's inbox
	Admitted   time.Time // blocks reserved, loads ordered
	Loaded     time.Time // its loads from slower tiers landed (= Admitted when there were none)
	Computing  time.Time // first step that held one of its rows began
	FirstToken time.Time
	Finished   time.Time
}

// Generator makes tokens.
type Generator interface {
	// Generate runs r and calls emit for each event, in order, on the calling goroutine. It returns after the last
	// event, with the final usage, also on error. Cancelling ctx, or an error from emit, stops the request, frees its
	// blocks and is returned. Safe for concurrent use.
	Generate(ctx context.Context, r *Request, emit func(Event) error) (Usage, error)
}

// Placement is where a prefix shall live.
type Placement uint8

// The placements. OnlyHost and OnlyDevice mean that tier and no other.
const (
	Nowhere Placement = iota
	OnlyDevice
	OnlyHost
)

// Residency counts a prefix's whole blocks by where they are.
type Residency struct {
	Blocks     int // whole blocks that the prefix has
	Device     int // blocks on the device only
	Host       int // blocks on the host only
	Both       int
	Missing    int // blocks in no tier
	BlockBytes int64
}

// Placer forces residency. It exists for the study, which must prove where a prefix was.
type Placer interface {
	// Place returns when every whole block of tokens is in that placement. It fails with ErrNotCached, ErrInUse or
	// ErrNoRoom; what it had moved by then stays moved.
	Place(ctx context.Context, salt string, tokens []int32, to Placement) error
	// Residency reads back where the blocks are.
	Residency(ctx context.Context, salt string, tokens []int32) (Residency, error)
}

// TierStats counts one tier's blocks. Free + Leased + Cached = Total; Leased are in use by running requests or
// moves, Cached hold reusable KV that nobody uses now.
type TierStats struct {
	Total, Free, Leased, Cached  int
	HitTokens                    uint64 // prompt tokens served from here since the start
	EvictedBlocks, DroppedBlocks uint64 // evicted: to make room; dropped: the content is in no tier any more
	LoadedBlocks, StoredBlocks   uint64 // moves out of here towards the device; moves into here
	LoadedBytes, StoredBytes     uint64
	FailedLoads, FailedStores    uint64
	LateLoads, SkippedStores     uint64 // failed at their deadline; not ordered because too many waited
}

// Stats is a snapshot of the engine.
type Stats struct {
	Running, Waiting, Loading                     int
	Tiers                                         [kv.NumTiers]TierStats
	BlockTokens                                   int
	PromptTokens, ComputedTokens, GeneratedTokens uint64
	Requests, Aborted, Retracted                  uint64
	Steps                                         uint64
	InvariantChecks                               uint64 // times the invariants were checked and held
}

// Checker is a power that a Control may have besides.
type Checker interface {
	// Check walks the engine's whole state between two steps and names the first invariant that does not hold.
	Check(ctx context.Context) error
}

// Control is what an operator may ask of an engine.
type Control interface {
	// Flush empties every tier. It fails with ErrInUse while a request lives, unless ctx has a deadline: then it
	// waits for idleness until that.
	Flush(ctx context.Context) error
	// Stats is a consistent snapshot taken between two steps.
	Stats(ctx context.Context) (Stats, error)
	// Health is nil while the engine can serve; it reports the device's failure or ErrClosed otherwise. It asks the
	// loop itself, so a loop that hangs shows as ctx's error.
	Health(ctx context.Context) error
}
