package server

import (
	"net/http"
	"time"

	"larder/internal/api"
)

// chat serves OpenAI's /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, r *http.Request) error {
	start := time.Now()
	b, err := s.ready()
	if err != nil {
		return err
	}
	var req *api.ChatRequest
	err = s.withBody(w, r, func(body []byte) (err error) {
		req, err = api.DecodeChat(body)
		return err
	})
	if err != nil {
		return err
	}
	j, err := s.planChat(b, req, start)
	if err != nil {
		return err
	}
	a := s.newAnswer(&req.OpenAIOptions, j, "chat.completion", "chatcmpl-", "chat.completion.chunk")
	if j.stream {
		return s.streamOpenAI(w, r, b, j, a, chatFrames{})
	}
	if err := s.run(r.Context(), b, j, nil); err != nil {
		return err
	}
	s.writeJSON(w, http.StatusOK, a.whole(j, func(buf []byte, q *sequence) []byte {
		m := api.Message{Role: true, Content: q.shown()}
		if q.split != nil {
			m.Reasoning, m.Content = q.thought.text, append([]byte{}, q.content.text...)
		}
		return api.AppendMessage(buf, q.index, &m, &q.finish)
	}))
	return nil
}

func (s *Server) planChat(b *Backend, req *api.ChatRequest, start time.Time) (*job, error) {
	if name := req.Refused(); name != "" {
		return nil, notImplemented(name)
	}
	if err := s.checkModel(b, req.Model); err != nil {
		return nil, err
	}
	st, err := s.openAISettings(b, &req.OpenAIOptions, firstOf(req.MaxCompletion, req.MaxTokens), -1)
	if err != nil {
		return nil, err
	}
	if err := checkRIDs(req.RID, 1); err != nil {
		return nil, err
	}
	ids, err := b.chatPrompt(req)
	if err != nil {
		return nil, err
	}
	maxNew, err := st.fit(&b.Model, ids, "messages")
	if err != nil {
		return nil, err
	}
	rid := newID()
	if len(req.RID) > 0 {
		rid = req.RID[0]
	}
	group := b.expand(&st, ids, maxNew, salt(req.CacheSalt, req.ExtraKey), rid)
	if s.cfg.ReasoningParser != "" && value(req.SeparateReasoning, true) {
		for _, q := range group {
			q.split = &reasoning{}
		}
	}
	return newJob([][]*sequence{group}, false, value(req.Stream, false), start), nil
}

// chatFrames are the chunks of chat: the role first, then parts, then the finish reason alone.
type chatFrames struct{}

func (chatFrames) choices(q *sequence, add func(func([]byte) []byte)) {
	none := api.Finish{ID: -1}
	delta := func(m api.Message, f *api.Finish) {
		add(func(buf []byte) []byte { return api.AppendDelta(buf, q.index, &m, f) })
	}
	if q.frame == 0 {
		q.frame = 1
		delta(api.Message{Role: true, Content: []byte{}}, &none)
	}
	var thought, content []byte
	if q.split == nil {
		content = q.delta()
	} else {
		thought, content = q.thought.rest(), q.content.rest()
	}
	if len(thought) > 0 {
		delta(api.Message{Reasoning: thought}, &none)
	}
	if len(content) > 0 {
		delta(api.Message{Content: content}, &none)
	}
	if q.ended {
		delta(api.Message{}, &q.finish)
	}
}
