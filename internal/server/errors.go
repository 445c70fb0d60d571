package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"larder/internal/api"
	"larder/internal/infer"
)

// errAborted is the cause of a request that /abort_request or AbortAll ended.
var errAborted = errors.New("the request was aborted")

// errStopString is what emit returns to end a request whose text reached a stop string.
var errStopString = errors.New("a stop string was reached")

// errSlowReader ends a stream whose reader takes nothing.
var errSlowReader = errors.New("the client stopped reading")

// fault is an error that knows its answer.
type fault struct {
	api.Fault
	retry bool // tell the client to come back
}

func (f *fault) Error() string { return f.Message }

func fail(status int, format string, args ...any) *fault {
	return &fault{Fault: api.Fault{Status: status, Type: http.StatusText(status), Message: fmt.Sprintf(format, args...)}}
}

// badParam is a 400 that names the field at fault.
func badParam(param, format string, args ...any) *fault {
	f := fail(http.StatusBadRequest, format, args...)
	f.Param = param
	return f
}

func unavailable(format string, args ...any) *fault {
	f := fail(http.StatusServiceUnavailable, format, args...)
	f.retry = true
	return f
}

// statusClientClosed is what logs and metrics call a request whose client went away; nobody receives it.
const statusClientClosed = 499

// toFault is the one place that maps errors to HTTP.
func toFault(err error) *fault {
	var f *fault
	var bad *api.BadBody
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &bad):
		return badParam(bad.Param, "%s", bad.Msg)
	case errors.As(err, &big):
		return fail(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", big.Limit)
	case errors.Is(err, infer.ErrQueueFull):
		return unavailable("The request queue is full.")
	case errors.Is(err, infer.ErrTooLong), errors.Is(err, infer.ErrInvalid):
		return fail(http.StatusBadRequest, "%s", err)
	case errors.Is(err, infer.ErrClosed):
		return unavailable("The server is shutting down.")
	case errors.Is(err, infer.ErrDevice):
		return fail(http.StatusInternalServerError, "%s", err)
	case errors.Is(err, context.Canceled), errors.Is(err, errSlowReader):
		return fail(statusClientClosed, "%s", err)
	}
	return fail(http.StatusInternalServerError, "internal error: %s", err)
}

// answerError sends err in the family's shape, unless an answer has begun or nobody is there to read it.
func (s *Server) answerError(t *tracker, r *http.Request, family api.Family, err error) {
	f := toFault(err)
	if f.Status >= 500 && f.Status != http.StatusServiceUnavailable {
		s.cfg.Log.Error("request failed", "path", r.URL.Path, "err", err)
	}
	if t.wrote || f.Status == statusClientClosed {
		return
	}
	h := t.Header()
	switch {
	case f.retry:
		h.Set("Retry-After", "1")
	case f.Status == http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case f.Status == http.StatusMethodNotAllowed:
		h.Set("Allow", s.routes[r.URL.Path].allow())
	}
	s.writeJSON(t, f.Status, api.AppendFault(nil, family, &f.Fault))
	if f.Status == http.StatusRequestEntityTooLarge {
		s.linger(t, r)
	}
}

// smallAnswer fits into a socket's buffer, so that writing it does not wait for the reader.
const smallAnswer = 64 << 10

// writeJSON sends a whole answer. A client that is gone is no error of ours; one that reads nothing for the stall
// timeout is cut off.
func (s *Server) writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{itoa(len(body))}
	w.WriteHeader(status)
	if len(body) <= smallAnswer {
		_, _ = w.Write(body)
		return
	}
	rc := http.NewResponseController(w)
	defer func() { _ = rc.SetWriteDeadline(time.Time{}) }()
	for len(body) > 0 {
		n := min(len(body), smallAnswer)
		_ = rc.SetWriteDeadline(time.Now().Add(s.cfg.StallTimeout)) // not supported by some writers: then there is none
		if _, err := w.Write(body[:n]); err != nil {
			return
		}
		body = body[n:]
	}
	_ = rc.Flush()
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}
