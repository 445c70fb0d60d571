package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"sync"
)

// registry knows the live requests by id, so that they can be aborted and no id is used twice at once.
type registry struct {
	mu      sync.Mutex // guards cancels
	cancels map[string]context.CancelCauseFunc
}

// add registers ids that cancel ends, all or none.
func (g *registry) add(ids []string, cancel context.CancelCauseFunc) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, id := range ids {
		if _, taken := g.cancels[id]; taken {
			for _, added := range ids[:i] {
				delete(g.cancels, added)
			}
			return badParam("rid", "the request id %q is in use", id)
		}
		g.cancels[id] = cancel
	}
	return nil
}

func (g *registry) remove(ids []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		delete(g.cancels, id)
	}
}

// abort cancels one request; an id that nobody has is no error.
func (g *registry) abort(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if cancel, ok := g.cancels[id]; ok {
		cancel(errAborted)
	}
}

func (g *registry) abortAll() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, cancel := range g.cancels {
		cancel(errAborted)
	}
	return len(g.cancels)
}

func (g *registry) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.cancels)
}

// newID is a fresh request id: 32 hexadecimal digits, as the peers'.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
