package tokenizer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// corpus is a text of about 1 MB: Go code from the standard library of this toolchain's kind of prose, or Chinese and
// English made of common words in the proportions of running text.
func corpus(t testing.TB, name string) string {
	switch name {
	case "english":
		return prose(1<<20, english, " ", ". ")
	case "chinese":
		return prose(1<<20, chinese, "", "。")
	case "code":
		return code(t, 1<<20)
	}
	part := func(s string) []string { return strings.SplitAfter(s, "\n") }
	var b strings.Builder
	en, zh, src := part(corpus(t, "english")), part(corpus(t, "chinese")), part(corpus(t, "code"))
	for i := range max(len(en), len(zh), len(src)) {
		for _, lines := range [][]string{en, zh, src} {
			if i < len(lines) {
				b.WriteString(lines[i])
			}
		}
	}
	return b.String()
}

const (
	english = "the of and to in is it that for was on are with as his they at be this from have or by one had not but what all were when we " +
		"there can an your which their said if do will each about how up out them then she many some so these would other into has more her two " +
		"like him see time could no make than first been its who now people my made over did down only way find use may water long little very " +
		"after words called just where most know government information international development university performance throughput latency " +
		"bandwidth understanding particularly organization environment responsibility significant Washington European Microsoft nevertheless " +
		"tokenizer prefill decoding transformer hierarchical checkpoint quantization 2026 1,024 don't it's we've"
	chinese = "我们 今天 中国 因为 所以 但是 如果 可以 没有 什么 世界 人工智能 模型 计算 内存 的 了 在 是 和 有 不 这 个 人 他 来 说 时间 地方 发展 经济 社会 政府 " +
		"企业 技术 研究 问题 工作 进行 通过 使用 系统 数据 信息 网络 服务 管理 国家 公司 大学 学生 老师 生活 城市 历史 文化 语言 文字 处理 能力 训练 推理 带宽 延迟 缓存 " +
		"吞吐量 上下文 也 都 就 而 与 对于 根据 关于 之间 其中 一个 一些 许多 非常 已经 正在 将会 应该 必须 能够 需要"
)

// prose draws words, the first ones more often, into sentences and paragraphs.
func prose(size int, words, between, end string) string {
	list := strings.Fields(words)
	rng := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for b.Len() < size {
		for s := range 3 + rng.IntN(5) {
			n := 5 + rng.IntN(16)
			for i := range n {
				w := list[int(float64(len(list))*rng.Float64()*rng.Float64())]
				if i == 0 && s > 0 && between != "" {
					w = strings.ToUpper(w[:1]) + w[1:]
				}
				b.WriteString(w)
				switch {
				case i == n-1:
					b.WriteString(end)
				case i == n/2 && n > 10:
					b.WriteString(map[string]string{" ": ", ", "": "，"}[between])
				default:
					b.WriteString(between)
				}
			}
		}
		b.WriteString("\n\n")
	}
	return b.String()
}

// code is this package's own source, repeated with other indentation to size.
func code(t testing.TB, size int) string {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for b.Len() < size {
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(text)
		}
	}
	return b.String()[:size]
}

var texts = []string{"english", "chinese", "code", "mix"}

// encodeOnce encodes on one core, with the encoder's word cache as it is.
func encodeOnce(t *Tokenizer, text string, dst []int32) []int32 {
	e := t.encoder()
	dst = e.encode(dst[:0], text)
	t.pool.Put(e)
	return dst
}

func BenchmarkEncode(b *testing.B) {
	t := loadQwen(b)
	for _, name := range texts {
		text := corpus(b, name)
		b.Run(name+"/warm", func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			dst := encodeOnce(t, text, nil)
			for b.Loop() {
				dst = encodeOnce(t, text, dst)
			}
			b.ReportMetric(float64(len(dst))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtok/s")
		})
		b.Run(name+"/cold", func(b *testing.B) { // the word cache starts empty
			b.SetBytes(int64(len(text)))
			e := t.encoder()
			var dst []int32
			for b.Loop() {
				clear(e.cache)
				dst = e.encode(dst[:0], text)
			}
		})
	}
}

func BenchmarkEncodeParallel(b *testing.B) {
	t, text := loadQwen(b), corpus(b, "mix")
	b.SetBytes(int64(len(text)))
	var dst []int32
	for b.Loop() {
		dst = t.Encode(text, dst[:0])
	}
}

// BenchmarkRuns are the texts of one word that only a heap keeps near-linear: the rate should fall little from 64 KiB
// to 1 MiB.
func BenchmarkRuns(b *testing.B) {
	t := loadQwen(b)
	for _, c := range []struct{ name, unit string }{{"letter", "a"}, {"space", " "}, {"han", "好"}, {"mark", "\u0301"}, {"letters", "qzjxkvbpwygf"}} {
		for _, size := range []int{1 << 16, 1 << 20} {
			text := strings.Repeat(c.unit, size/len(c.unit))
			b.Run(fmt.Sprintf("%s/%dKiB", c.name, size>>10), func(b *testing.B) {
				b.SetBytes(int64(len(text)))
				var dst []int32
				for b.Loop() {
					dst = encodeOnce(t, text, dst)
				}
			})
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	t := loadQwen(b)
	text := corpus(b, "mix")
	ids := t.Encode(text, nil)
	b.Run("batch", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			t.Decode(ids, true)
		}
	})
	b.Run("stream", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		b.ReportAllocs()
		s := t.NewStream(true)
		for b.Loop() {
			for _, id := range ids {
				s.Push(id)
			}
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	loadQwen(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Load(qwenData); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRenderChat(b *testing.B) {
	messages := []Message{{Role: "system", Content: "You are helpful."}, {Role: "user", Content: english}, {Role: "assistant", Content: english}, {Role: "user", Content: "Go on."}}
	for b.Loop() {
		if _, err := RenderChat(messages, ChatOptions{AddGenerationPrompt: true}); err != nil {
			b.Fatal(err)
		}
	}
}
