package chunks

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestMachineIsIdleWhenNobodyUsesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		share, broken := 0.1, error(nil)
		i := &idleness{others: func() (float64, error) { return share, broken }}
		after := func(passed time.Duration, want bool) {
			t.Helper()
			time.Sleep(passed)
			if got := i.look(); got != want {
				t.Errorf("the machine is idle: %v, want %v", got, want)
			}
		}
		after(0, true)
		i.asked.Store(true)
		after(time.Second, false)
		after(restAfter, false)
		after(time.Second, true)
		share = 0.9
		after(0, false)
		share = 0.2
		after(restAfter+1, true)
		broken = errors.New("no such file")
		after(0, false)
	})
}
