package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"larder/internal/infer"
)

// order asks the loop to do something between its turns: try is called until it says done.
type order struct {
	ctx   context.Context
	try   func() (done bool, err error)
	reply chan error // capacity 1
}

type cancellation struct {
	request *request
	cause   error
}

// incoming is what came in: requests before the cancellations of them.
type incoming struct {
	requests []*request
	cancels  []cancellation
	orders   []*order
}

// inbox is how everybody else reaches the loop.
type inbox struct {
	limit int           // most requests inside
	wake  chan struct{} // holds one token while there is something inside
	full  atomic.Bool   // there is something inside; read without the lock
	shut  atomic.Bool   // the loop shall end when nothing is left to do

	mu      sync.Mutex // guards what follows
	next    incoming
	refusal error // why no request is taken any more
	ended   bool  // the loop is gone: no order is taken either
}

func (b *inbox) request(r *request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refusal != nil {
		return b.refusal
	}
	if len(b.next.requests) >= b.limit {
		return fmt.Errorf("%w: %d requests in the inbox", infer.ErrQueueFull, b.limit)
	}
	b.next.requests = append(b.next.requests, r)
	b.ring()
	return nil
}

func (b *inbox) cancel(r *request, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next.cancels = append(b.next.cancels, cancellation{r, cause})
	b.ring()
}

func (b *inbox) order(o *order) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return infer.ErrClosed
	}
	b.next.orders = append(b.next.orders, o)
	b.ring()
	return nil
}

// refuse turns requests away from now on; the first reason stays.
func (b *inbox) refuse(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refusal == nil {
		b.refusal = err
	}
}

// close refuses requests and lets the loop end when nothing is left to do.
func (b *inbox) close() {
	b.refuse(infer.ErrClosed)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shut.Store(true)
	b.ring()
}

func (b *inbox) ring() {
	b.full.Store(true)
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take gives what is inside and keeps buf for what comes. With last set, nothing comes any more.
func (b *inbox) take(buf incoming, last bool) incoming {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.next
	b.next = buf
	b.ended = b.ended || last
	b.full.Store(false)
	return l
}

// emptied is the same memory with nothing in it.
func (l incoming) emptied() incoming {
	clear(l.requests)
	clear(l.cancels)
	clear(l.orders)
	return incoming{l.requests[:0], l.cancels[:0], l.orders[:0]}
}
