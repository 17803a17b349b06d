package portmap

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakeRouter grants mappings for an hour, while it answers.
type fakeRouter struct {
	answers        atomic.Bool
	external       string
	added, removed atomic.Int32
	renewed        atomic.Bool // the last request was for a mapping that exists
}

func (f *fakeRouter) protocol() protocol {
	return protocol{
		name: "fake",
		add: func(ctx context.Context, _ router, _ uint16, old mapping) (mapping, error) {
			if !f.answers.Load() {
				<-ctx.Done()
				return mapping{}, ctx.Err()
			}
			f.added.Add(1)
			made := mapping{external: netip.MustParseAddrPort(f.external), lifetime: time.Hour}
			f.renewed.Store(old.external == made.external)
			return made, nil
		},
		remove: func(context.Context, router, uint16, mapping) error {
			f.removed.Add(1)
			return nil
		},
	}
}

var here = router{netip.MustParseAddr("192.168.7.1"), netip.MustParseAddr("192.168.7.2")}

// start runs a mapper in a bubble until the returned function is called.
func (f *fakeRouter) start(t *testing.T) (m *Mapper, stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	m = New(func() uint16 { return 7701 }, func() {}, slog.New(slog.DiscardHandler))
	m.find, m.protocols = func() (router, error) { return here, nil }, []protocol{f.protocol()}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.Run(ctx)
	}()
	synctest.Wait()
	return m, func() {
		cancel()
		<-ended
	}
}

func TestMappingIsRenewedAndRemovedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRouter{external: "45.0.0.2:7701"}
		f.answers.Store(true)
		m, stop := f.start(t)
		if m.Mapped().String() != f.external || f.added.Load() != 1 {
			t.Fatalf("the port is mapped to %v after %d requests", m.Mapped(), f.added.Load())
		}
		time.Sleep(45 * time.Minute)
		synctest.Wait()
		if f.added.Load() != 2 || !f.renewed.Load() {
			t.Errorf("after three quarters of the lease, there were %d requests, the last to renew it: %v", f.added.Load(), f.renewed.Load())
		}
		stop()
		if f.removed.Load() != 1 || m.Mapped().IsValid() {
			t.Errorf("at the end, %d mappings were removed, and %v is left", f.removed.Load(), m.Mapped())
		}
	})
}

// A router that does not answer costs one attempt now and then, and the end does not wait for it.
func TestRouterThatDoesNotAnswerIsAskedAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRouter{external: "45.0.0.2:7701"}
		m, stop := f.start(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		if m.Mapped().IsValid() {
			t.Errorf("the port is mapped to %v by nobody", m.Mapped())
		}
		f.answers.Store(true)
		m.Moved()
		synctest.Wait()
		if m.Mapped().String() != f.external {
			t.Errorf("after the machine has moved, the port is mapped to %v", m.Mapped())
		}
		f.answers.Store(false)
		time.Sleep(time.Hour)
		synctest.Wait()
		if m.Mapped().IsValid() {
			t.Errorf("%v is still announced although it could not be renewed", m.Mapped())
		}
		stop()
	})
}

func TestAddressBehindAnotherNATIsOfNoUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRouter{external: "100.64.3.4:7701"}
		f.answers.Store(true)
		m, stop := f.start(t)
		defer stop()
		if m.Mapped().IsValid() {
			t.Errorf("%v is announced", m.Mapped())
		}
	})
}

func TestMachineWithoutARouterAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeRouter{external: "45.0.0.2:7701"}
		f.answers.Store(true)
		m, stop := f.start(t)
		m.find = func() (router, error) { return router{}, errors.New("no default gateway") }
		m.Moved()
		synctest.Wait()
		if m.Mapped().IsValid() || f.added.Load() != 1 {
			t.Errorf("%v is announced after %d requests", m.Mapped(), f.added.Load())
		}
		stop()
	})
}
