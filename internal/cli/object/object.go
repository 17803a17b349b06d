// Package object has the commands for objects: put, get, ls, head, rm, cp and where. What is interrupted by a failure goes
// on at the next call: uploads of large files by their parts, downloads by the file that they have begun.
//
// It must not know other commands.
package object

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/spec"
)

// Object is the command cloudless object.
func Object(e *command.Env) *cobra.Command {
	return command.Group("object", "Put, get and list objects in buckets",
		"  cloudless object put ./cat.jpg photos/cat.jpg\n  cloudless object get photos/cat.jpg .\n  cloudless object ls photos\n  cloudless object where photos/cat.jpg",
		putCommand(e), getCommand(e), listCommand(e), headCommand(e), removeCommand(e), copyCommand(e), whereCommand(e))
}

// work is what a command works with.
type work struct {
	*command.Env
	objects v1.ObjectServiceClient
	meter   *meter
}

// with runs a command.
func with(e *command.Env, do func(ctx context.Context, w *work, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return e.WithClient(func(ctx context.Context, cl *client.Client, cmd *cobra.Command, args []string) error {
		w := &work{Env: e, objects: client.Service(cl, v1.NewObjectServiceClient), meter: newMeter(e.Stderr)}
		defer w.meter.Clear()
		return do(ctx, w, cmd, args)
	})
}

// place is an object, or a bucket if it has no key.
type place struct{ bucket, key string }

func (p place) String() string { return p.bucket + "/" + p.key }

// parsePlace takes what is before the first slash for a bucket.
func parsePlace(cmd *cobra.Command, text string) (place, error) {
	bucket, key, _ := strings.Cut(text, "/")
	if bucket == "" || isLocal(text) {
		return place{}, command.Usagef(cmd, "%q is not an object: write BUCKET/KEY, such as photos/cat.jpg", text)
	}
	return place{bucket, key}, nil
}

// parseObject is parsePlace for a place that must have a key.
func parseObject(cmd *cobra.Command, text string) (place, error) {
	p, err := parsePlace(cmd, text)
	if err == nil && p.key == "" {
		err = command.Usagef(cmd, "%q is a bucket: write BUCKET/KEY for an object in it", text)
	}
	return p, err
}

// isLocal reports whether a text can only be a path of this machine, or standard input or output.
func isLocal(text string) bool {
	return text == "-" || text == "." || text == ".." || strings.HasPrefix(text, "/") || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../")
}

// patience is how long a command goes on although no server answers.
const patience = time.Minute

// quiet is how long a command retries before it says why.
const quiet = 2 * time.Second

// again does something until it succeeds or fails for good. It gives up after a while in which progress did not grow.
func (w *work) again(ctx context.Context, progress func() int64, do func() error) error {
	pause, since, before := 200*time.Millisecond, time.Now(), progress()
	told := ""
	for {
		err := do()
		if status.Code(err) != codes.Unavailable || ctx.Err() != nil {
			return err
		}
		if now := progress(); now > before {
			pause, since, before = 200*time.Millisecond, time.Now(), now
		}
		if time.Since(since) > patience {
			return err
		}
		if why := client.Message(err); why != told && time.Since(since)+pause > quiet {
			w.meter.Clear()
			w.Note("Trying again for up to %s: %s", command.ShortDuration(patience), terminal.Plain(why))
			told = why
		}
		if sleep.For(ctx, pause) != nil {
			return context.Cause(ctx)
		}
		pause = min(2*pause, 3*time.Second)
	}
}

// nothing is the progress of what has none.
func nothing() int64 { return 0 }

// each calls f for every object with a prefix.
func (w *work) each(ctx context.Context, request *v1.ListObjectsRequest, f func(*v1.ListObjectsResponse) error) error {
	request.Namespace, request.Page = w.Namespace, &v1.Page{Size: 1000}
	for {
		page, err := w.objects.ListObjects(ctx, request)
		if err != nil {
			return err
		}
		if err := f(page); err != nil {
			return err
		}
		if request.Page.Token = page.GetNext(); request.Page.Token == "" {
			return nil
		}
	}
}

func headCommand(e *command.Env) *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use: "head BUCKET/KEY", Short: "Show an object without its content",
		Example: "  cloudless object head photos/cat.jpg\n  cloudless object head photos/cat.jpg -o json",
		Args:    command.ExactArgs("BUCKET/KEY"),
		RunE: with(e, func(ctx context.Context, w *work, cmd *cobra.Command, args []string) error {
			p, err := parseObject(cmd, args[0])
			if err != nil {
				return err
			}
			o, err := w.objects.HeadObject(ctx, &v1.HeadObjectRequest{Namespace: w.Namespace, Bucket: p.bucket, Key: p.key, Version: version})
			if err != nil {
				return err
			}
			if !w.ForPeople() {
				return w.PrintObject(o)
			}
			f := terminal.NewFacts(w.Stdout)
			f.Add("Object", terminal.Plain(p.String()))
			f.Add("Namespace", o.GetNamespace())
			f.Add("Size", spec.HumanBytes(o.GetSize()))
			f.Add("ETag", o.GetEtag())
			f.Add("Version", o.GetVersion())
			f.Add("Put", o.GetTime().AsTime().Local().Format(time.DateTime))
			if o.GetEncrypted() {
				f.Add("Encryption", "on")
			}
			f.Add("Type", terminal.Plain(o.GetContentType()))
			f.Add("Metadata", terminal.Pairs(o.GetMetadata()))
			f.Add("Tags", terminal.Pairs(o.GetTags()))
			if o.GetExpireTime() != nil {
				f.Add("Expires", o.GetExpireTime().AsTime().Local().Format(time.DateTime))
			}
			return f.Flush()
		}),
	}
	cmd.Flags().StringVar(&version, "version", "", "show this `version` instead of the current one")
	return cmd
}

func whereCommand(e *command.Env) *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use: "where BUCKET/KEY", Short: "Show on which nodes the pieces of an object are",
		Long: "Where shows each piece of an object, which nodes have it, and how many should. A piece with fewer copies than it\n" +
			"should have is copied to another node after a while; storage status says why it is not, and storage repair begins\n" +
			"at once.",
		Example: "  cloudless object where photos/cat.jpg",
		Args:    command.ExactArgs("BUCKET/KEY"),
		RunE: with(e, func(ctx context.Context, w *work, cmd *cobra.Command, args []string) error {
			p, err := parseObject(cmd, args[0])
			if err != nil {
				return err
			}
			request := &v1.LocateObjectRequest{Namespace: w.Namespace, Bucket: p.bucket, Key: p.key, Version: version}
			answer, err := w.objects.LocateObject(ctx, request)
			for err == nil && answer.GetNextOffset() > 0 {
				request.Offset, request.Version = answer.GetNextOffset(), answer.GetObject().GetVersion()
				var more *v1.LocateObjectResponse
				if more, err = w.objects.LocateObject(ctx, request); err == nil {
					answer.Pieces, answer.NextOffset = append(answer.Pieces, more.GetPieces()...), more.GetNextOffset()
				}
			}
			if err != nil {
				return err
			}
			if !w.ForPeople() {
				return w.PrintObject(answer)
			}
			return w.printPieces(answer)
		}),
	}
	cmd.Flags().StringVar(&version, "version", "", "show this `version` instead of the current one")
	return cmd
}
