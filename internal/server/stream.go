package server

import (
	"errors"
	"net/http"
	"os"
	"time"

	"larder/internal/api"
)

// stream writes server-sent events. Its headers leave with the first event, so that a request that fails before it
// gets a status of its own. Calls must not overlap.
type stream struct {
	w     *tracker
	rc    *http.ResponseController
	stall time.Duration
	armed time.Time // when the write deadline was last set
	buf   []byte
}

func (s *Server) newStream(w http.ResponseWriter) *stream {
	return &stream{w: w.(*tracker), rc: http.NewResponseController(w), stall: s.cfg.StallTimeout}
}

// add puts one event, whose data appendData appends, into the buffer.
func (st *stream) add(appendData func([]byte) []byte) {
	st.buf = append(st.buf, api.EventStart...)
	st.buf = appendData(st.buf)
	st.buf = append(st.buf, api.EventEnd...)
}

// send writes the buffer, if it holds anything, and pushes it out. A reader that takes nothing for the stall timeout
// ends the stream; until then it holds up only itself.
func (st *stream) send() error {
	if len(st.buf) == 0 {
		return nil
	}
	if !st.w.wrote {
		h := st.w.Header()
		h["Content-Type"] = []string{"text/event-stream; charset=utf-8"}
		h["Cache-Control"] = []string{"no-cache"}
		h["X-Accel-Buffering"] = []string{"no"}
	}
	if now := time.Now(); now.Sub(st.armed) > st.stall/8 {
		st.armed = now
		_ = st.rc.SetWriteDeadline(now.Add(st.stall)) // not supported by some writers: then there is none
	}
	_, err := st.w.Write(st.buf)
	st.buf = st.buf[:0]
	if err != nil {
		return readerGone(err)
	}
	if err := st.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return readerGone(err)
	}
	return nil
}

// sendUnless sends now, unless the end of the stream, which sends too, is next.
func (st *stream) sendUnless(over bool) error {
	if over {
		return nil
	}
	return st.send()
}

// readerGone tells a slow reader from one that left; both end the request, neither is a fault of the server.
func readerGone(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSlowReader
	}
	return fail(statusClientClosed, "the client went away: %s", err)
}

// end closes the stream, in one piece with what is still in the buffer: after err with an error frame, if the stream
// had begun; before that err is the caller's to answer.
func (st *stream) end(family api.Family, err error) error {
	if err != nil && !st.w.wrote {
		return err
	}
	defer func() { _ = st.rc.SetWriteDeadline(time.Time{}) }()
	if err != nil {
		f := toFault(err)
		if f.Status == statusClientClosed {
			panic(http.ErrAbortHandler) // nobody reads; the connection must not look whole
		}
		st.buf = api.AppendStreamFault(st.buf, family, &f.Fault)
	}
	st.buf = append(st.buf, api.EventDone...)
	if sendErr := st.send(); err == nil {
		err = sendErr
	}
	return err
}
