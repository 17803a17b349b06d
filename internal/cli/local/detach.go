package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/systemd"
)

// readyEnv tells a child of --detach on which file descriptor its parent waits for its messages.
const readyEnv = "CLOUDLESS_READY_FD"

// childPatience is how long a child may take to stop before it is killed.
const childPatience = 15 * time.Second

// childMessage is one line on that descriptor.
type childMessage struct {
	Progress string                       `json:"progress,omitempty"`
	Ready    *string                      `json:"ready,omitempty"`
	Running  *datadir.AlreadyRunningError `json:"running,omitempty"`
	Error    string                       `json:"error,omitempty"`
}

// handover is a secret that a detached child reads from its standard input instead of its arguments: the flag gets the
// value -, and the flag that held the secret is hidden.
type handover struct{ flag, hides, secret string }

// runRole runs a role in this process, or in a process of its own with --detach. It shows the progress of the role.
func (c *Commands) runRole(cmd *cobra.Command, detach bool, process *Process, secret *handover, run func(context.Context) error) error {
	if detach {
		return c.detach(cmd, process.DataDir, secret)
	}
	tell, err := c.reporter()
	if err != nil {
		return err
	}
	defer tell.close()
	process.Progress, process.Ready, process.Attended = tell.progress, tell.ready, tell.pipe != nil
	process.Log = tell.line.Beside(process.Log)
	err = run(cmd.Context())
	if cmd.Context().Err() != nil && errors.Is(err, context.Canceled) {
		err = nil // the ordinary end
	}
	tell.failed(err)
	return err
}

// reporter shows the progress of a role: to the parent that waits for it, or to the user at the terminal.
type reporter struct {
	mu      sync.Mutex
	manager systemd.Notifier
	pipe    *os.File // to the parent; nil if none waits
	env     *command.Env
	line    *terminal.ProgressLine
}

func (c *Commands) reporter() (*reporter, error) {
	r := &reporter{env: c.Env, line: terminal.NewProgressLine(c.Stderr)}
	var err error
	if r.manager, err = systemd.NewNotifier(); err != nil {
		return nil, err
	}
	name, waited := os.LookupEnv(readyEnv)
	if !waited {
		return r, nil
	}
	// Processes that this one starts must inherit neither the variable nor the descriptor.
	if err := os.Unsetenv(readyEnv); err != nil {
		return nil, err
	}
	fd, err := strconv.Atoi(name)
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("%s is %q, which is no file descriptor of a waiting process: unset it", readyEnv, name)
	}
	syscall.CloseOnExec(fd)
	r.pipe = os.NewFile(uintptr(fd), "readiness")
	return r, nil
}

func (r *reporter) progress(doing string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.say(childMessage{Progress: doing})
	r.line.Show(doing)
	_ = r.manager.Status(doing) // only systemctl status shows it
}

func (r *reporter) ready(message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line.Clear()
	first, _, _ := strings.Cut(message, "\n")
	if err := errors.Join(r.manager.Status(first), r.manager.Ready()); err != nil {
		r.env.Note("cloudless: %v", err) // systemd reports the missing readiness itself
	}
	if r.pipe == nil {
		_ = r.env.Printf("%s\n", message) // a role does not fail because its output is closed
		return
	}
	r.say(childMessage{Ready: &message})
	r.release()
}

func (r *reporter) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line.Clear()
	if err == nil {
		return
	}
	if running, ok := errors.AsType[*datadir.AlreadyRunningError](err); ok {
		r.say(childMessage{Running: running})
		return
	}
	r.say(childMessage{Error: client.Message(err)})
}

func (r *reporter) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release()
}

func (r *reporter) say(m childMessage) {
	if r.pipe == nil {
		return
	}
	data, err := json.Marshal(m)
	if err != nil {
		return
	}
	if _, err := r.pipe.Write(append(data, '\n')); err != nil {
		r.release() // the parent is gone
	}
}

func (r *reporter) release() {
	if r.pipe != nil {
		_ = r.pipe.Close()
		r.pipe = nil
	}
}

// detach starts the same command in a session of its own and waits until it is ready.
func (c *Commands) detach(cmd *cobra.Command, dataDir string, secret *handover) error {
	_, missing := os.Stat(dataDir)
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	logPath := filepath.Join(dataDir, "cloudless.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	child, words, err := startChild(cmd, log, secret)
	if err != nil {
		return fmt.Errorf("start the process: %w", err)
	}
	defer words.Close()
	last, err := c.awaitChild(cmd.Context(), child, words, time.After(noteAfter))
	if err != nil {
		if begin == 0 {
			removeLog(logPath, missing != nil)
		}
		return err
	}
	switch {
	case last.Ready != nil:
		// The child outlives this process.
		return errors.Join(c.Printf("%s\n", *last.Ready), child.Process.Release())
	case last.Running != nil:
		_ = child.Wait()
		return c.Printf("%s\n", last.Running.Sentence())
	case last.Error != "":
		_ = child.Wait()
		if begin == 0 {
			removeLog(logPath, missing != nil)
		}
		return errors.New(last.Error)
	}
	return fmt.Errorf("the process ended before it was ready (%w): the end of %s says: %s", endOf(child), logPath, tailOf(logPath, begin))
}

// removeLog removes the log unless its folder has other files. It removes the folder, too, if it was created for the log.
func removeLog(path string, made bool) {
	folder := filepath.Dir(path)
	left, err := os.ReadDir(folder)
	if err != nil || len(left) != 1 || os.Remove(path) != nil || !made {
		return
	}
	_ = os.Remove(folder)
}

// startChild runs this program again with the flags of cmd except --detach. Its messages arrive on words.
func startChild(cmd *cobra.Command, log *os.File, secret *handover) (child *exec.Cmd, words *os.File, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	words, say, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer say.Close()
	child = exec.Command(program, childArgs(cmd, secret)...)
	child.Stdout, child.Stderr = log, log
	child.ExtraFiles = []*os.File{say} // the first of them is descriptor 3
	child.Env = append(os.Environ(), readyEnv+"=3")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if secret != nil {
		child.Stdin = strings.NewReader(secret.secret)
	}
	if err := child.Start(); err != nil {
		return nil, nil, errors.Join(err, words.Close())
	}
	return child, words, nil
}

func childArgs(cmd *cobra.Command, secret *handover) []string {
	args := strings.Fields(cmd.CommandPath())[1:]
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name == "detach" || secret != nil && (f.Name == secret.flag || f.Name == secret.hides) {
			return
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, value := range list.GetSlice() {
				args = append(args, "--"+f.Name+"="+value)
			}
			return
		}
		args = append(args, "--"+f.Name+"="+f.Value.String())
	})
	if secret != nil {
		args = append(args, "--"+secret.flag+"=-")
	}
	return append(args, cmd.Flags().Args()...)
}

// noteAfter is how long detach waits silently where there is no terminal. Then it says what it waits for.
const noteAfter = 10 * time.Second

// awaitChild shows the progress of the child and returns its last message, which is empty if the child ended without
// one. Without a terminal, it notes the progress once late fires. If ctx ends first, it stops the child.
func (c *Commands) awaitChild(ctx context.Context, child *exec.Cmd, words io.Reader, late <-chan time.Time) (childMessage, error) {
	line := terminal.NewProgressLine(c.Stderr)
	defer line.Clear()
	heard := make(chan childMessage)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		defer close(heard)
		for decoder := json.NewDecoder(words); ; {
			var m childMessage
			if decoder.Decode(&m) != nil {
				return
			}
			select {
			case heard <- m:
			case <-ended:
				return
			}
		}
	}()
	doing, noted, isLate := "it is starting", "", false
	for ctx.Err() == nil {
		select {
		case m, more := <-heard:
			if !more || m.Progress == "" {
				return m, nil
			}
			doing = m.Progress
			line.Show(doing)
		case <-late:
			isLate = true
		case <-ctx.Done():
			continue
		}
		if isLate && !line.Shown() && doing != noted {
			c.Note("cloudless: still waiting: %s", doing)
			noted = doing
		}
	}
	line.Show("stopping")
	_ = child.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(childPatience, func() { _ = child.Process.Kill() })
	defer kill.Stop()
	_ = child.Wait()
	return childMessage{}, ctx.Err()
}

// endOf says how a child ended.
func endOf(child *exec.Cmd) error {
	if err := child.Wait(); err != nil {
		return err
	}
	return errors.New("without an error")
}

// tailOf is the last lines of the log after an offset, joined into one.
func tailOf(path string, from int64) string {
	const most, lines = 16 << 10, 5
	f, err := os.Open(path)
	if err != nil {
		return "nothing that could be read"
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		from = max(from, info.Size()-most)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if err != nil {
		return "nothing that could be read"
	}
	var kept []string
	for line := range bytes.Lines(data) {
		if text := terminal.Plain(string(line)); text != "" {
			kept = append(kept, text)
		}
	}
	if len(kept) == 0 {
		return "nothing"
	}
	return strings.Join(kept[max(0, len(kept)-lines):], "; ")
}
