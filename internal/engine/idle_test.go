package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"larder/internal/infer"
	"larder/internal/kv"
)

// pollCounter counts the loop's turns.
type pollCounter struct {
	*fakeMover
	polls int
}

func (p *pollCounter) Poll(done func(kv.Move, error)) int {
	p.polls++
	return p.fakeMover.Poll(done)
}

// TestIdleDoesNothing: between requests the loop sleeps; it neither spins (then synctest.Wait would not return) nor
// ticks.
func TestIdleDoesNothing(t *testing.T) { bothSchedules(t, testIdleDoesNothing) }

func testIdleDoesNothing(t *testing.T, s setup) {
	synctest.Test(t, func(t *testing.T) {
		var counter *pollCounter
		r := newRig(t, s, func(c *Config, r *rig) {
			counter = &pollCounter{fakeMover: r.mover}
			c.Mover = counter
		})
		q := newRequest("a", tokens(1, 30), 10)
		for range 2 {
			if err := r.generate(q).right(q); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			before := counter.polls
			time.Sleep(time.Hour)
			synctest.Wait()
			if counter.polls != before {
				t.Errorf("%d turns of the loop in an idle hour", counter.polls-before)
			}
		}
		r.closed(t)
	})
}

// TestCloseWithHangingDevice: Close says so instead of hanging too, and Health shows it by its context's error.
func TestCloseWithHangingDevice(t *testing.T) { bothSchedules(t, testCloseWithHangingDevice) }

func testCloseWithHangingDevice(t *testing.T, s setup) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		r := newRig(t, s, func(c *Config, r *rig) {
			r.runner.fail = func(int) error { <-hang; return nil }
		})
		done := make(chan *collector)
		go func() { done <- r.generate(newRequest("a", tokens(1, 30), 10)) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := r.Health(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("health while the device hangs: %v", err)
		}
		if err := r.Close(ctx); err == nil || !strings.Contains(err.Error(), "does not finish its step") {
			t.Errorf("close: %v", err)
		}
		close(hang)
		if c := <-done; !errors.Is(c.err, infer.ErrClosed) || c.finals != 1 {
			t.Errorf("the request: %v, %d last events", c.err, c.finals)
		}
		<-r.done
	})
}
