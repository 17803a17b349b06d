package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/tarcopy"
)

// Copy is the command cp.
func Copy(e *command.Env) *cobra.Command {
	c := commands{e}
	var replica string
	cmd := &cobra.Command{
		Use:   "cp NAME:PATH HERE | HERE NAME:PATH",
		Short: "Copy files and folders from or to a replica",
		Long: "Cp copies like cp -r: into the target folder if it exists, or else under the new name. A path that ends in /.\n" +
			"means the contents of the folder. Links inside folders stay links. Files in a replica belong to the user that its\n" +
			"program runs as, and disappear with the replica. The image needs no tar and no shell.\n\n" +
			"An interrupted copy leaves no partial files behind.",
		Example: "  cloudless cp web:/var/log/app.log .\n" +
			"  cloudless cp web:/data ./backup\n" +
			"  cloudless cp ./config/. web:/etc/app\n" +
			"  cloudless cp ./fix.txt web:/tmp/ --replica web-x7k2p",
		Args: command.ExactArgs("FROM", "TO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, to := parsePlace(args[0]), parsePlace(args[1])
			switch {
			case from.inside() && to.inside():
				return command.Usagef(cmd, "both %s and %s are inside replicas: copy to this machine first, and from here to the other", args[0], args[1])
			case !from.inside() && !to.inside():
				return command.Usagef(cmd, "neither %s nor %s is inside a replica: write NAME:/PATH for one of them", args[0], args[1])
			}
			inside := from
			if to.inside() {
				inside = to
			}
			if !strings.HasPrefix(inside.path, "/") {
				return command.Usagef(cmd, "the path inside a replica begins with a slash: write %s:/%s", inside.workload, inside.path)
			}
			options := client.CopyOptions{Namespace: c.Namespace, Workload: inside.workload, Replica: replica, Path: inside.path}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				if from.inside() {
					return c.copyFrom(ctx, cl, options, to.path)
				}
				return c.copyInto(ctx, cl, options, from.path)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&replica, "replica", "", "copy from or to this `replica` (default: any running one)")
	return cmd
}

// place is one end of a copy: a local path, or a path inside a workload's replica.
type place struct{ workload, path string }

func (p place) inside() bool { return p.workload != "" }

// parsePlace takes a path with a colon before the first slash for one inside a replica, as scp does. ./a:b is local.
func parsePlace(s string) place {
	workload, path, found := strings.Cut(s, ":")
	if !found || workload == "" || strings.ContainsAny(workload, "/.") {
		return place{path: s}
	}
	return place{workload: workload, path: path}
}

// copyFrom copies files from a replica to this machine.
func (c *commands) copyFrom(ctx context.Context, cl *client.Client, o client.CopyOptions, to string) error {
	if to == "" {
		return errors.New("where to copy to is empty: write . for this folder")
	}
	meter := c.copyMeter("copying " + o.Path)
	defer meter.Clear()
	o.Started = func(_ string, total int64) { meter.total.Store(total) }
	reader, writer := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := c.unpackHere(ctx, reader, o.Path, to, meter)
		reader.CloseWithError(err) // ends the sender too
		unpacked <- err
	}()
	received := cl.CopyFrom(ctx, o, meter.through(writer))
	// An incomplete archive must not look complete.
	if received != nil {
		writer.CloseWithError(received)
	} else {
		_ = writer.Close()
	}
	here := <-unpacked
	meter.Clear()
	if err := copyFailure(received, here); err != nil {
		return err
	}
	return c.copyDone(fmt.Sprintf("%s:%s", o.Workload, o.Path), to, meter)
}

func (c *commands) unpackHere(ctx context.Context, archive io.Reader, from, to string, meter *copyMeter) error {
	return tarcopy.Local().Unpack(ctx, archive, tarcopy.UnpackOptions{
		Path: to, Content: contentOnly(from), Skipped: c.skipped(meter),
	})
}

// copyInto copies files from this machine to a replica.
func (c *commands) copyInto(ctx context.Context, cl *client.Client, o client.CopyOptions, from string) error {
	as, err := nameHere(from)
	if err != nil {
		return err
	}
	if _, err := os.Stat(from); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s does not exist", from)
	}
	meter := c.copyMeter("copying " + from)
	defer meter.Clear()
	reader, writer := io.Pipe()
	packing, stop := context.WithCancel(ctx)
	defer stop()
	packed := make(chan error, 1)
	go func() {
		err := tarcopy.Local().Pack(packing, meter.through(writer), from, tarcopy.PackOptions{
			As: as, Total: func(bytes int64) { meter.total.Store(bytes) }, Skipped: c.skipped(meter),
		})
		writer.CloseWithError(err) // nil is the end of the archive
		packed <- err
	}()
	sent := cl.CopyInto(ctx, o, reader)
	stop()
	reader.CloseWithError(sent)
	here := <-packed
	meter.Clear()
	if err := copyFailure(sent, here); err != nil {
		return err
	}
	return c.copyDone(from, fmt.Sprintf("%s:%s", o.Workload, o.Path), meter)
}

// copyFailure chooses between the errors of the two ends: the end that fails first makes the other one fail too.
func copyFailure(far, here error) error {
	switch {
	case far == nil || (here != nil && errors.Is(far, here)):
		return here
	default:
		return far
	}
}

// nameHere is the name that a local path gets in the archive.
func nameHere(path string) (string, error) {
	if path == "" {
		return "", errors.New("what to copy is empty: write . for this folder")
	}
	if contentOnly(path) && path != ".." {
		return ".", nil
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return tarcopy.Base(absolute), nil
}

// contentOnly reports whether a path means the contents of a folder rather than the folder.
func contentOnly(path string) bool { return path == "." || strings.HasSuffix(path, "/.") }

func (c *commands) copyDone(from, to string, meter *copyMeter) error {
	if !c.ForPeople() {
		return nil
	}
	return c.Printf("%s copied to %s: %s\n", terminal.Plain(from), terminal.Plain(to), terminal.Size(meter.total.Load()))
}

func (c *commands) skipped(meter *copyMeter) func(name, what string) {
	return func(name, what string) {
		meter.Clear()
		c.Note("left out %s: it is a %s", terminal.Plain(name), what)
	}
}

// copyMeter shows the progress of a copy.
type copyMeter struct {
	*terminal.ProgressLine
	what        string
	total, done atomic.Int64
}

func (c *commands) copyMeter(what string) *copyMeter {
	return &copyMeter{ProgressLine: terminal.NewProgressLine(c.Stderr), what: what}
}

// through counts the bytes of the archive, which is a little larger than the files in it.
func (m *copyMeter) through(to io.Writer) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		n, err := to.Write(b)
		total := m.total.Load()
		done := m.done.Add(int64(n))
		if total > 0 {
			done = min(done, total)
			m.Show(fmt.Sprintf("%s: %s of %s (%d %%)", m.what, terminal.Size(done), terminal.Size(total), done*100/total))
		}
		return n, err
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
