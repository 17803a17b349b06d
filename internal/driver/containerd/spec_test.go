package containerd

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cloudless/cloudless/internal/driver"
)

func TestCommandLine(t *testing.T) {
	image := imagespec.ImageConfig{Entrypoint: []string{"/entry"}, Cmd: []string{"default"}}
	for name, test := range map[string]struct {
		image         imagespec.ImageConfig
		command, args []string
		want          []string
	}{
		"the image's own":                 {image, nil, nil, []string{"/entry", "default"}},
		"arguments":                       {image, nil, []string{"a", "b"}, []string{"/entry", "a", "b"}},
		"a command drops the image's":     {image, []string{"/own"}, nil, []string{"/own"}},
		"both":                            {image, []string{"/own"}, []string{"a"}, []string{"/own", "a"}},
		"an image without an entry point": {imagespec.ImageConfig{Cmd: []string{"/bin/sh"}}, nil, nil, []string{"/bin/sh"}},
	} {
		got, err := commandLine(driver.Task{Command: test.command, Args: test.args}, test.image)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, test.want)
		}
	}
	if _, err := commandLine(driver.Task{}, imagespec.ImageConfig{}); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no command at all: got %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"A=image", "B=image", "EMPTY="}, map[string]string{"B": "task=1", "C": ""})
	if want := []string{"A=image", "B=task=1", "C=", "EMPTY=", "PATH=" + defaultPath}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := environment([]string{"PATH=/own"}, nil); !slices.Equal(got, []string{"PATH=/own"}) {
		t.Errorf("got %q", got)
	}
}

func FuzzNumericUser(f *testing.F) {
	for _, seed := range []string{"root", "0", "1:2", "1", "web", "web:1", "1:web", ":", "4294967295:1", "-1:1", "1:2:3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, user string) {
		uid, gid, ok := numericUser(user)
		if !ok {
			return
		}
		again, againGID, stillOK := numericUser(fmt.Sprintf("%d:%d", uid, gid))
		if !stillOK || again != uid || againGID != gid {
			t.Errorf("%q became %d:%d, and that %d:%d", user, uid, gid, again, againGID)
		}
	})
}

func TestNumericUser(t *testing.T) {
	for user, want := range map[string]struct {
		uid, gid uint32
		ok       bool
	}{
		"root":         {0, 0, true},
		"0":            {0, 0, true},
		"12:34":        {12, 34, true},
		"12":           {}, // its group is in the image
		"web":          {},
		"web:34":       {},
		"12:web":       {},
		"-1:0":         {},
		"4294967296:0": {},
	} {
		uid, gid, ok := numericUser(user)
		if ok != want.ok || ok && (uid != want.uid || gid != want.gid) {
			t.Errorf("%q: got %d:%d, %v", user, uid, gid, ok)
		}
	}
}

func TestResources(t *testing.T) {
	var none, all specs.LinuxResources
	d := &Driver{}
	d.setResources(&none, driver.Resources{})
	if none.Memory != nil || none.CPU.Quota != nil || none.CPU.Shares != nil || *none.Pids.Limit != defaultPIDLimit {
		t.Errorf("no limits became %+v", none)
	}
	d.setResources(&all, driver.Resources{CPURequest: 1, CPULimit: 2500, MemoryLimit: 1 << 30, PIDLimit: 9})
	if *all.CPU.Shares != minCPUShares || *all.CPU.Quota != 250_000 || *all.CPU.Period != cpuPeriod || *all.Memory.Limit != 1<<30 || *all.Pids.Limit != 9 {
		t.Errorf("limits became %+v", all)
	}
}
