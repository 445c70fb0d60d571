package server

import (
	"net/http"
	"strconv"
	"time"

	"larder/internal/api"
)

const (
	nativeMaxNew  = 128 // SGLang's default
	maxRequestID  = 256
	samplingField = "sampling_params."
)

// generate serves SGLang's /generate.
func (s *Server) generate(w http.ResponseWriter, r *http.Request) error {
	start := time.Now()
	b, err := s.ready()
	if err != nil {
		return err
	}
	var req *api.GenerateRequest
	err = s.withBody(w, r, func(body []byte) (err error) {
		req, err = api.DecodeGenerate(body)
		return err
	})
	if err != nil {
		return err
	}
	j, err := s.planGenerate(b, req, start)
	if err != nil {
		return err
	}
	if j.stream {
		return s.streamGenerate(w, r, b, j)
	}
	if err := s.run(r.Context(), b, j, nil); err != nil {
		return err
	}
	var out []byte
	if j.list {
		out = append(out, '[')
	}
	for i, q := range j.seqs {
		if i > 0 {
			out = append(out, ',')
		}
		g := q.generated(-1)
		out = api.AppendGenerate(out, &g)
	}
	if j.list {
		out = append(out, ']')
	}
	s.writeJSON(w, http.StatusOK, out)
	return nil
}

func (s *Server) streamGenerate(w http.ResponseWriter, r *http.Request, b *Backend, j *job) error {
	st := s.newStream(w)
	err := s.run(r.Context(), b, j, func(q *sequence) error {
		if !q.due() {
			return nil
		}
		index := -1
		if j.list {
			index = q.index
		}
		g := q.generated(index)
		st.add(func(buf []byte) []byte { return api.AppendGenerate(buf, &g) })
		return st.sendUnless(j.over(q))
	})
	return st.end(api.Native, err)
}

// planGenerate validates the whole request.
func (s *Server) planGenerate(b *Backend, req *api.GenerateRequest, start time.Time) (*job, error) {
	if name := req.Refused(); name != "" {
		return nil, notImplemented(name)
	}
	prompt, param, err := nativePrompt(req)
	if err != nil {
		return nil, err
	}
	count := prompt.Len()
	if err := checkCount(req, count, s.cfg.MaxSequences); err != nil {
		return nil, err
	}
	groups := make([][]*sequence, count)
	shared := req.Sampling.All
	if len(shared) == 0 {
		shared = make([]api.SamplingParams, 1)
	}
	total := 0
	for i := range groups {
		st, err := s.nativeSettings(b, &shared[i%len(shared)])
		if err != nil {
			return nil, err
		}
		if i > 0 && st.n != len(groups[0]) {
			return nil, badParam(samplingField+"n", "n must be the same for all prompts of a batch.")
		}
		if total += st.n; total > s.cfg.MaxSequences {
			return nil, tooMany(total, s.cfg.MaxSequences)
		}
		rid := newID()
		if len(req.RID) > 0 {
			rid = req.RID[i]
		}
		groups[i], err = b.planPrompt(&st, prompt, i, param, salt(req.CacheSalt, req.ExtraKey), rid)
		if err != nil {
			return nil, err
		}
	}
	return newJob(groups, prompt.List || len(groups[0]) > 1, value(req.Stream, false), start), nil
}

// planPrompt makes the sequences of prompt i.
func (b *Backend) planPrompt(st *settings, prompt *api.Prompt, i int, param, salt, rid string) ([]*sequence, error) {
	ids, err := b.promptIDs(prompt, i, param)
	if err != nil {
		return nil, err
	}
	maxNew, err := st.fit(&b.Model, ids, param)
	if err != nil {
		return nil, err
	}
	return b.expand(st, ids, maxNew, salt, rid), nil
}

// promptIDs is prompt i as token ids.
func (b *Backend) promptIDs(prompt *api.Prompt, i int, param string) ([]int32, error) {
	if prompt.Texts != nil {
		return b.encode(prompt.Texts[i], param)
	}
	return prompt.IDs[i], nil
}

// nativePrompt picks text or input_ids, of which exactly one must be there.
func nativePrompt(req *api.GenerateRequest) (*api.Prompt, string, error) {
	switch {
	case req.Text.IsZero() && req.InputIDs.IsZero():
		return nil, "", fail(http.StatusBadRequest, "Either text, input_ids or input_embeds should be provided.")
	case !req.Text.IsZero() && !req.InputIDs.IsZero():
		return nil, "", fail(http.StatusBadRequest, "text and input_ids are both given; only one may be.")
	case !req.InputIDs.IsZero():
		if req.InputIDs.IDs == nil {
			return nil, "", badParam("input_ids", "input_ids must be a list of token ids or a list of such lists.")
		}
		return &req.InputIDs, "input_ids", nil
	case req.Text.Texts == nil:
		return nil, "", badParam("text", "text must be a string or a list of strings.")
	}
	return &req.Text, "text", nil
}

// checkCount compares the lengths of the lists in a batch.
func checkCount(req *api.GenerateRequest, count, most int) error {
	switch {
	case count > most:
		return tooMany(count, most)
	case req.Sampling.List && len(req.Sampling.All) != count:
		return badParam("sampling_params", "sampling_params has %d entries for %d prompts.", len(req.Sampling.All), count)
	}
	return checkRIDs(req.RID, count)
}

func checkRIDs(rids []string, count int) error {
	if len(rids) == 0 {
		return nil
	}
	if len(rids) != count {
		return badParam("rid", "rid has %d entries for %d prompts.", len(rids), count)
	}
	for _, rid := range rids {
		if rid == "" || len(rid) > maxRequestID {
			return badParam("rid", "a request id must have from 1 to %d bytes.", maxRequestID)
		}
	}
	return nil
}

func (s *Server) nativeSettings(b *Backend, p *api.SamplingParams) (settings, error) {
	if name := p.Refused(); name != "" {
		return settings{}, notImplemented(samplingField + name)
	}
	return s.check(b, &knobs{
		prefix: samplingField, maxName: "max_new_tokens", minName: "min_new_tokens",
		maxNew: p.MaxNewTokens, minNew: p.MinNewTokens, temperature: p.Temperature, topP: p.TopP, minP: p.MinP,
		topK: p.TopK, n: p.N, every: p.StreamEvery, seed: p.Seed, stop: p.Stop, stopIDs: p.StopTokenIDs,
		ignoreEOS: p.IgnoreEOS, skipSpecial: p.SkipSpecial, keepStop: p.NoStopTrim,
	}, nativeMaxNew)
}

func notImplemented(name string) *fault {
	return badParam(name, "%s is not supported by this server; leave it out or at its default.", name)
}

func tooMany(got, most int) *fault {
	return fail(http.StatusBadRequest, "the request asks for %s answers at once, %d are allowed.", strconv.Itoa(got), most)
}
