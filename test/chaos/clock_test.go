package chaos

import (
	"bufio"
	"os"
	"os/exec"
	"testing"
	"time"
)

const tellTimeEnv = "CLOUDLESS_CHAOS_TELL_TIME"

// tellTime answers each line with the time.
func tellTime() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		_, _ = os.Stdout.WriteString(time.Now().UTC().Format(time.RFC3339Nano) + "\n")
	}
}

// A process whose clock is set sees another date, and no other process does.
func TestClockOfOneProcessIsSet(t *testing.T) {
	if !canSetClocks {
		t.Skip("clocks can be set on amd64 only")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), tellTimeEnv+"=yes")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer in.Close()
	answers := bufio.NewScanner(out)
	for _, by := range []time.Duration{0, -time.Hour, 36 * time.Hour, 0} {
		if err := setClock(cmd.Process.Pid, by); err != nil {
			t.Fatal(err)
		}
		before := time.Now()
		if _, err := in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		if !answers.Scan() {
			t.Fatal("the process has ended")
		}
		told, err := time.Parse(time.RFC3339Nano, answers.Text())
		if err != nil {
			t.Fatal(err)
		}
		if told.Before(before.Add(by)) || told.After(time.Now().Add(by)) {
			t.Errorf("its clock was set by %v and says %v", by, told)
		}
	}
}
