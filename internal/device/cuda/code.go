package cuda

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// A release carries machine code of all kernels, so that a machine with a driver alone can compute. It is in the folder
// code, made by WriteCode and embedded with the build tag larder_kernels, a file for each source and target, named by what
// it was made from: code of other sources is never taken.

// anyTarget is code that the driver itself translates for a GPU that none of the others is for.
const anyTarget = "compute_80"

// codeTargets are what a release has code for.
var codeTargets = []string{"sm_80", "sm_86", "sm_89", "sm_90a", anyTarget}

// sourceKey names what code is made from: the sources, the target and the options.
func sourceKey(src source, target string) string {
	h := sha256.New()
	for _, s := range append(headers(), src, source{"target", target}, source{"options", strings.Join(compileOptions, " ")}) {
		fmt.Fprintf(h, "%d:%s%d:%s", len(s.name), s.name, len(s.text), s.text)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func codeName(src source, target string) string {
	return fmt.Sprintf("%s.%s.%s.gz", strings.TrimSuffix(src.name, ".cu"), target, sourceKey(src, target))
}

// embedded gives a source's code for a target, or for any, from this binary; nil where it has none.
func embedded(src source, target string) ([]byte, error) {
	for _, t := range []string{target, anyTarget} {
		packed, err := code.ReadFile(path.Join("code", codeName(src, t)))
		if err != nil {
			continue
		}
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, fmt.Errorf("cuda: embedded code of %s: %w", src.name, err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("cuda: embedded code of %s: %w", src.name, err)
		}
		return text, nil
	}
	return nil, nil
}

// WriteCode compiles all kernels for all targets of a release into dir, which it empties of other code first. compiler is
// the run-time compiler's path or folder; "" looks for it.
func WriteCode(dir, compiler string) error {
	n, err := openCompiler(compiler)
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.gz"))
	if err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("cuda: %w", err)
		}
	}
	for _, target := range codeTargets {
		for _, src := range sources() {
			text, _, err := n.build(src, target)
			if err != nil {
				return err
			}
			if err := pack(filepath.Join(dir, codeName(src, target)), text); err != nil {
				return err
			}
		}
	}
	return nil
}

func pack(name string, text []byte) error {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	return errors.Join(w.Close(), store(name, out.Bytes()))
}
