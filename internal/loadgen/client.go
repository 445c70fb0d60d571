package loadgen

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"larder/internal/workload"
)

// readSize is one read's buffer: larger than any usual burst of events, small enough for thousands of streams.
const readSize = 16 << 10

// flight is one request on its way.
type flight struct {
	r      *run
	o      *Outcome
	ctx    context.Context
	cancel context.CancelCauseFunc
	limit  deadline
}

// errOverdue is the cause when the watchdog ends a request.
var errOverdue = errors.New("overdue")

// send makes the request and records all that happens to it. It never fails: failures are outcomes.
func (f *flight) send(request []byte) {
	defer f.cancel(nil)
	o, r := f.o, f.r
	o.Sent = r.now()
	o.Done = o.Sent
	f.limit.set(o.Sent, r.limits.First)
	c, dialled, err := r.dialer.get(f.ctx, r.now)
	if err == nil && f.over(c, request) {
		o.Resent = true
		start := r.now()
		c, err = r.dialer.dial(f.ctx)
		dialled = r.now() - start
		if err == nil {
			f.over(c, request)
		}
	}
	o.Connect = dialled
	if err != nil {
		o.Done = r.now()
		f.noConnection(err)
	}
}

// over exchanges the request for its answer on c, and keeps or closes c. It is true when nothing happened, because the
// server had closed the kept connection just before we wrote: then, and only then, the request is sent once more.
func (f *flight) over(c *conn, request []byte) (stale bool) {
	// Whatever ends the request early has to end its reads and writes, and only a close does that for all of them.
	release := context.AfterFunc(f.ctx, func() { c.Close() })
	reusable, err := f.exchange(c, request)
	released := release()
	kept := c.used
	c.used = true
	if reusable && released {
		f.r.dialer.put(c)
		return false
	}
	c.Close()
	if err == nil {
		return false
	}
	if kept && released && f.o.FirstByte == 0 && closedByPeer(err) {
		return true
	}
	f.broken(ClassHTTP, "no HTTP answer", err)
	return false
}

func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// exchange writes the request and reads the answer; reusable says that the connection can be used again. The error is
// that of a connection which gave no answer; all else is in the outcome.
func (f *flight) exchange(c *conn, request []byte) (reusable bool, err error) {
	o, r := f.o, f.r
	_, writeErr := c.Write(request)
	if writeErr == nil {
		o.Wrote = r.now()
	}
	resp, err := f.answer(c)
	switch {
	case err != nil && writeErr != nil:
		return false, writeErr
	case err != nil:
		return false, err
	case writeErr != nil: // refused before all was read: what the server says is worth more than the broken write
		f.refused(resp)
		return false, nil
	}
	switch kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); {
	case resp.StatusCode != http.StatusOK:
		return f.refused(resp) && !resp.Close, nil
	case kind == "text/html":
		return f.refuse(resp, ClassStream, "the server sent a web page, not an answer; is the URL right?") && !resp.Close, nil
	case r.cfg.Stream && kind != "application/json":
		return f.read(resp.Body) && !resp.Close, nil
	}
	return f.readWhole(resp.Body) && !resp.Close, nil
}

// answer reads the head of the answer; informational ones are passed over.
func (f *flight) answer(c *conn) (*http.Response, error) {
	for {
		if _, err := c.read.Peek(1); err != nil {
			f.o.Done = f.r.now()
			return nil, err
		}
		f.o.FirstByte = f.r.now()
		resp, err := http.ReadResponse(c.read, f.r.method)
		f.o.Done = f.r.now()
		if err != nil {
			return nil, err
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			f.o.Status = resp.StatusCode
			return resp, nil
		}
	}
}

// noConnection classes a failed dial.
func (f *flight) noConnection(err error) {
	var timeout net.Error
	switch {
	case f.stopped():
	case errors.Is(err, errTLS):
		f.fail(ClassTLS, err)
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		f.fail(ClassTimeoutConnect, err)
	default:
		f.fail(ClassConnect, err)
	}
}

// broken classes an error on an open connection.
func (f *flight) broken(class, what string, err error) {
	if f.stopped() {
		return
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	f.fail(class, fmt.Errorf("%s: %w", what, err))
}

// stopped classes a request that we ended ourselves, and reports whether we did.
func (f *flight) stopped() bool {
	cause := context.Cause(f.ctx)
	if cause == nil {
		return false
	}
	o := f.o
	switch l := f.r.limits; {
	case !errors.Is(cause, errOverdue):
		f.fail(ClassCanceled, cause)
	case l.Total > 0 && f.r.now()-o.Sent >= l.Total:
		f.fail(ClassTimeoutTotal, fmt.Errorf("not done after %v", l.Total))
	case o.First > 0:
		f.fail(ClassTimeoutGap, fmt.Errorf("no new output for %v after %d chunks", l.Gap, len(o.Chunks)))
	default:
		f.fail(ClassTimeoutFirst, fmt.Errorf("no output after %v", l.First))
	}
	return true
}

func (f *flight) fail(class string, err error) {
	if f.o.Class == "" {
		f.o.Class, f.o.Err = class, err
	}
}

// refused records a status that is not 200, with what the server said; true when the answer was read to its end.
func (f *flight) refused(resp *http.Response) bool { return f.refuse(resp, ClassHTTP, resp.Status) }

func (f *flight) refuse(resp *http.Response, class, what string) bool {
	const enough = 64 << 10
	text, err := io.ReadAll(io.LimitReader(resp.Body, enough)) // whatever can be read is shown
	f.o.Done = f.r.now()
	f.fail(class, fmt.Errorf("%s: %s", what, excerpt(text)))
	return err == nil && len(text) < enough
}

// read reads an event stream to its end; true when there was one.
func (f *flight) read(body io.Reader) bool {
	buf := f.r.buffers.Get().(*[readSize]byte)
	defer f.r.buffers.Put(buf)
	s := newStream(f.o, f.r.proto)
	chunks := len(f.o.Chunks)
	for {
		n, err := body.Read(buf[:])
		at := f.r.now()
		s.feed(at, buf[:n])
		if len(f.o.Chunks) != chunks {
			chunks = len(f.o.Chunks)
			f.limit.set(at, f.r.limits.Gap)
		}
		if err == nil {
			continue
		}
		if err == io.EOF {
			s.flush(at)
		} else if !s.done {
			f.broken(ClassStream, "the stream broke", err)
		}
		s.finish()
		return err == io.EOF
	}
}

// readWhole reads an answer that is one JSON object: its end is its first output.
func (f *flight) readWhole(body io.Reader) bool {
	b, err := io.ReadAll(io.LimitReader(body, maxLine))
	f.o.Done = f.r.now()
	if err != nil {
		f.broken(ClassStream, "the answer broke", err)
		return false
	}
	s := newStream(f.o, f.r.proto)
	s.object(f.o.Done, b)
	s.done = true
	s.finish()
	return len(b) < maxLine
}

// requests prepares every request as the bytes that go on the wire.
func (r *run) requests(items []workload.Item, bodies [][]byte, host, target string) [][]byte {
	shared := "POST " + target + " HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: larder\r\n"
	if r.dialer.proxy != nil && r.dialer.tls == nil {
		shared += r.dialer.proxyAuth()
	}
	out := make([][]byte, len(items))
	for i := range items {
		head := shared + headerLines(r.cfg.header(&items[i])) + "Content-Length: " + strconv.Itoa(len(bodies[i])) + "\r\n\r\n"
		out[i] = append(append(make([]byte, 0, len(head)+len(bodies[i])), head...), bodies[i]...)
		bodies[i] = nil // a long run's prompts should not be in memory twice
	}
	return out
}

// now is the time since the start on the monotonic clock.
func (r *run) now() time.Duration { return time.Since(r.start) }
