package server

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"
)

// keepBody is the largest buffer that is lent again; a larger one is left to the collector.
const keepBody = 1 << 20

// withBody reads the body and gives it to decode, which must not keep it.
func (s *Server) withBody(w http.ResponseWriter, r *http.Request, decode func([]byte) error) error {
	if err := checkType(r.Header.Get("Content-Type")); err != nil {
		return err
	}
	if r.ContentLength > s.cfg.MaxBodyBytes {
		w.Header().Set("Connection", "close")
		return &http.MaxBytesError{Limit: s.cfg.MaxBodyBytes}
	}
	buf := s.bodies.Get().(*bytes.Buffer)
	buf.Reset()
	defer func() {
		if buf.Cap() <= keepBody {
			s.bodies.Put(buf)
		}
	}()
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout)) // not supported by some writers: then there is none
	_, err := io.Copy(buf, http.MaxBytesReader(w, r.Body, s.cfg.MaxBodyBytes))
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		return bodyError(err)
	}
	return decode(buf.Bytes())
}

// Bounds of linger: a client that sends on is heard for so long, and waited for so long between two pieces.
const (
	lingerTime = 30 * time.Second
	lingerIdle = 2 * time.Second
	lingerSize = 8 // times the most that a body may have
)

// linger sends the answer and then takes what the client still sends of a body that is too large. A connection that is
// closed over unread bytes is reset, and clients that write all before they read would never see the answer.
func (s *Server) linger(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	if rc.Flush() != nil {
		return
	}
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	buf, until := make([]byte, 64<<10), time.Now().Add(lingerTime)
	for left := lingerSize * s.cfg.MaxBodyBytes; left > 0 && time.Now().Before(until); {
		_ = rc.SetReadDeadline(time.Now().Add(lingerIdle))
		n, err := r.Body.Read(buf)
		if err != nil {
			return
		}
		left -= int64(n)
	}
}

// bodyError says what went wrong while a body was read.
func bodyError(err error) error {
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fail(http.StatusRequestTimeout, "the body did not arrive in time")
	}
	return fail(http.StatusBadRequest, "the body could not be read: %s", err)
}

// checkType wants JSON, as the peers do; it also keeps web pages of other origins from posting here unasked.
func checkType(header string) error {
	if header == "application/json" {
		return nil
	}
	kind, _, err := mime.ParseMediaType(header)
	if err == nil && (kind == "application/json" || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return fail(http.StatusBadRequest, "the content type is %q; only application/json is accepted", header)
}
