package object

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

func getCommand(e *command.Env) *cobra.Command {
	var recursive bool
	var version string
	cmd := &cobra.Command{
		Use: "get BUCKET/KEY FILE|FOLDER|-", Short: "Get objects as files",
		Long: "Get writes an object to a file, into a folder, or to standard output (-), and with -r all objects that begin with a\n" +
			"prefix into a folder. The file appears when it is complete. If a download fails, the same command goes on where it\n" +
			"was, unless the object has changed. If it is interrupted with ctrl-C, nothing of it is left.",
		Example: "  cloudless object get photos/cat.jpg .\n" +
			"  cloudless object get photos/cat.jpg ./kitten.jpg\n" +
			"  cloudless object get -r photos/2026 ./2026\n" +
			"  cloudless object get backups/data.tar - | tar x",
		Args: command.ExactArgs("BUCKET/KEY", "FILE, FOLDER or -"),
		RunE: with(e, func(ctx context.Context, w *work, cmd *cobra.Command, args []string) error {
			from, err := parsePlace(cmd, args[0])
			if err != nil {
				return err
			}
			return w.get(ctx, cmd, from, version, args[1], recursive)
		}),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "get all objects whose keys begin with a prefix")
	cmd.Flags().StringVar(&version, "version", "", "get this `version` instead of the current one")
	return cmd
}

func (w *work) get(ctx context.Context, cmd *cobra.Command, from place, version, to string, recursive bool) error {
	if recursive {
		return w.getFolder(ctx, from, to)
	}
	if from.key == "" {
		return command.Usagef(cmd, "%q is a bucket: add -r to get all objects in it", from.bucket)
	}
	o, err := w.objects.HeadObject(ctx, &v1.HeadObjectRequest{Namespace: w.Namespace, Bucket: from.bucket, Key: from.key, Version: version})
	if err != nil {
		return err
	}
	w.meter.expect("getting "+from.String(), o.GetSize())
	if to == "-" {
		var done int64
		return w.download(ctx, o, &done, w.Stdout)
	}
	if info, err := os.Stat(to); err == nil && info.IsDir() || strings.HasSuffix(to, "/") {
		name := path.Base(from.key)
		if !filepath.IsLocal(name) || strings.HasSuffix(from.key, "/") {
			return fmt.Errorf("%s cannot be the name of a file: give one", terminal.Plain(from.key))
		}
		to = filepath.Join(to, name)
	}
	if err := w.getFile(ctx, o, to); err != nil {
		return err
	}
	w.meter.Clear()
	if !w.ForPeople() {
		return w.PrintObject(o)
	}
	return w.Printf("object %s is in %s: %s\n", terminal.Plain(from.String()), terminal.Plain(to), spec.HumanBytes(o.GetSize()))
}

// getFolder gets all objects with a prefix.
func (w *work) getFolder(ctx context.Context, from place, to string) error {
	if to == "-" {
		return errors.New("several objects cannot go to standard output: name a folder")
	}
	if from.key != "" && !strings.HasSuffix(from.key, "/") {
		from.key += "/"
	}
	count, refused := 0, 0
	err := w.each(ctx, &v1.ListObjectsRequest{Bucket: from.bucket, Prefix: from.key}, func(page *v1.ListObjectsResponse) error {
		for _, o := range page.GetItems() {
			relative := filepath.FromSlash(strings.TrimPrefix(o.GetKey(), from.key))
			switch {
			case relative == "" || strings.HasSuffix(o.GetKey(), "/"):
				continue // what some clients make for an empty folder
			case !filepath.IsLocal(relative) || strings.ContainsRune(relative, 0) || filepath.Clean(relative) != relative:
				refused++
				w.meter.Clear()
				w.Note("left out %s: it cannot be the name of a file", terminal.Plain(o.GetKey()))
				continue
			}
			w.meter.expect("getting "+o.GetKey(), o.GetSize())
			err := w.getFile(ctx, o, filepath.Join(to, relative))
			if unwritable(err) {
				refused++
				w.meter.Clear()
				w.Note("left out %s: %s", terminal.Plain(o.GetKey()), terminal.Plain(err.Error()))
				continue
			}
			if err != nil {
				return err
			}
			count++
			if !w.ForPeople() {
				if err := w.PrintItem(o); err != nil {
					return err
				}
			}
		}
		return nil
	})
	w.meter.Clear()
	switch {
	case err != nil:
		return err
	case refused > 0:
		return fmt.Errorf("%s could not be written; get each with a name of your own: cloudless object get BUCKET/KEY FILE", spec.Count(refused, "object"))
	case !w.ForPeople():
		return nil
	}
	return w.Printf("%s are in %s\n", spec.Count(count, "object"), terminal.Plain(to))
}

// unwritable is whether an error is about the name of one file, and not about all of them.
func unwritable(err error) bool {
	return errors.Is(err, errNotFile) || errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, syscall.ENOTDIR)
}

var errNotFile = errors.New("exists and is not a file")

// partName is where the beginning of a file is until it is complete. It has the ETag of the object, so that only a
// download of the same content goes on with it, and is no longer than the names of files may be.
func partName(file, etag string) string {
	folder, name := filepath.Split(file)
	ending := "." + etag + ".part"
	if len(name)+len(ending) > longestName {
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:16])
	}
	return folder + name + ending
}

// longestName is how many bytes the name of a file has at most.
const longestName = 255

// getFile writes an object to a file. What is there of it is beside the file.
func (w *work) getFile(ctx context.Context, o *v1.Object, to string) (err error) {
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	if info, err := os.Stat(to); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s %w", to, errNotFile)
	}
	if name := filepath.Base(to); len(name) > longestName {
		return fmt.Errorf("%s... is too long for the name of a file: %w", name[:40], syscall.ENAMETOOLONG)
	}
	part := partName(to, o.GetEtag())
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, ignoreClosed(f.Close()))
		if ctx.Err() != nil {
			_ = os.Remove(part)
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	done := info.Size()
	if done > o.GetSize() {
		if err := f.Truncate(0); err != nil {
			return err
		}
		done = 0
	}
	w.meter.add(done)
	// Two commands that get the same object write the same bytes to the same places.
	if err := w.download(ctx, o, &done, io.NewOffsetWriter(f, done)); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(part, to)
}

func ignoreClosed(err error) error {
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}

// download writes the rest of an object. After a failure it goes on where it was.
func (w *work) download(ctx context.Context, o *v1.Object, done *int64, to io.Writer) error {
	if *done == o.GetSize() {
		return nil
	}
	// With the version, an overwrite meanwhile does not matter if the bucket keeps versions.
	return w.again(ctx, func() int64 { return *done }, func() error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := w.objects.GetObject(ctx, &v1.GetObjectRequest{
			Namespace: w.Namespace, Bucket: o.GetBucket(), Key: o.GetKey(), Version: o.GetVersion(), Offset: *done, IfMatch: o.GetEtag(),
		})
		if err != nil {
			return err
		}
		for {
			message, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			n, err := to.Write(message.GetData())
			*done += int64(n)
			w.meter.add(int64(n))
			if err != nil {
				return err
			}
		}
		if *done != o.GetSize() {
			return fmt.Errorf("object %s/%s has %d bytes, and %d came: get it again", o.GetBucket(), terminal.Plain(o.GetKey()), o.GetSize(), *done)
		}
		return nil
	})
}
