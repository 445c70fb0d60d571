package server

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"larder/internal/infer"
)

func itoa(i int) string { return strconv.Itoa(i) }

// job is one HTTP request, validated: the sequences in the order of the answer, grouped by prompt.
type job struct {
	seqs   []*sequence
	n      int  // sequences of one prompt
	list   bool // the native answer is a list
	stream bool
	start  time.Time
}

// newJob lays the groups out.
func newJob(groups [][]*sequence, list, stream bool, start time.Time) *job {
	j := &job{list: list, stream: stream, start: start, n: len(groups[0])}
	for _, g := range groups {
		for _, q := range g {
			q.index, q.start = len(j.seqs), start
			j.seqs = append(j.seqs, q)
		}
	}
	return j
}

func (j *job) prompts() int { return len(j.seqs) / j.n }

// run carries the job out and returns when every sequence has ended, or with the first error. onEvent, if set, is
// called after each event, one at a time, and once more for each sequence when it has ended.
func (s *Server) run(parent context.Context, b *Backend, j *job, onEvent func(*sequence) error) error {
	ctx, stopAll := context.WithCancelCause(parent)
	defer stopAll(nil)
	groups := make([]context.Context, j.prompts()) // the choices of one prompt are aborted together
	for i := range groups {
		var abort context.CancelCauseFunc
		groups[i], abort = context.WithCancelCause(ctx)
		ids := j.ids(i)
		if err := s.live.add(ids, abort); err != nil {
			return err
		}
		defer s.live.remove(ids)
	}
	if len(j.seqs) == 1 {
		return s.runOne(groups[0], b, j.seqs[0], onEvent)
	}
	if onEvent != nil {
		onEvent = serialized(onEvent)
	}
	var wg sync.WaitGroup
	for i, q := range j.seqs {
		wg.Go(func() {
			if err := s.runOne(groups[i/j.n], b, q, onEvent); err != nil {
				stopAll(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// over reports whether nothing follows the last words of q.
func (j *job) over(q *sequence) bool { return q.ended && len(j.seqs) == 1 }

// ids are the engine's names of prompt i's sequences.
func (j *job) ids(i int) []string {
	var ids []string
	for _, q := range j.seqs[i*j.n : (i+1)*j.n] {
		ids = append(ids, q.req.ID)
	}
	return ids
}

// serialized makes calls of f one at a time.
func serialized(f func(*sequence) error) func(*sequence) error {
	var mu sync.Mutex
	return func(q *sequence) error {
		mu.Lock()
		defer mu.Unlock()
		return f(q)
	}
}

// runOne runs a sequence to its end. A sequence that was aborted by name has ended well.
func (s *Server) runOne(ctx context.Context, b *Backend, q *sequence, onEvent func(*sequence) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Log.Error("request panicked", "rid", q.req.ID, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	usage, err := b.Generator.Generate(ctx, &q.req, func(ev infer.Event) error {
		now := time.Now()
		s.metrics.token(q, len(ev.Tokens), now)
		if err := q.take(&ev, now); err != nil || q.ended || onEvent == nil || ev.Finish != infer.NotFinished {
			return err
		}
		return onEvent(q)
	})
	q.usage = usage
	switch {
	case errors.Is(err, errStopString):
		err = nil
	case err != nil && errors.Is(context.Cause(ctx), errAborted):
		q.abort()
		err = nil
	case err == nil && !q.ended:
		err = errors.New("the engine ended a request without a reason")
	}
	s.metrics.finished(q, err)
	if err != nil || onEvent == nil {
		return err
	}
	return onEvent(q)
}
