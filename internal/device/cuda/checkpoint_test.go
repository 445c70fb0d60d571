package cuda_test

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"os"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/model"
)

// TestCheckpointLogits computes the next token's logits of prompts on a checkpoint, for scripts/check_transformers.py to
// compare: LARDER_CHECKPOINT is the checkpoint's folder, LARDER_PROMPTS a JSON list of lists of ids, LARDER_LOGITS where
// the logits go, fp32, a row of the vocabulary for each prompt. Every prompt is computed in company, and in pieces.
func TestCheckpointLogits(t *testing.T) {
	dir := os.Getenv("LARDER_CHECKPOINT")
	if dir == "" {
		t.Skip("LARDER_CHECKPOINT names no checkpoint (scripts/check_transformers.py makes some)")
	}
	var prompts [][]int32
	text, err := os.ReadFile(os.Getenv("LARDER_PROMPTS"))
	if err == nil {
		err = json.Unmarshal(text, &prompts)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(os.Getenv("LARDER_LOGITS"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w := openCheckpoint(t, dir)
	buf := bufio.NewWriterSize(out, 1<<20)
	const company = 25
	for lo := 0; lo < len(prompts); lo += company {
		for _, row := range w.inPieces(t, prompts[lo:min(lo+company, len(prompts))], func(left int) int { return min(left, 96) }) {
			if err := binary.Write(buf, binary.LittleEndian, row); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := buf.Flush(); err != nil {
		t.Fatal(err)
	}
}

func openCheckpoint(t *testing.T, dir string) *whole {
	t.Helper()
	cfg, err := arch.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	src, err := model.OpenCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dev := openGPU(t)
	began := time.Now()
	weights, err := model.Load(t.Context(), dev, cfg, src, nil)
	if err != nil {
		t.Fatal(err)
	}
	sec := time.Since(began).Seconds()
	t.Logf("%.2f GB of weights loaded in %.2f s: %.2f GB/s", float64(weights.Bytes())/1e9, sec, float64(weights.Bytes())/1e9/sec)
	layout := kv.LayoutOf(cfg, blockTokens, arch.BF16)
	pool, err := dev.Alloc(poolBlocks * layout.BlockBytes())
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(dev, weights, device.ComputeSpec{Layout: layout, KV: pool, MaxTokens: 4096, MaxSeqs: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return &whole{dev, m}
}
