package cpu

import (
	"sync"
	"sync/atomic"
)

// team is the worker goroutines of a device. They live as long as it, so no step starts any; the caller of run is one
// of them.
type team struct {
	mu   sync.Mutex // one job at a time
	size int
	wake []chan *job
	done sync.WaitGroup
}

// job is tasks 0 to n-1, handed out in order to whoever is free. Which worker gets which task never changes a result.
type job struct {
	next atomic.Int64
	n    int64
	do   func(worker, task int)
	left sync.WaitGroup
}

func newTeam(size int) *team {
	t := &team{size: size}
	for w := 1; w < size; w++ {
		c := make(chan *job, 1)
		t.wake = append(t.wake, c)
		t.done.Add(1)
		go func() {
			defer t.done.Done()
			for j := range c {
				j.work(w)
				j.left.Done()
			}
		}()
	}
	return t
}

func (j *job) work(worker int) {
	for {
		i := j.next.Add(1) - 1
		if i >= j.n {
			return
		}
		j.do(worker, int(i))
	}
}

// run does n tasks and returns when all are done. do is called with the worker's number, below size.
func (t *team) run(n int, do func(worker, task int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := &job{n: int64(n), do: do}
	others := min(n-1, len(t.wake))
	for _, c := range t.wake[:max(others, 0)] {
		j.left.Add(1)
		c <- j
	}
	j.work(0)
	j.left.Wait()
}

// rows does rows [lo, hi) of n in parts of at most so many.
func (t *team) rows(n, most int, do func(worker, lo, hi int)) {
	part := min(max((n+4*t.size-1)/(4*t.size), 1), most)
	t.run((n+part-1)/part, func(worker, task int) {
		do(worker, task*part, min((task+1)*part, n))
	})
}

func (t *team) close() {
	for _, c := range t.wake {
		close(c)
	}
	t.done.Wait()
}
