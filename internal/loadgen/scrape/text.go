package scrape

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Snapshot is one answer of a metrics endpoint: every series with its value.
type Snapshot struct {
	At     time.Time
	series []series
	byName map[string][]int // a name's places in series
}

type series struct {
	name, labels string // labels as written, which is enough to tell series apart
	value        float64
}

// errNotMetrics is the error of a page that is something else.
var errNotMetrics = errors.New("not Prometheus metrics")

// Parse reads the text exposition format, by the rules of its version 0.0.4: a line is a comment, or a name, labels in
// braces, a value, and perhaps a time. Values that are not finite (the quantiles of an empty summary) are left out. A
// page with no series at all, or with a line that is none of these, is an error.
func Parse(text string) (*Snapshot, error) {
	s := &Snapshot{byName: map[string][]int{}}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, labels, rest, ok := cutSeries(line)
		if !ok {
			return nil, fmt.Errorf("%w: line %d is %.60q", errNotMetrics, n+1, line)
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 || len(fields) > 2 {
			return nil, fmt.Errorf("%w: line %d has no value: %.60q", errNotMetrics, n+1, line)
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return nil, fmt.Errorf("%w: line %d has no value: %.60q", errNotMetrics, n+1, line)
		}
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			s.byName[name] = append(s.byName[name], len(s.series))
			s.series = append(s.series, series{name, labels, v})
		}
	}
	if len(s.series) == 0 {
		return nil, fmt.Errorf("%w: no series", errNotMetrics)
	}
	return s, nil
}

// cutSeries splits a line after its name and labels. A brace inside a quoted label value ends nothing.
func cutSeries(line string) (name, labels, rest string, ok bool) {
	end := strings.IndexAny(line, "{ \t")
	if end < 1 || !isName(line[:end]) {
		return "", "", "", false
	}
	name, rest = line[:end], line[end:]
	if rest[0] != '{' {
		return name, "", rest, true
	}
	quoted := false
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '}' && !quoted:
			return name, rest[1:i], rest[i+1:], true
		}
	}
	return "", "", "", false
}

func isName(s string) bool {
	for i, c := range s {
		letter := c == '_' || c == ':' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// label is the value of a label in a series' labels, unescaped.
func label(labels, name string) (string, bool) {
	for labels != "" {
		key, rest, ok := strings.Cut(labels, "=")
		if !ok {
			return "", false
		}
		quoted, err := strconv.QuotedPrefix(strings.TrimSpace(rest))
		if err != nil {
			return "", false
		}
		if strings.Trim(key, ", \t") == name {
			v, err := strconv.Unquote(quoted)
			return v, err == nil
		}
		labels = strings.TrimSpace(rest)[len(quoted):]
	}
	return "", false
}

// hasPrefix says whether there is a series whose name starts so.
func (s *Snapshot) hasPrefix(prefix string) bool {
	for name := range s.byName {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// sum adds the series of a name: those of several engines, ranks or models behind one endpoint.
func (s *Snapshot) sum(name string, keep func(labels string) bool) (v float64, ok bool) {
	for _, i := range s.byName[name] {
		if keep == nil || keep(s.series[i].labels) {
			v, ok = v+s.series[i].value, true
		}
	}
	return v, ok
}

// first is the sum of the first of several names that is there: metrics were renamed between releases.
func (s *Snapshot) first(names ...string) (float64, bool) {
	for _, n := range names {
		if v, ok := s.sum(n, nil); ok {
			return v, true
		}
	}
	return 0, false
}
