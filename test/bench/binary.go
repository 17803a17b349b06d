package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// measureBinary takes the larger of the binaries of make build-all.
func measureBinary(_ context.Context, l *lab) (result, error) {
	var r result
	for _, arch := range []string{"amd64", "arm64"} {
		info, err := os.Stat(filepath.Join(filepath.Dir(l.cloudless), "cloudless-linux-"+arch))
		if errors.Is(err, fs.ErrNotExist) {
			return result{}, fmt.Errorf("%w: run make build-all first", err)
		}
		if err != nil {
			return result{}, err
		}
		size := float64(info.Size()) / 1e6
		r.value = max(r.value, size)
		r.notes = append(r.notes, fmt.Sprintf("linux/%s: %.4g MB", arch, size))
	}
	return r, nil
}
