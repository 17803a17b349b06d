package object

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// meter shows how far a transfer is, on a terminal.
type meter struct {
	*terminal.ProgressLine
	done, total atomic.Int64

	mu    sync.Mutex
	what  string
	began time.Time
	shown time.Time
}

func newMeter(out io.Writer) *meter {
	return &meter{ProgressLine: terminal.NewProgressLine(out), began: time.Now()}
}

// expect says what is being moved, and how many bytes more.
func (m *meter) expect(what string, bytes int64) {
	m.mu.Lock()
	m.what = what
	m.mu.Unlock()
	m.total.Add(max(bytes, 0))
	m.add(0)
}

// add counts bytes.
func (m *meter) add(n int64) {
	done := m.done.Add(n)
	if !m.Shown() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Sub(m.shown) < 100*time.Millisecond {
		return
	}
	m.shown = now
	rate := ""
	if took := now.Sub(m.began); took > time.Second {
		rate = fmt.Sprintf(", %s/s", spec.HumanBytes(int64(float64(done)/took.Seconds())))
	}
	total := m.total.Load()
	if total <= 0 {
		m.Show(fmt.Sprintf("%s: %s%s", m.what, spec.HumanBytes(done), rate))
		return
	}
	m.Show(fmt.Sprintf("%s: %s of %s (%d %%)%s", m.what, spec.HumanBytes(done), spec.HumanBytes(total), min(done*100/total, 100), rate))
}
