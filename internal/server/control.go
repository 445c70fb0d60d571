package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"larder/internal/api"
	"larder/internal/infer"
	"larder/internal/kv"
	"larder/internal/sample"
)

const modelsPrefix = "/v1/models/"

// health asks the engine's own loop, so that a loop that died or hangs is seen.
func (s *Server) health(w http.ResponseWriter, r *http.Request) error {
	b, err := s.ready()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.HealthTimeout)
	defer cancel()
	if err := b.Control.Health(ctx); err != nil {
		return unhealthy(err)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func unhealthy(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return unavailable("the engine does not answer")
	}
	return unavailable("the engine cannot serve: %s", err)
}

// healthGenerate makes one token.
func (s *Server) healthGenerate(w http.ResponseWriter, r *http.Request) error {
	b, err := s.ready()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.HealthTimeout)
	defer cancel()
	probe := infer.Request{ID: newID(), Tokens: []int32{0}, Salt: "health", Sampling: sample.Params{TopP: 1}, MaxNew: 1, IgnoreEOS: true}
	if _, err := b.Generator.Generate(ctx, &probe, func(infer.Event) error { return nil }); err != nil {
		if errors.Is(err, infer.ErrQueueFull) {
			return err
		}
		return unhealthy(err)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// flushCache empties every tier and says which are empty, after looking.
func (s *Server) flushCache(w http.ResponseWriter, r *http.Request) error {
	b, err := s.ready()
	if err != nil {
		return err
	}
	wait := 0.0
	if text := r.URL.Query().Get("timeout"); text != "" {
		if wait, err = strconv.ParseFloat(text, 64); err != nil || !(wait >= 0 && wait <= 86400) {
			return badParam("timeout", "timeout must be a number of seconds from 0 to 86400, got %q.", text)
		}
	}
	if !s.flushing.CompareAndSwap(false, true) {
		writeText(w, http.StatusBadRequest, "Another flush_cache is already in progress.\n")
		return nil
	}
	defer s.flushing.Store(false)
	ctx := r.Context()
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(wait*float64(time.Second)))
		defer cancel()
	}
	err = b.Control.Flush(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		writeText(w, http.StatusBadRequest, "Timed out waiting for idle state.\n")
		return nil
	case errors.Is(err, infer.ErrInUse):
		writeText(w, http.StatusBadRequest, "Flush cache failed. "+err.Error()+"; give a timeout to wait for them.\n")
		return nil
	case err != nil:
		return err
	}
	return s.reportFlush(w, r, b)
}

// reportFlush reads the tiers back. A tier that still holds something although nothing came in is a failure.
func (s *Server) reportFlush(w http.ResponseWriter, r *http.Request, b *Backend) error {
	st, err := b.Control.Stats(r.Context())
	if err != nil {
		return err
	}
	var empty, left []string
	for tier := range kv.NumTiers {
		t := st.Tiers[tier]
		switch {
		case t.Total == 0:
		case t.Free == t.Total:
			empty = append(empty, fmt.Sprintf("%s (%d blocks)", tier, t.Total))
		default:
			left = append(left, fmt.Sprintf("%s (%d of %d blocks)", tier, t.Total-t.Free, t.Total))
		}
	}
	busy := st.Running+st.Waiting+st.Loading > 0
	switch {
	case len(left) > 0 && !busy:
		writeText(w, http.StatusInternalServerError, "Flush cache failed. Still in use: "+strings.Join(left, ", ")+".\n")
	case len(left) > 0:
		writeText(w, http.StatusOK, "Cache flushed. New requests already use: "+strings.Join(left, ", ")+".\n")
	case len(empty) == 0:
		writeText(w, http.StatusOK, "Cache flushed. This server has no cache.\n")
	default:
		writeText(w, http.StatusOK, "Cache flushed. Empty: "+strings.Join(empty, ", ")+".\n")
	}
	return nil
}

// abortRequest always succeeds, as the peers' does. An empty id aborts nothing.
func (s *Server) abortRequest(w http.ResponseWriter, r *http.Request) error {
	var req *api.AbortRequest
	err := s.withBody(w, r, func(body []byte) (err error) {
		req, err = api.Decode[api.AbortRequest](body)
		return err
	})
	if err != nil {
		return err
	}
	if value(req.AbortAll, false) {
		s.live.abortAll()
	} else if rid := value(req.RID, ""); rid != "" {
		s.live.abort(rid)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// knows reports whether a request may call the model so: its name, an alias, "default", its path, or the last element
// of either in any case, so that Qwen/Qwen3-30B-A3B finds a model served as qwen3-30b-a3b.
func (s *Server) knows(b *Backend, name string) bool {
	last := path.Base(name)
	for _, known := range append([]string{s.cfg.ServedModelName, b.Model.Path}, s.cfg.Aliases...) {
		if known != "" && (name == known || strings.EqualFold(last, path.Base(known))) {
			return true
		}
	}
	return name == "" || name == "default"
}

func (s *Server) checkModel(b *Backend, name *string) error {
	if name == nil || s.knows(b, *name) {
		return nil
	}
	return s.noModel(*name)
}

func (s *Server) noModel(name string) error {
	return &fault{Fault: api.Fault{
		Status: http.StatusNotFound, Type: "invalid_request_error", Param: "model", Code: "model_not_found",
		Message: fmt.Sprintf("The model '%s' does not exist; this server has '%s'.", name, s.cfg.ServedModelName),
	}}
}

func (s *Server) card(b *Backend) map[string]any {
	return map[string]any{
		"id": s.cfg.ServedModelName, "object": "model", "created": s.started.Unix(), "owned_by": "larder",
		"root": s.cfg.ServedModelName, "parent": nil, "max_model_len": b.Model.ContextLength,
	}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) error {
	b, err := s.ready()
	if err != nil {
		return err
	}
	s.writeJSON(w, http.StatusOK, api.AppendValue(nil, map[string]any{"object": "list", "data": []any{s.card(b)}}))
	return nil
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) error {
	b, err := s.ready()
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(r.URL.Path, modelsPrefix)
	if name == "" || !s.knows(b, name) {
		return s.noModel(name)
	}
	s.writeJSON(w, http.StatusOK, api.AppendValue(nil, s.card(b)))
	return nil
}

func (s *Server) modelInfo(w http.ResponseWriter, _ *http.Request) error {
	b, err := s.ready()
	if err != nil {
		return err
	}
	m := &b.Model
	info := map[string]any{
		"model_path": m.Path, "served_model_name": s.cfg.ServedModelName, "tokenizer_path": m.TokenizerPath,
		"is_generation": true, "preferred_sampling_params": nil, "weight_version": "default", "load_format": m.LoadFormat,
		"reasoning_parser": emptyNull(s.cfg.ReasoningParser), "tool_call_parser": nil,
		"has_image_understanding": false, "has_audio_understanding": false,
		"model_type": m.Type, "architectures": m.Architectures, "vocab_size": m.VocabSize,
		"context_length": m.ContextLength, "has_tokenizer": b.Tokenizer != nil, "tokenizer_note": nil,
	}
	if b.Tokenizer == nil {
		info["tokenizer_note"] = "token ids only; the text of an answer is its ids: " + m.TokenizerNote
	}
	s.writeJSON(w, http.StatusOK, api.AppendValue(nil, info))
	return nil
}

func emptyNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// serverInfo shows the arguments, the sizes and the engine's counts.
func (s *Server) serverInfo(w http.ResponseWriter, r *http.Request) error {
	b, err := s.ready()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.HealthTimeout)
	defer cancel()
	st, err := b.Control.Stats(ctx)
	if err != nil {
		return unhealthy(err)
	}
	info := maps.Clone(s.cfg.Args)
	if info == nil {
		info = map[string]any{}
	}
	maps.Copy(info, map[string]any{
		"model_path": b.Model.Path, "served_model_name": s.cfg.ServedModelName, "context_length": b.Model.ContextLength,
		"max_total_num_tokens": zeroNull(b.Model.MaxTotal), "max_req_input_len": b.Model.room() - 1,
		"startup_time": unixSeconds(s.started), "version": s.cfg.Version, "status": "ready",
		"internal_states": []any{s.internalState(&st)},
	})
	s.writeJSON(w, http.StatusOK, api.AppendValue(nil, info))
	return nil
}

func zeroNull(n int) any {
	if n == 0 {
		return nil
	}
	return n
}

// internalState is one snapshot of the engine. Speculative decoding does not exist here, so its length is null.
func (s *Server) internalState(st *infer.Stats) map[string]any {
	tiers := map[string]any{}
	for tier := range kv.NumTiers {
		if t := st.Tiers[tier]; t.Total > 0 {
			tiers[tier.String()] = map[string]any{
				"total_blocks": t.Total, "free_blocks": t.Free, "leased_blocks": t.Leased, "cached_blocks": t.Cached,
				"hit_tokens": t.HitTokens, "evicted_blocks": t.EvictedBlocks, "dropped_blocks": t.DroppedBlocks,
				"loaded_blocks": t.LoadedBlocks, "stored_blocks": t.StoredBlocks, "loaded_bytes": t.LoadedBytes,
				"stored_bytes": t.StoredBytes, "failed_loads": t.FailedLoads, "failed_stores": t.FailedStores,
				"late_loads": t.LateLoads, "skipped_stores": t.SkippedStores,
				"balanced": t.Free+t.Leased+t.Cached == t.Total,
			}
		}
	}
	return map[string]any{
		"last_gen_throughput": s.metrics.rate.perSecond(time.Now()), "avg_spec_accept_length": nil,
		"num_running_reqs": st.Running, "num_waiting_reqs": st.Waiting, "num_loading_reqs": st.Loading,
		"block_tokens": st.BlockTokens, "prompt_tokens": st.PromptTokens, "computed_tokens": st.ComputedTokens,
		"generated_tokens": st.GeneratedTokens, "num_requests": st.Requests, "num_aborted_reqs": st.Aborted,
		"num_retracted_reqs": st.Retracted, "steps": st.Steps, "invariant_checks": st.InvariantChecks, "tiers": tiers,
	}
}
