package cuda

import "os"

// Present says whether the system shows an NVIDIA GPU, without opening anything: whether it can be used is New's answer.
func Present() bool {
	_, err := os.Stat("/dev/nvidiactl")
	return err == nil
}
