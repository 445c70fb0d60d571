package server

// stopString looks for one stop string in a growing text, a byte at a time, in constant time per byte (Knuth, Morris
// and Pratt). Its state is the length of the longest end of the text that could still become the string: just what
// has to be held back.
type stopString struct {
	text string
	fail []int32 // fail[i]: longest proper border of text[:i+1]
	have int
}

func newStopString(text string) stopString {
	fail := make([]int32, len(text))
	for i, k := 1, 0; i < len(text); i++ {
		for k > 0 && text[i] != text[k] {
			k = int(fail[k-1])
		}
		if text[i] == text[k] {
			k++
		}
		fail[i] = int32(k)
	}
	return stopString{text: text, fail: fail}
}

// step takes the next byte and reports whether the string is complete.
func (s *stopString) step(c byte) bool {
	for s.have > 0 && s.text[s.have] != c {
		s.have = int(s.fail[s.have-1])
	}
	if s.text[s.have] == c {
		s.have++
	}
	return s.have == len(s.text)
}

// sink is the text of one answer: what was decoded, and how much of it may be shown.
type sink struct {
	dec   Detokenizer
	stops []stopString
	keep  bool   // the stop string stays in the text
	text  []byte // decoded so far
	shown int    // text[:shown] can no longer become part of a stop string
}

func newSink(dec Detokenizer, stops []string, keep bool) sink {
	t := sink{dec: dec, keep: keep}
	for _, s := range stops {
		t.stops = append(t.stops, newStopString(s))
	}
	return t
}

// push takes a token and returns the stop string that it completed, or "". Without search nothing is looked for,
// neither now nor later in what it adds.
func (t *sink) push(id int32, search bool) string { return t.add(t.dec.Push(id), search) }

func (t *sink) add(s string, search bool) string {
	if len(t.stops) == 0 || !search {
		t.text = append(t.text, s...)
		t.shown = len(t.text)
		return ""
	}
	for i := range len(s) {
		t.text = append(t.text, s[i])
		hit, hold := "", 0
		for k := range t.stops {
			st := &t.stops[k]
			if st.step(s[i]) && len(st.text) > len(hit) {
				hit = st.text
			}
			hold = max(hold, st.have)
		}
		if hit != "" {
			if !t.keep {
				t.text = t.text[:len(t.text)-len(hit)]
			}
			t.shown = len(t.text)
			return hit
		}
		t.shown = len(t.text) - hold
	}
	return ""
}

// close adds what the detokenizer held back and shows everything; like push it may find a stop string.
func (t *sink) close() string {
	hit := t.add(t.dec.Flush(), true)
	t.shown = len(t.text)
	return hit
}
