package server

import (
	"net/http"
	"strings"
	"time"

	"larder/internal/api"
)

const completionMaxNew = 16 // OpenAI's default

// completions serves OpenAI's /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) error {
	start := time.Now()
	b, err := s.ready()
	if err != nil {
		return err
	}
	var req *api.CompletionRequest
	err = s.withBody(w, r, func(body []byte) (err error) {
		req, err = api.DecodeCompletion(body)
		return err
	})
	if err != nil {
		return err
	}
	j, err := s.planCompletion(b, req, start)
	if err != nil {
		return err
	}
	a := s.newAnswer(&req.OpenAIOptions, j, "text_completion", "cmpl-", "text_completion")
	if j.stream {
		return s.streamOpenAI(w, r, b, j, a, textFrames{})
	}
	if err := s.run(r.Context(), b, j, nil); err != nil {
		return err
	}
	s.writeJSON(w, http.StatusOK, a.whole(j, func(buf []byte, q *sequence) []byte {
		text := append([]byte(q.echo), q.shown()...)
		return api.AppendTextChoice(buf, q.index, text, &q.finish)
	}))
	return nil
}

func (s *Server) planCompletion(b *Backend, req *api.CompletionRequest, start time.Time) (*job, error) {
	if name := req.Refused(); name != "" {
		return nil, notImplemented(name)
	}
	if err := s.checkModel(b, req.Model); err != nil {
		return nil, err
	}
	if req.Prompt.IsZero() {
		return nil, badParam("prompt", "prompt is missing.")
	}
	st, err := s.openAISettings(b, &req.OpenAIOptions, req.MaxTokens, completionMaxNew)
	if err != nil {
		return nil, err
	}
	count := req.Prompt.Len()
	if count*st.n > s.cfg.MaxSequences {
		return nil, tooMany(count*st.n, s.cfg.MaxSequences)
	}
	if err := checkRIDs(req.RID, count); err != nil {
		return nil, err
	}
	groups := make([][]*sequence, count)
	for i := range groups {
		rid := newID()
		if len(req.RID) > 0 {
			rid = req.RID[i]
		}
		groups[i], err = b.planPrompt(&st, &req.Prompt, i, "prompt", salt(req.CacheSalt, req.ExtraKey), rid)
		if err != nil {
			return nil, err
		}
		if value(req.Echo, false) {
			b.addEcho(groups[i], &req.Prompt, i)
		}
	}
	return newJob(groups, false, value(req.Stream, false), start), nil
}

// addEcho puts the prompt's own text before the answers.
func (b *Backend) addEcho(group []*sequence, prompt *api.Prompt, i int) {
	text := ""
	if prompt.Texts != nil {
		text = strings.ToValidUTF8(prompt.Texts[i], "\ufffd")
	} else {
		text = b.decode(prompt.IDs[i], false)
		if b.Tokenizer == nil {
			text += " "
		}
	}
	for _, q := range group {
		q.echo = text
	}
}

// openAISettings checks what both OpenAI routes share, with the model's own sampling defaults.
func (s *Server) openAISettings(b *Backend, o *api.OpenAIOptions, maxNew *int, defaultMax int) (settings, error) {
	if maxNew != nil && *maxNew < 1 {
		return settings{}, badParam("max_tokens", "max_tokens must be at least 1, got %d.", *maxNew)
	}
	d := &b.Model.Defaults
	return s.check(b, &knobs{
		maxName: "max_tokens", minName: "min_tokens", maxNew: maxNew, minNew: o.MinTokens,
		temperature: firstOf(o.Temperature, d.Temperature), topP: firstOf(o.TopP, d.TopP), minP: firstOf(o.MinP, d.MinP),
		topK: firstOf(o.TopK, d.TopK), n: o.N, seed: o.Seed, stop: o.Stop, stopIDs: o.StopTokenIDs,
		ignoreEOS: o.IgnoreEOS, skipSpecial: o.SkipSpecial, keepStop: o.NoStopTrim, keepStop2: o.IncludeStop,
	}, defaultMax)
}

// answer is what the objects of one OpenAI answer share.
type answer struct {
	api.Envelope
	usageAtEnd bool // a last chunk with usage and no choices
	usageEach  bool // usage in every chunk
}

func (s *Server) newAnswer(o *api.OpenAIOptions, j *job, object, prefix, streamed string) *answer {
	a := &answer{Envelope: api.Envelope{
		ID: prefix + j.seqs[0].req.ID, Object: object, Created: j.start.Unix(), Model: s.cfg.ServedModelName,
	}}
	if j.stream {
		a.Object = streamed
		if so := o.StreamOptions; so != nil {
			a.usageAtEnd = value(so.IncludeUsage, false)
			a.usageEach = a.usageAtEnd && value(so.ContinuousUsage, false)
		}
	}
	return a
}

// usage sums over the sequences; the prompt of several choices counts once.
func (a *answer) usage(j *job) api.Usage {
	var sum api.Usage
	for _, q := range j.seqs {
		u := q.usageOf()
		if q.choice > 0 {
			u.Prompt, u.Device, u.Host = 0, 0, 0
		}
		sum.Add(u)
	}
	return sum
}

// whole is a complete answer.
func (a *answer) whole(j *job, choice func([]byte, *sequence) []byte) []byte {
	buf := a.AppendOpen(nil)
	for i, q := range j.seqs {
		if i > 0 {
			buf = append(buf, ',')
		}
		buf = choice(buf, q)
	}
	u := a.usage(j)
	return api.AppendClose(buf, &u)
}

// frames says how one of the OpenAI routes writes what a sequence has to say.
type frames interface {
	// choices calls add for each choice object that is due, in order.
	choices(q *sequence, add func(appendChoice func([]byte) []byte))
}

// textFrames are the chunks of /v1/completions: new text, and the finish reason with the last of it.
type textFrames struct{}

func (textFrames) choices(q *sequence, add func(func([]byte) []byte)) {
	text := q.delta()
	if q.frame == 0 && q.echo != "" {
		text = append([]byte(q.echo), text...)
	}
	if len(text) == 0 && !q.ended {
		return
	}
	q.frame = max(len(q.ids), 1)
	add(func(buf []byte) []byte { return api.AppendTextChoice(buf, q.index, text, &q.finish) })
}

// streamOpenAI runs j and streams its chunks.
func (s *Server) streamOpenAI(w http.ResponseWriter, r *http.Request, b *Backend, j *job, a *answer, f frames) error {
	st := s.newStream(w)
	open := a.AppendOpen(nil)
	err := s.run(r.Context(), b, j, func(q *sequence) error {
		f.choices(q, func(appendChoice func([]byte) []byte) {
			st.add(func(buf []byte) []byte {
				buf = appendChoice(append(buf, open...))
				if !a.usageEach {
					return api.AppendClose(buf, nil)
				}
				u := q.usageOf()
				return api.AppendClose(buf, &u)
			})
		})
		return st.sendUnless(j.over(q))
	})
	if err == nil && a.usageAtEnd {
		u := a.usage(j)
		st.add(func(buf []byte) []byte { return api.AppendClose(append(buf, open...), &u) })
	}
	return st.end(api.OpenAI, err)
}
