package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	taskstate "github.com/containerd/containerd/api/types/task"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// leaseAnnotation names the file with the lease of a container: the time by CLOCK_BOOTTIME, in nanoseconds, until which
// it may run. Package driver/containerd sets it.
const leaseAnnotation = "cloudless.lease"

// annotationsOf are those of the container in a bundle.
func annotationsOf(bundle string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(bundle, configName))
	if err != nil {
		return nil, err
	}
	var config struct{ Annotations map[string]string }
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, err
	}
	return config.Annotations, nil
}

// enforceLease kills a container when its lease has expired, however often it was renewed before. The agent may be dead
// by then: this process is what keeps the promise that no two replicas of a singleton run.
func (s *service) enforceLease(ctx context.Context, id, path string) {
	for {
		until := readLease(path)
		if bootTime() < until {
			if err := sleepUntil(until); err != nil {
				logrus.WithError(err).Error("cannot wait for the end of the lease: the container ends now")
			} else {
				continue // it may have been renewed
			}
		}
		_, _ = s.Kill(ctx, &taskapi.KillRequest{ID: id, Signal: uint32(unix.SIGKILL), All: true})
		state, err := s.TTRPCTaskService.State(ctx, &taskapi.StateRequest{ID: id})
		if err != nil || state.Status == taskstate.Status_STOPPED {
			return // it was deleted, or is dead
		}
		time.Sleep(10 * time.Millisecond) // it is dying, or was created and not started yet
	}
}

// readLease returns the time until which a container may run. A lease that cannot be read has expired.
func readLease(path string) time.Duration {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	until, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(until)
}

// bootTime is the time since the boot, including sleep.
func bootTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // every Linux has it
	return time.Duration(t.Nano())
}

// sleepUntil sleeps until a time since the boot. Unlike Go's timers, it also counts while the machine sleeps.
func sleepUntil(at time.Duration) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return err
	}
	timer := os.NewFile(uintptr(fd), "timer")
	defer func() { _ = timer.Close() }()
	if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(at.Nanoseconds())}, nil); err != nil {
		return err
	}
	var fired [8]byte
	_, err = timer.Read(fired[:])
	return err
}
