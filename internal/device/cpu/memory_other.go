//go:build !linux

package cpu

// advise does nothing: only Linux is asked for huge pages.
func advise([]byte) {}
