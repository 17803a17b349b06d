package app

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A node without a server reports that once, after a while.
func TestNodeWithoutServersReportsItOnce(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		ready time.Duration // 0 for never
		told  int
	}{
		"no server":         {told: 1},
		"a server in time":  {ready: serverHope - time.Second},
		"a server too late": {ready: serverHope + time.Second, told: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ready, told := make(chan struct{}), 0
				if one.ready > 0 {
					time.AfterFunc(one.ready, func() { close(ready) })
				}
				began := time.Now()
				sayAlone(t.Context(), ready, nil, func() { told++ })
				if took := time.Since(began); told != one.told || took > serverHope {
					t.Errorf("told %d times after %s", told, took)
				}
				if one.ready > 0 {
					<-ready
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sayAlone(ctx, nil, nil, func() { t.Error("an agent that ends says that it retries") })

	m := &member{name: "n1"}
	m.noSession(errors.New("node n1 is not a member of this cluster"))
	said := withoutServer(m, "/data", []string{"192.0.2.1:7700", "192.0.2.2:7700"})
	for _, want := range []string{"node n1 keeps its replicas running", "(node n1 is not a member of this cluster)", "192.0.2.1:7700, 192.0.2.2:7700", "cloudless join ADDRESS --token-file FILE --data-dir /data"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q does not say %q", said, want)
		}
	}
}
