// Package device is the contract between the engine and the machine that computes: memory with streams, and the
// forward pass as a handful of fused operations. There is no tensor class; a device keeps its own scratch memory and
// lays weights out as it likes. Package device/cpu is the oracle for every other device; package devicetest is the
// suite that each of them passes.
//
// Start at Device. Memory is for those who only move bytes (kv/xfer, kvbench); Compute is for package model.
package device

import (
	"errors"
	"fmt"
	"time"

	"larder/internal/arch"
	"larder/internal/kv"
	"larder/internal/sample"
)

// Errors that every device uses, wrapped with detail.
var (
	ErrOutOfMemory = errors.New("out of device memory") // the call changed nothing
	ErrLost        = errors.New("device lost")          // final: every later call fails
)

// Info describes a device for reports.
type Info struct {
	Kind        string // "cpu" or "cuda"
	Name        string // the processor's own name
	Units       int    // worker threads, or SMs
	MemoryBytes int64
	Kernels     string // which kernel family was chosen, for example "avx512-bf16"
	TierNote    string // what "device" and "host" memory are here, when a reader could be misled
}

// Ceiling is a limit measured on this machine: the denominator of every "share of limit" that a report prints.
type Ceiling struct {
	Name  string  // one of the Ceiling… names
	Value float64 // in Unit
	Unit  string  // "FLOP/s" or "B/s"
	How   string  // one line: what was run
}

// Names of ceilings. Each device measures all of them.
const (
	CeilingGEMM       = "gemm"           // dense matrix product in the compute dtype
	CeilingMemory     = "memory_read"    // streaming read of device memory
	CeilingHostToDev  = "host_to_device" // one direction alone, large copies
	CeilingDevToHost  = "device_to_host"
	CeilingCopyDuplex = "copy_duplex" // both directions at once, sum
)

// Buffer is a piece of memory that a device gave out.
type Buffer interface {
	Size() int64
	Free() error // idempotent; nothing may use the buffer any more
}

// Mapped is a Buffer that the CPU can touch.
type Mapped interface {
	Buffer
	Bytes() []byte
}

// Memory gives out memory and streams. Safe for use by one goroutine at a time; NewStream is safe beside the others.
type Memory interface {
	// Alloc gives device memory, aligned to 64 bytes at least and zeroed only where the system does so anyway.
	Alloc(bytes int64) (Buffer, error)
	// AllocHost gives memory of the host that copies reach at full speed (pinned on a GPU). It is Mapped.
	AllocHost(bytes int64) (Buffer, error)
	// NewStream gives a queue for copies. The name is for traces.
	NewStream(name string) (Stream, error)
	// CopyMethods are the ways in which CopyMany can be carried out here; CopyEach is always among them.
	CopyMethods() []CopyMethod
}

// Pinner is implemented by a Memory whose AllocHost takes a while for a large piece: it says how far it is.
type Pinner interface {
	// AllocHostSlowly is AllocHost; progress hears how many bytes are ready, from any goroutine.
	AllocHostSlowly(bytes int64, progress func(done int64)) (Buffer, error)
}

// Span is one piece of a CopyMany: N bytes from Src on in the source go to Dst on in the destination.
type Span struct{ Dst, Src, N int64 }

// CopyMethod is how a CopyMany is carried out. Which is fastest depends on the machine, the size of the pieces and
// their number: kv/xfer measures it.
type CopyMethod uint8

// The methods.
const (
	CopyEach   CopyMethod = iota // a copy for each piece
	CopyBatch                    // one call for all of them; the copy engines move the bytes
	CopyKernel                   // a kernel that reads and writes the host's memory itself
)

// String is the method's name in flags and reports.
func (m CopyMethod) String() string {
	switch m {
	case CopyEach:
		return "each"
	case CopyBatch:
		return "batch"
	case CopyKernel:
		return "kernel"
	}
	return fmt.Sprintf("method(%d)", uint8(m))
}

// Stream is a queue of copies that run in order, asynchronously to the caller and to other streams. Both buffers of
// a copy stay valid until an event after it is done. Methods are for one goroutine at a time.
type Stream interface {
	Copy(dst Buffer, dstOff int64, src Buffer, srcOff, n int64)
	// Copy2D moves rows pieces of width bytes, dstPitch and srcPitch bytes apart.
	Copy2D(dst Buffer, dstOff, dstPitch int64, src Buffer, srcOff, srcPitch, width int64, rows int)
	// CopyMany moves all pieces, in any order; no two may overlap in the destination. A method that the device has not, or
	// that cannot move these pieces, is CopyEach. The list must not change until an event after it is done.
	CopyMany(dst, src Buffer, pieces []Span, how CopyMethod)
	// Wait makes what is queued from now on start after e.
	Wait(e Event)
	// Record marks the point behind all that is queued by now.
	Record() Event
	// Close waits for all that is queued, then frees the stream.
	Close() error
}

// Event is a point in a stream or after a pass. Its methods are safe for concurrent use.
type Event interface {
	Done() bool
	// Wait blocks until done and reports the first error before the point.
	Wait() error
	// Time is when the point was reached, on one clock for all events of a device. It is valid once Done.
	Time() time.Duration
}

// Tensor is where a weight's values come from: checkpoint bytes, or, when Data is nil, a generator (dummy weights,
// see DummyValue) that each device can run by itself and that gives the same values everywhere.
type Tensor struct {
	Name  string
	Shape []int
	DType arch.DType
	Data  []byte // row-major little-endian; may be a mapped file: a device copies what it keeps
	Dummy Dummy
}

// Matrix is a weight of shape [N, K] on a device: y = x Wᵀ takes K to N.
type Matrix interface {
	Shape() (n, k int)
	Size() int64 // bytes on the device
}

// Vector is a one-dimensional weight on a device.
type Vector interface {
	Len() int
	Size() int64
}

// Experts holds E gate, up and down projections: y = (silu(x Wgᵀ) * (x Wuᵀ)) Wdᵀ. A dense MLP has one expert.
type Experts interface {
	Shape() (experts, hidden, intermediate int)
	Size() int64
}

// Weights uploads weights. Values are kept in bf16 whatever the checkpoint's type. Safe for concurrent use.
type Weights interface {
	// Matrix concatenates the parts' rows (Q, K and V make one matrix).
	Matrix(parts ...Tensor) (Matrix, error)
	Vector(t Tensor) (Vector, error)
	// Experts takes one tensor [intermediate, hidden] per expert for gate and up, [hidden, intermediate] for down.
	Experts(gate, up, down []Tensor) (Experts, error)
}

// Device is a machine that computes.
type Device interface {
	Memory
	Weights
	Info() Info
	// NewCompute prepares the forward pass of a model over the KV pool in spec.
	NewCompute(spec ComputeSpec) (Compute, error)
	// Ceilings measures the limits of the machine; it takes a second or two and wants it otherwise idle.
	Ceilings() ([]Ceiling, error)
	Close() error
}

// ComputeSpec is what a forward pass needs to know before the first batch.
type ComputeSpec struct {
	Config    *arch.Config
	Layout    kv.Layout
	KV        Buffer // the device tier's pool: Layout.BlockBytes() times its blocks
	MaxTokens int    // most rows of one pass
	MaxSeqs   int    // most sequences of one pass
}

// AttentionWeights are one layer's attention weights.
type AttentionWeights struct {
	Norm         Vector // input RMSNorm [hidden]
	QKV          Matrix // [(heads + 2 kv heads) * dim, hidden]
	QNorm, KNorm Vector // per-head RMSNorm [dim]
	O            Matrix // [hidden, heads * dim]
}

// MLPWeights are one layer's MLP weights; Router is nil for a dense layer.
type MLPWeights struct {
	Norm    Vector // post-attention RMSNorm [hidden]
	Router  Matrix // [experts, hidden]
	Experts Experts
}

// HeadWeights turn hidden rows into logits.
type HeadWeights struct {
	Norm Vector // final RMSNorm [hidden]
	Out  Matrix // [vocab, hidden]; the embedding itself when tied
}

// Seq is one sequence's part of a pass.
type Seq struct {
	Blocks  []kv.BlockID // device blocks of tokens [0, Context+Tokens), in order
	Context int          // tokens whose K and V are in the pool already
	Tokens  int          // rows of this pass, at least 1: positions Context to Context+Tokens-1
	Draw    *sample.Draw // sample after the last row; nil: the pass only fills KV
}

// Batch is one forward pass: the rows of all sequences, one after another.
type Batch struct {
	IDs   []int32 // token id of each row; the sum of Seqs' Tokens. Below 0: see Drawn
	Seqs  []Seq
	After []Event // loads that must land before attention reads KV
}

// Drawn is the id that stands for the token of a draw of the pass before, counted from 0 over its sequences that have
// one: that token need not be known yet.
func Drawn(draw int) int32 { return int32(-1 - draw) }

// Compute runs forward passes in the order Begin, Embed, then Attention and MLP per layer, Head, End. Calls only queue
// work; errors of any kind come from Begin (the batch is wrong: nothing was done) or from the Pass. The hidden state of a
// pass is one [rows, hidden] matrix that stays inside: Embed sets it, Attention and MLP add to it.
//
// A pass may begin before the one before it is over, so that the device finds it ready: what is queued runs in order.
// The batch and all it points to must not change until its Pass is over. Calls are for one goroutine at a time.
//
// What a row becomes depends on its sequence's tokens alone, bit for bit: not on chunking, block numbers, block size
// or other sequences of the batch.
type Compute interface {
	Begin(b *Batch) error
	Embed(table Matrix)
	// Attention adds O(softmax(q kᵀ / √dim) v) of norm(x), after per-head QK-norm and rotate-half RoPE, and writes K
	// and V of the new rows to the pool.
	Attention(layer int, w *AttentionWeights)
	// MLP adds the dense or routed MLP of norm(x). Routing: softmax over all experts in fp32, top k, renormalised when
	// the config says so; equal probabilities go to the lower expert.
	MLP(w *MLPWeights)
	// Head makes logits for the last row of each sequence that has a Draw, and no others.
	Head(w *HeadWeights)
	// End queues the end of the pass. A pass that is left without End never was: it is not "the pass before".
	End() Pass
}

// Pass is a forward pass that is queued. It is valid until the second Begin after its own.
type Pass interface {
	// Wait waits until the pass is over and returns one token per sequence with a Draw, in order: -1 where the logits are
	// not numbers. It may be called on any goroutine, and again; the slice is valid as long as the Pass.
	Wait() ([]int32, error)
}

// LogitReader is implemented by a Compute whose last pass's logits can be read back, for tests.
type LogitReader interface {
	// Logits are those of the i-th sequence with a Draw, valid until the next Begin.
	Logits(i int) []float32
}

// HiddenAccess is implemented by a Compute whose hidden state tests may set and read between operations.
type HiddenAccess interface {
	SetHidden(rows [][]float32)
	Hidden() [][]float32
}
