package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object/objecttest"
)

var errBroken = status.Error(codes.Internal, "the machine caught fire")

// A file in three parts.
func large() []byte { return random(40<<20, 7) }

func (c *cluster) wantNoObjects(t *testing.T) {
	t.Helper()
	c.do(t, "object", "ls", "-r", "photos").expect(t, 0, "", "no objects in bucket photos\n")
}

func TestAnUploadThatFailedGoesOnWithTheMissingParts(t *testing.T) {
	c := newCluster(t)
	s := c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	content := large()
	file(t, "film", content)
	s.plan(func(number int32) error {
		if number == 2 {
			return errBroken
		}
		return nil
	}, nil)
	got := c.run(t.Context(), "", "object", "put", "film", "photos")
	if got.code != 1 || !strings.Contains(got.stderr, "caught fire") || !slices.Equal(s.parts, []int32{1}) {
		t.Fatalf("%+v, parts %v were stored", got, s.parts)
	}
	c.wantNoObjects(t)
	s.plan(nil, nil)
	c.do(t, "object", "put", "film", "photos").expect(t, 0, "object photos/film put: 40Mi\n", "")
	if !slices.Equal(s.parts, []int32{2, 3}) {
		t.Errorf("parts %v were sent again", s.parts)
	}
	c.do(t, "object", "get", "photos/film", "back")
	wantFile(t, "back", content)
}

func TestAShortFailureOfAnUploadIsNotNoticed(t *testing.T) {
	c := newCluster(t)
	s := c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	content := large()
	file(t, "film", content)
	failed := false
	s.plan(func(number int32) error {
		if number == 2 && !failed {
			failed = true
			return status.Error(codes.Unavailable, "the server restarts")
		}
		return nil
	}, nil)
	c.do(t, "object", "put", "film", "photos").expect(t, 0, "object photos/film put: 40Mi\n", "")
	c.do(t, "object", "get", "photos/film", "back")
	wantFile(t, "back", content)
}

func TestAnInterruptedUploadLeavesNothing(t *testing.T) {
	c := newCluster(t)
	s := c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	file(t, "film", large())
	ctx, interrupt := context.WithCancel(t.Context())
	s.plan(func(number int32) error {
		if number == 2 {
			interrupt()
		}
		return nil
	}, nil)
	c.run(ctx, "", "object", "put", "film", "photos").expect(t, 130, "",
		"Interrupted: nothing was put, and nothing half-made is left.\ncloudless: interrupted\n")
	c.wantNoObjects(t)
	s.plan(nil, nil)
	c.do(t, "object", "put", "film", "photos")
	if !slices.Equal(s.parts, []int32{1, 2, 3}) {
		t.Errorf("parts %v were uploaded, so others were left of the interrupted upload", s.parts)
	}
}

// What a keyboard or another program will write may never come.
func TestAnInterruptEndsAPutOfStandardInput(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one")
	ctx, interrupt := context.WithCancel(t.Context())
	input, keyboard := io.Pipe()
	t.Cleanup(func() { _ = keyboard.Close() })
	go func() {
		_, _ = keyboard.Write(random(100_000, 1))
		interrupt()
	}()
	runCLI(ctx, Options{Stdin: input}, "object", "put", "-", "photos/half", "--config", c.config).expect(t, 130, "", "cloudless: interrupted\n")
	c.wantNoObjects(t)
}

// A program whose output is put may fail, and then what it has written is not the whole.
func TestInputThatCannotBeReadIsNotPut(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one")
	input, program := io.Pipe()
	go func() {
		_, _ = program.Write(random(100_000, 1))
		_ = program.CloseWithError(errors.New("the disk is broken"))
	}()
	runCLI(t.Context(), Options{Stdin: input}, "object", "put", "-", "photos/half", "--config", c.config).expect(t, 1, "", "cloudless: the disk is broken\n")
	c.wantNoObjects(t)
}

func TestADownloadThatFailedGoesOnWhereItWas(t *testing.T) {
	c := newCluster(t)
	s := c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	content := random(9<<20, 5)
	c.run(t.Context(), string(content), "object", "put", "-", "photos/film")
	broken := func(sent int64) error {
		if sent >= 5<<20 {
			return errBroken
		}
		return nil
	}
	s.plan(nil, broken)
	if got := c.run(t.Context(), "", "object", "get", "photos/film", "film"); got.code != 1 || !strings.Contains(got.stderr, "caught fire") {
		t.Fatalf("%+v", got)
	}
	if all := filesIn(t, "."); len(all) != 1 || !strings.HasSuffix(all[0], ".part") {
		t.Fatalf("after a failed download there is %q", all)
	}
	s.plan(nil, nil)
	c.do(t, "object", "get", "photos/film", "film").expect(t, 0, "object photos/film is in film: 9Mi\n", "")
	wantFile(t, "film", content)
	if all := filesIn(t, "."); !slices.Equal(all, []string{"film"}) || !slices.Equal(s.offsets, []int64{5 << 20}) {
		t.Errorf("there is %q, and the download went on from %v", all, s.offsets)
	}

	// Of another content, nothing is taken over.
	must(t, os.Remove("film"))
	s.plan(nil, broken)
	c.run(t.Context(), "", "object", "get", "photos/film", "film")
	content = random(9<<20, 6)
	c.run(t.Context(), string(content), "object", "put", "-", "photos/film")
	s.plan(nil, nil)
	c.do(t, "object", "get", "photos/film", "film")
	wantFile(t, "film", content)
	if !slices.Equal(s.offsets, []int64{0}) {
		t.Errorf("the download of other content went on from %v", s.offsets)
	}
}

func TestAShortFailureOfADownloadIsNotNoticed(t *testing.T) {
	c := newCluster(t)
	s := c.withObjects(t, "one")
	content := string(random(9<<20, 5))
	c.run(t.Context(), content, "object", "put", "-", "photos/film")
	failed := false
	s.plan(nil, func(sent int64) error {
		if sent >= 5<<20 && !failed {
			failed = true
			return status.Error(codes.Unavailable, "the server restarts")
		}
		return nil
	})
	if got := c.do(t, "object", "get", "photos/film", "-"); got.stdout != content || got.stderr != "" {
		t.Errorf("%d bytes came, and %q", len(got.stdout), got.stderr)
	}
	if !slices.Equal(s.offsets, []int64{0, 5 << 20}) {
		t.Errorf("the download went on from %v", s.offsets)
	}
}

func TestAnInterruptedDownloadLeavesNothing(t *testing.T) {
	c := newCluster(t)
	s := c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	c.run(t.Context(), string(random(9<<20, 5)), "object", "put", "-", "photos/film")
	c.run(t.Context(), string(random(9<<20, 5)), "object", "put", "-", "photos/folder/film")
	file(t, "film", []byte("the old one"))
	for _, args := range [][]string{{"get", "photos/film", "film"}, {"get", "-r", "photos/folder", "."}} {
		ctx, interrupt := context.WithCancel(t.Context())
		s.plan(nil, func(sent int64) error {
			if sent >= 5<<20 {
				interrupt()
			}
			return nil
		})
		c.run(ctx, "", append([]string{"object"}, args...)...).expect(t, 130, "", "cloudless: interrupted\n")
		wantFile(t, "film", []byte("the old one"))
		if all := filesIn(t, "."); !slices.Equal(all, []string{"film"}) {
			t.Errorf("%q has left %q", args, all)
		}
	}
}

// screen is a terminal, and what was written to it.
func screen(t *testing.T) (out *os.File, written func() string) {
	t.Helper()
	master, slave, err := pty.Open()
	must(t, err)
	var shown bytes.Buffer
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(&shown, master)
	}()
	t.Cleanup(func() { _ = master.Close() })
	return slave, func() string {
		_ = slave.Close()
		<-ended
		return shown.String()
	}
}

func TestProgressIsShownOnATerminalOnly(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	file(t, "film", random(9<<20, 1))
	for _, test := range []struct{ args, want []string }{
		{[]string{"put", "film", "photos"}, []string{"putting film: ", "of 9Mi"}},
		{[]string{"get", "photos/film", "back"}, []string{"getting photos/film: ", "of 9Mi"}},
		{[]string{"rm", "-r", "photos"}, []string{"deleting: 1 object"}},
	} {
		var stdout bytes.Buffer
		out, written := screen(t)
		args := append([]string{"object", "--config", c.config}, test.args...)
		code := Main(t.Context(), Options{Args: args, Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: out})
		shown := written()
		for _, want := range test.want {
			if code != 0 || !strings.Contains(shown, want) || strings.Contains(stdout.String(), "\r") {
				t.Errorf("%q shows %q and ends with %d and %q, want %q", test.args, shown, code, &stdout, want)
			}
		}
		if !strings.HasSuffix(shown, "\r\x1b[K") {
			t.Errorf("%q leaves %q on the terminal", test.args, shown)
		}
	}
}

func TestAPutFailsAtOnceIfNoNodeWillStoreIt(t *testing.T) {
	c := newCluster(t)
	c.withObjects(t)
	t.Chdir(t.TempDir())
	file(t, "cat", []byte("meow"))
	got := c.run(t.Context(), "", "object", "put", "cat", "photos")
	if got.code != 1 || !strings.Contains(got.stderr, "no node stores data: the cluster has no nodes; add one with: cloudless join") {
		t.Errorf("%+v", got)
	}
}

// A node that is away may come back, so a put waits for it, but not silently.
func TestAPutSaysWhyItWaits(t *testing.T) {
	c := newCluster(t)
	s := c.withObjects(t, "one")
	t.Chdir(t.TempDir())
	file(t, "cat", []byte("meow"))
	s.disks.Break("uid-one", objecttest.Faults{Gone: true})
	ctx, interrupt := context.WithCancel(t.Context())
	notes, stderr := io.Pipe()
	ended := make(chan int)
	go func() {
		code := Main(ctx, Options{Args: []string{"object", "put", "cat", "photos", "--config", c.config}, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: stderr})
		_ = stderr.Close()
		ended <- code
	}()
	note := make([]byte, 1000)
	n, err := notes.Read(note)
	if said := string(note[:n]); err != nil || !strings.Contains(said, "Trying again for up to 60s: ") || !strings.Contains(said, "too few nodes can store data now") {
		t.Errorf("it says %q (%v)", said, err)
	}
	interrupt()
	_, _ = io.Copy(io.Discard, notes)
	if code := <-ended; code != 130 {
		t.Errorf("it ended with %d", code)
	}
}

var _ cloudlessv1.ObjectServiceServer = (*objectStore)(nil)
