package study

import (
	"context"
	"errors"
	"fmt"
	"time"

	"larder/internal/infer"
	"larder/internal/loadgen"
	"larder/internal/record"
	"larder/internal/workload"
)

// flushTimeout bounds the wait for idleness before a flush; a server that is not idle by then is broken.
const flushTimeout = time.Minute

// empty flushes every tier.
func (r *run) empty(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if err := r.env.Control.Flush(ctx); err != nil {
		return fmt.Errorf("flush before an arm: %w", err)
	}
	return nil
}

// prime sends each prefix once through the server, so that it is known, whatever tier it lands in.
func (r *run) prime(ctx context.Context, prefixes [][]int32, what string) error {
	list := make([]workload.Item, len(prefixes))
	for i, ids := range prefixes {
		list[i] = workload.Item{IDs: ids, PromptLen: len(ids), OutputLen: 1}
	}
	res, err := r.send(ctx, list, 0, what, r.plan.prefill(len(prefixes), len(prefixes[0]), 0))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for i := range res.Outcomes {
		if o := &res.Outcomes[i]; o.Class != "" {
			return fmt.Errorf("%s: prefix %d: %s: %w", what, i, o.Class, o.Err)
		}
	}
	return nil
}

// send runs items through the server over HTTP with the native API and exact ids.
func (r *run) send(ctx context.Context, list []workload.Item, concurrency int, what string, work float64) (*loadgen.Result, error) {
	done := r.plan.begin(what, work, len(list))
	res, err := r.env.Driver.Run(ctx, loadgen.Config{
		BaseURL: r.env.BaseURL, Backend: "sglang", Stream: true, IgnoreEOS: true, Temperature: 0,
		MaxConcurrency: concurrency, OnDone: func(int, *loadgen.Outcome) { r.plan.one() },
	}, list)
	done()
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if err == nil && len(res.Outcomes) != len(list) {
		err = fmt.Errorf("%d outcomes for %d requests", len(res.Outcomes), len(list))
	}
	return res, err
}

// where is the placement of an arm's prefixes.
func where(arm string) infer.Placement {
	switch arm {
	case record.HostArm:
		return infer.OnlyHost
	case record.HBMArm:
		return infer.OnlyDevice
	}
	return infer.Nowhere
}

// putPause is between two tries to place a prefix that a request still holds.
const putPause = 2 * time.Millisecond

// put places one prefix. An engine may hold a request's blocks for a moment after its last token went out, so "in use"
// is tried again until flushTimeout.
func (r *run) put(ctx context.Context, salt string, ids []int32, to infer.Placement) error {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	for {
		err := r.env.Placer.Place(ctx, salt, ids, to)
		if !errors.Is(err, infer.ErrInUse) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(putPause):
		}
	}
}

// place puts the prefixes of a burst into the arm's tier and reads all of it back: the prefix wholly there, the tails
// nowhere. It returns what did not hold; err is for what cannot go on.
func (r *run) place(ctx context.Context, arm string, p *prompts, burst []prompt) (wrong []string, err error) {
	to := where(arm)
	if to == infer.Nowhere {
		if err := r.empty(ctx); err != nil {
			return nil, err
		}
	} else {
		for i, ids := range p.groupsUsed(burst) {
			if err := r.put(ctx, "", ids, to); err != nil {
				return nil, fmt.Errorf("place prefix %d for arm %s: %w", i, arm, err)
			}
		}
	}
	for i, q := range burst {
		res, err := r.env.Placer.Residency(ctx, q.salt, q.ids)
		if err != nil {
			return nil, fmt.Errorf("read back where prompt %d is: %w", i, err)
		}
		if why := misplaced(res, to, p.shared/r.env.Layout.BlockTokens); why != "" {
			wrong = append(wrong, fmt.Sprintf("%s batch %d prompt %d: %s", arm, len(burst), i, why))
		}
	}
	return wrong, nil
}

// settle puts what a burst left into the arm's tier and no other, so that the next burst starts from the same state as
// the first, and reads back in the host arm that the new KV is in host memory too.
func (r *run) settle(ctx context.Context, arm string, burst []prompt) (wrong []string, err error) {
	to := where(arm)
	if to == infer.Nowhere {
		return nil, nil
	}
	for i, q := range burst {
		err := r.put(ctx, q.salt, q.ids, to)
		if errors.Is(err, infer.ErrNotCached) && !r.cfg.own() {
			continue // placing another's prefix took what continues it out of the other tier: nothing of it is left
		}
		if err != nil {
			return nil, fmt.Errorf("place what request %d of arm %s left: %w", i, arm, err)
		}
		if arm != record.HostArm {
			continue
		}
		res, err := r.env.Placer.Residency(ctx, q.salt, q.ids)
		if err != nil {
			return nil, fmt.Errorf("read back what request %d left: %w", i, err)
		}
		if res.Host != res.Blocks {
			wrong = append(wrong, fmt.Sprintf("batch %d request %d: %d of %d blocks in host memory", len(burst), i, res.Host, res.Blocks))
		}
	}
	return wrong, nil
}

// misplaced says how a whole prompt's residency differs from: prefix blocks in exactly that placement, the rest in no
// tier. It is empty when it does not.
func misplaced(res infer.Residency, to infer.Placement, prefix int) string {
	want := infer.Residency{Blocks: res.Blocks, BlockBytes: res.BlockBytes, Missing: res.Blocks}
	switch to {
	case infer.OnlyDevice:
		want.Device, want.Missing = prefix, res.Blocks-prefix
	case infer.OnlyHost:
		want.Host, want.Missing = prefix, res.Blocks-prefix
	}
	if res == want {
		return ""
	}
	return fmt.Sprintf("blocks on device %d, host %d, both %d, missing %d instead of %d, %d, 0, %d",
		res.Device, res.Host, res.Both, res.Missing, want.Device, want.Host, want.Missing)
}
