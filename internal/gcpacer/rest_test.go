package gcpacer

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestMemoryIsReturnedAtRestOnly(t *testing.T) {
	const mb = 1 << 20
	var r rest
	for _, look := range []struct {
		memory memory
		want   bool
		why    string
	}{
		{memory{held: 20 * mb, allocated: 3 * mb}, false, "it has just started"},
		{memory{held: 20 * mb, allocated: 4 * mb}, false, "too little was allocated"},
		{memory{held: 110 * mb, allocated: 100 * mb}, false, "it is at work"},
		{memory{held: 110 * mb, allocated: 101 * mb}, true, "the work is over"},
		{memory{held: 20 * mb, allocated: 102 * mb}, false, "it was returned"},
		{memory{held: 30 * mb, allocated: 110 * mb}, false, "it is at work again"},
		{memory{held: 30 * mb, allocated: 111 * mb}, true, "there is enough garbage again"},
		{memory{held: 200 * mb, allocated: 131 * mb}, false, "it is at work"},
		{memory{held: 200 * mb, allocated: 132 * mb}, false, "too little for so large a heap"},
		{memory{held: largeHeap, allocated: 900 * mb}, false, "it is at work"},
		{memory{held: largeHeap, allocated: 901 * mb}, false, "others would notice the collection of a large heap"},
	} {
		if got := r.due(look.memory); got != look.want {
			t.Errorf("%s: returned is %v", look.why, got)
		}
	}
}

// Unused memory is collected and returned without another allocation that would make the runtime do it.
func TestMemoryIsReturnedAfterWork(t *testing.T) {
	t.Setenv("GOGC", "")
	synctest.Test(t, func(t *testing.T) {
		go func() { _ = Rest(t.Context()) }()
		left := make([]byte, 64<<20)
		for i := range left {
			left[i] = 1
		}
		runtime.KeepAlive(left)
		before := readMemory()
		time.Sleep(3 * restLook)
		synctest.Wait()
		if after := readMemory(); after.held+48<<20 > before.held {
			t.Errorf("of %d MiB the heap still has %d", before.held>>20, after.held>>20)
		}
	})
}
