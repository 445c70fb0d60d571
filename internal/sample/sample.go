// Package sample turns logits into a token. It is plain mathematics on one row of float32 logits, the oracle for
// every device's sampler; it owns no state: the same logits, parameters, seed and position give the same token, so
// batch company and preemption cannot change what a request says.
package sample

// Params are a request's sampling parameters, already validated. Temperature 0 is greedy.
type Params struct {
	Temperature float32
	TopK        int     // 0: all
	TopP        float32 // in (0, 1]; 1: all
	MinP        float32 // in [0, 1]; 0: all
	Seed        uint64
}

// Draw asks for one token.
type Draw struct {
	Params
	Position int     // index of the token in the request's output; with Seed it names the random number
	Banned   []int32 // ids that may not come (stop tokens before min_new_tokens)
}
