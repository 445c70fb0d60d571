package engine

import (
	"sync"

	"larder/internal/infer"
	"larder/internal/sched"
)

// request is a caller's side of a sequence.
type request struct {
	seq  *sched.Seq
	mail mail
}

// letter is the news of one request since its reader looked last.
type letter struct {
	tokens []int32
	finish infer.FinishReason
	stopID int32
	usage  infer.Usage
	err    error
	last   bool // nothing comes after it
}

// mail takes letters from the loop to the caller of Generate. It never blocks the loop: a slow reader finds more
// tokens in its next letter.
type mail struct {
	mu   sync.Mutex // guards next
	next letter
	wake chan struct{} // holds one token while next has news
}

func (m *mail) put(o *sched.Output, usage infer.Usage) {
	m.mu.Lock()
	n := &m.next
	if o.Token >= 0 {
		n.tokens = append(n.tokens, o.Token)
	}
	n.finish, n.stopID, n.err, n.usage = o.Finish, o.StopID, o.Err, usage
	n.last = o.Finish != infer.NotFinished
	m.mu.Unlock()
	m.ring()
}

// refuse ends a request that was never accepted.
func (m *mail) refuse(err error) {
	m.mu.Lock()
	m.next.err, m.next.last = err, true
	m.mu.Unlock()
	m.ring()
}

func (m *mail) ring() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// take gives the news and keeps buf for the tokens to come.
func (m *mail) take(buf []int32) letter {
	m.mu.Lock()
	l := m.next
	m.next = letter{tokens: buf[:0]}
	m.mu.Unlock()
	return l
}
