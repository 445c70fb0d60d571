package server

import (
	"math"
	"math/rand/v2"
	"strings"

	"larder/internal/api"
	"larder/internal/sample"
)

// knobs are the parameters of one prompt as any of the APIs spells them; nil means the default.
type knobs struct {
	prefix              string // of the names below, for messages
	maxName, minName    string
	maxNew, minNew      *int
	temperature         *float64
	topP, minP          *float64
	topK, n, every      *int
	seed                *int64
	stop                api.Strings
	stopIDs             []int32
	ignoreEOS           *bool
	skipSpecial         *bool
	keepStop, keepStop2 *bool // by either name
}

// settings are valid knobs.
type settings struct {
	sampling    sample.Params
	maxNew      int // -1: as much as fits
	minNew      int
	n, every    int
	stop        []string
	stopIDs     []int32
	ignoreEOS   bool
	skipSpecial bool
	keepStop    bool
	explicitMax bool
}

// Limits on stop strings: each costs time on every byte of the answer.
const (
	maxStops      = 64
	maxStopLength = 4096
)

// greedyBelow is the temperature below which the peers take the likeliest token.
const greedyBelow = 1e-6

// check makes settings of k. defaultMax is the API's own default of the longest answer, -1 for as much as fits.
func (s *Server) check(b *Backend, k *knobs, defaultMax int) (settings, error) {
	out := settings{
		n: value(k.n, 1), every: value(k.every, 1), minNew: value(k.minNew, 0), maxNew: value(k.maxNew, defaultMax),
		explicitMax: k.maxNew != nil, stopIDs: k.stopIDs,
		ignoreEOS: value(k.ignoreEOS, false), skipSpecial: value(k.skipSpecial, true),
		keepStop: value(k.keepStop, false) || value(k.keepStop2, false),
	}
	switch {
	case out.n < 1 || out.n > s.cfg.MaxSequences:
		return out, k.bad("n", "n must be from 1 to %d, got %d.", s.cfg.MaxSequences, out.n)
	case out.every < 1:
		return out, k.bad("stream_interval", "stream_interval must be at least 1, got %d.", out.every)
	case k.maxNew != nil && *k.maxNew < 0:
		return out, k.bad(k.maxName, "%s must be at least 0, got %d.", k.maxName, *k.maxNew)
	case out.minNew < 0:
		return out, k.bad(k.minName, "%s must be at least 0, got %d.", k.minName, out.minNew)
	case out.maxNew >= 0 && out.minNew > out.maxNew:
		return out, k.bad(k.minName, "%s must be at most %s (%d), got %d.", k.minName, k.maxName, out.maxNew, out.minNew)
	}
	for _, id := range k.stopIDs {
		if id < 0 || int(id) >= b.Model.VocabSize {
			return out, k.bad("stop_token_ids", "stop_token_ids has %d, which is outside the vocabulary of %d tokens.", id, b.Model.VocabSize)
		}
	}
	var err error
	if out.stop, err = k.checkStop(b); err != nil {
		return out, err
	}
	out.sampling, err = k.checkSampling()
	return out, err
}

func (k *knobs) bad(name, format string, args ...any) *fault {
	return badParam(k.prefix+name, format, args...)
}

// checkStop drops empty stop strings, as the peers do.
func (k *knobs) checkStop(b *Backend) ([]string, error) {
	var stops []string
	for _, text := range k.stop {
		if len(text) > maxStopLength {
			return nil, k.bad("stop", "a stop string has %d bytes, %d are allowed.", len(text), maxStopLength)
		}
		if text != "" {
			stops = append(stops, strings.ToValidUTF8(text, "\ufffd"))
		}
	}
	if len(stops) > maxStops {
		return nil, k.bad("stop", "%d stop strings were given, %d are allowed.", len(stops), maxStops)
	}
	if len(stops) > 0 && b.Tokenizer == nil {
		return nil, k.bad("stop", "stop strings need a tokenizer, and this server has none (%s)", b.Model.TokenizerNote)
	}
	return stops, nil
}

// checkSampling judges temperature, top_p, top_k and min_p. Comparisons are written so that NaN fails them.
func (k *knobs) checkSampling() (sample.Params, error) {
	t, topP, minP, topK := value(k.temperature, 1), value(k.topP, 1), value(k.minP, 0), value(k.topK, -1)
	switch {
	case !(t >= 0) || math.IsInf(t, 0):
		return sample.Params{}, k.bad("temperature", "temperature must be a number that is not negative, got %v.", t)
	case !(topP > 0 && topP <= 1):
		return sample.Params{}, k.bad("top_p", "top_p must be in (0, 1], got %v.", topP)
	case !(minP >= 0 && minP <= 1):
		return sample.Params{}, k.bad("min_p", "min_p must be in [0, 1], got %v.", minP)
	case topK != -1 && topK < 1:
		return sample.Params{}, k.bad("top_k", "top_k must be -1 (all) or at least 1, got %d.", topK)
	}
	p := sample.Params{TopP: 1}
	if t < greedyBelow {
		return p, nil
	}
	p = sample.Params{
		Temperature: float32(min(t, math.MaxFloat32)), TopP: float32(max(topP, math.SmallestNonzeroFloat32)),
		MinP: float32(minP), TopK: max(topK, 0), Seed: rand.Uint64(),
	}
	if k.seed != nil {
		p.Seed = uint64(*k.seed)
	}
	return p, nil
}

func value[T any](p *T, or T) T {
	if p == nil {
		return or
	}
	return *p
}

func firstOf[T any](ps ...*T) *T {
	for _, p := range ps {
		if p != nil {
			return p
		}
	}
	return nil
}

// fit checks a prompt of the model against the vocabulary and the context, and returns the longest answer to make.
func (st *settings) fit(m *Model, ids []int32, param string) (int, error) {
	if len(ids) == 0 {
		return 0, badParam(param, "the prompt is empty: at least one token is needed.")
	}
	for i, id := range ids {
		if id < 0 || int(id) >= m.VocabSize {
			return 0, badParam(param, "token %d of the prompt is %d, which is outside the vocabulary of %d tokens.", i, id, m.VocabSize)
		}
	}
	if len(ids) >= m.ContextLength {
		return 0, badParam(param, "The input (%d tokens) is longer than the model's context length (%d tokens).", len(ids), m.ContextLength)
	}
	if st.explicitMax && len(ids)+st.maxNew > m.ContextLength {
		return 0, badParam(param, "Requested token count exceeds the model's maximum context length of %d tokens. You requested a total of %d tokens: %d tokens from the input and %d tokens for the answer.",
			m.ContextLength, len(ids)+st.maxNew, len(ids), st.maxNew)
	}
	if st.explicitMax {
		return st.maxNew, nil
	}
	most := max(m.room()-len(ids), 1)
	if st.maxNew >= 0 {
		most = min(most, st.maxNew)
	}
	if st.minNew > most {
		return 0, badParam(param, "at least %d tokens were asked for, and only %d fit after the prompt.", st.minNew, most)
	}
	return most, nil
}

// salt is the prefix cache's partition that a request asks for.
func salt(cacheSalt, extraKey *string) string {
	a, b := value(cacheSalt, ""), value(extraKey, "")
	if a == "" || b == "" {
		return a + b
	}
	return a + "\x00" + b
}
