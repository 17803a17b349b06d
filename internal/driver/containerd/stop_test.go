package containerd

import (
	"errors"
	"syscall"
	"testing"

	"github.com/cloudless/cloudless/internal/driver"
)

func TestStopSignals(t *testing.T) {
	for _, c := range []struct {
		name, ofImage string
		want          syscall.Signal // 0 is refused
	}{
		{"", "", syscall.SIGTERM},
		{"", "SIGQUIT", syscall.SIGQUIT},
		{"", "SIGQIUT", syscall.SIGTERM}, // no caller could fix that
		{"", "4711", syscall.SIGTERM},
		{"SIGINT", "SIGQUIT", syscall.SIGINT},
		{"SIGQIUT", "SIGQUIT", 0},
		{"4711", "SIGQUIT", 0},
		{"-9", "SIGQUIT", 0},
	} {
		got, err := stopSignal(c.name, c.ofImage)
		if got != c.want || errors.Is(err, driver.ErrInvalid) != (c.want == 0) {
			t.Errorf("%q and %q of the image: got %v, %v", c.name, c.ofImage, got, err)
		}
	}
}
