package app

import (
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func gcPercent() uint64 {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func TestServersCollectLessOftenUnlessToldOtherwise(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	t.Setenv("GOGC", "70")
	tuneMemory()
	if got := gcPercent(); got != 100 {
		t.Errorf("with GOGC the percentage became %d", got)
	}
	t.Setenv("GOGC", "")
	tuneMemory()
	if got := gcPercent(); got != serverGCPercent {
		t.Errorf("without GOGC the percentage became %d, want %d", got, serverGCPercent)
	}
}
