package sessions

import (
	"testing"
	"testing/synctest"
	"time"
)

// While garbage is collected, signs of life wait, but not for longer than an agent
// that misses two of them has patience.
func TestSignsOfLifeWaitForACollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life := newLifeSigns()
		defer life.Stop()
		life.given(3 * time.Second)
		began := time.Now()
		given := func(collecting bool) time.Duration {
			for {
				<-life.C
				if life.due(collecting) {
					return time.Since(began)
				}
			}
		}
		if at := given(false); at != 3*time.Second {
			t.Errorf("the first was given after %s", at)
		}
		if at := given(true); at != 7500*time.Millisecond {
			t.Errorf("one that is late was given after %s", at)
		}
		if at := given(false); at != 10500*time.Millisecond {
			t.Errorf("the next one was given after %s", at)
		}
	})
}
