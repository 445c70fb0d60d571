package infer

import "fmt"

// Validate reports the first thing that is wrong with r for a model of vocab ids and a context of contextLen tokens:
// one line that wraps ErrTooLong or ErrInvalid.
func (r *Request) Validate(vocab, contextLen int) error {
	if err := r.validateLength(contextLen); err != nil {
		return err
	}
	if err := validateIDs("input_ids", r.Tokens, vocab); err != nil {
		return err
	}
	if err := validateIDs("stop_token_ids", r.StopIDs, vocab); err != nil {
		return err
	}
	if err := r.Sampling.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

func (r *Request) validateLength(contextLen int) error {
	switch n := len(r.Tokens); {
	case n == 0:
		return fmt.Errorf("%w: the input has no tokens", ErrInvalid)
	case n >= contextLen:
		return fmt.Errorf("%w: the input (%d tokens) is longer than the model's context length (%d tokens) allows", ErrTooLong, n, contextLen)
	case r.MaxNew < 1:
		return fmt.Errorf("%w: max_new_tokens %d is less than 1", ErrInvalid, r.MaxNew)
	case r.MaxNew > contextLen-n:
		return fmt.Errorf("%w: input (%d tokens) and max_new_tokens (%d) exceed the model's context length (%d tokens)", ErrTooLong, n, r.MaxNew, contextLen)
	case r.MinNew < 0 || r.MinNew > r.MaxNew:
		return fmt.Errorf("%w: min_new_tokens %d is not between 0 and max_new_tokens %d", ErrInvalid, r.MinNew, r.MaxNew)
	}
	return nil
}

func validateIDs(name string, ids []int32, vocab int) error {
	for i, id := range ids {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("%w: %s[%d] is %d, outside the vocabulary of %d", ErrInvalid, name, i, id, vocab)
		}
	}
	return nil
}
