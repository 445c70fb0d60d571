package cpu

import (
	"sync"
	"sync/atomic"
)

// team is the worker goroutines of a device. They live as long as it, so no step starts any; the caller of run is one
// of them. Idle workers are parked and do not spin: on a machine that others use as well, a spinning worker takes the
// core from the one who has work.
type team struct {
	mu   sync.Mutex // one job at a time
	size int
	wake []chan struct{}
	job  job // under mu
	done sync.WaitGroup
}

// job is parts 0 to n-1, handed out in order to whoever is free. Which worker gets which part never changes a result.
type job struct {
	next  atomic.Int64
	n     int64
	task  func(worker, task int)   // takes one part, or
	rows  func(worker, lo, hi int) // takes size rows of all
	size  int
	count int
	left  sync.WaitGroup
}

func newTeam(size int) *team {
	t := &team{size: size}
	for w := 1; w < size; w++ {
		c := make(chan struct{}, 1)
		t.wake = append(t.wake, c)
		t.done.Add(1)
		go func() {
			defer t.done.Done()
			for range c {
				t.job.work(w)
				t.job.left.Done()
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
		if j.rows != nil {
			j.rows(worker, int(i)*j.size, min(int(i+1)*j.size, j.count))
		} else {
			j.task(worker, int(i))
		}
	}
}

// run does n tasks and returns when all are done. do is called with the worker's number, below size.
func (t *team) run(n int, do func(worker, task int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.job.task, t.job.rows = do, nil
	t.all(n)
}

// rows does rows [lo, hi) of n in parts of at most so many.
func (t *team) rows(n, most int, do func(worker, lo, hi int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	size := min(max((n+4*t.size-1)/(4*t.size), 1), most)
	t.job.task, t.job.rows, t.job.size, t.job.count = nil, do, size, n
	t.all((n + size - 1) / size)
}

// all wakes as many workers as there are parts for, works along and waits for them.
func (t *team) all(n int) {
	j := &t.job
	j.n = int64(n)
	j.next.Store(0)
	for _, c := range t.wake[:max(min(n-1, len(t.wake)), 0)] {
		j.left.Add(1)
		c <- struct{}{}
	}
	j.work(0)
	j.left.Wait()
}

func (t *team) close() {
	for _, c := range t.wake {
		close(c)
	}
	t.done.Wait()
}
