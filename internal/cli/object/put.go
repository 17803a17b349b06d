package object

import (
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

const (
	// partSize is how large the parts of an upload are, at least. A smaller file is put in one call.
	partSize = 16 << 20
	// mostParts is fewer than the store allows.
	mostParts = 9000
	// maxKey is how many bytes a key may have.
	maxKey = 1024
	// messageSize is how much content one message has.
	messageSize = 256 << 10
	// abortTime is how long an interrupted command takes to clean up.
	abortTime = 5 * time.Second
)

func putCommand(e *command.Env) *cobra.Command {
	var o putOptions
	cmd := &cobra.Command{
		Use: "put FILE|FOLDER|- BUCKET[/KEY]", Short: "Put files into a bucket",
		Long: "Put stores a file, standard input (-), or with -r all files of a folder. A key that ends with a slash, and a bucket\n" +
			"without a key, get the name of the file added. If a large upload fails, the same command goes on with the parts\n" +
			"that are missing. If it is interrupted with ctrl-C, nothing of it is left.",
		Example: "  cloudless object put ./cat.jpg photos/cat.jpg\n" +
			"  cloudless object put -r ./2026 photos/2026\n" +
			"  tar c ./data | cloudless object put - backups/data.tar",
		Args: command.ExactArgs("FILE", "BUCKET[/KEY]"),
		RunE: with(e, func(ctx context.Context, w *work, cmd *cobra.Command, args []string) error {
			to, err := parsePlace(cmd, args[1])
			if err != nil {
				return err
			}
			return w.put(ctx, cmd, args[0], to, o)
		}),
	}
	cmd.Flags().BoolVarP(&o.recursive, "recursive", "r", false, "put all files of a folder")
	cmd.Flags().StringVar(&o.contentType, "type", "", "`type` of the content, such as image/jpeg (default: by the name)")
	cmd.Flags().StringArrayVar(&o.metadata, "metadata", nil, "`key=value` to keep with the object; may be repeated")
	cmd.Flags().BoolVar(&o.ifAbsent, "if-absent", false, "fail if the object exists already")
	return cmd
}

type putOptions struct {
	recursive, ifAbsent bool
	contentType         string
	metadata            []string
}

func (w *work) put(ctx context.Context, cmd *cobra.Command, from string, to place, o putOptions) error {
	metadata, err := command.ParsePairs("--metadata", o.metadata, nil)
	if err != nil {
		return err
	}
	header := func(key string) *v1.PutObjectHeader {
		kind := o.contentType
		if kind == "" {
			kind = mime.TypeByExtension(path.Ext(key))
		}
		return &v1.PutObjectHeader{Namespace: w.Namespace, Bucket: to.bucket, Key: key, ContentType: kind, Metadata: metadata, IfAbsent: o.ifAbsent}
	}
	if from == "-" {
		if to.key == "" || strings.HasSuffix(to.key, "/") {
			return command.Usagef(cmd, "standard input has no name: write BUCKET/KEY")
		}
		if w.TokenFromStdin() {
			return command.Usagef(cmd, "standard input cannot be both the token and the object: write the token to a file")
		}
		w.meter.expect("putting "+to.String(), -1)
		h := header(to.key)
		h.Size = -1
		content, end := untilDone(ctx, w.Stdin)
		defer end()
		made, err := w.putStream(ctx, h, content)
		return w.putDone(made, err)
	}
	info, err := os.Stat(from)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s does not exist", from)
	case err != nil:
		return err
	case info.IsDir() && !o.recursive:
		return command.Usagef(cmd, "%s is a folder: add -r to put all files in it", from)
	case info.IsDir():
		return w.putFolder(ctx, from, to, header)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file: put its content with: cat %s | cloudless object put - %s", from, from, to)
	}
	if to.key == "" || strings.HasSuffix(to.key, "/") {
		to.key += filepath.Base(from)
	}
	w.meter.expect("putting "+from, info.Size())
	made, err := w.putFile(ctx, from, header(to.key))
	return w.putDone(made, err)
}

// untilDone reads what another program or a keyboard writes, until ctx ends: a read may wait for ever. Such a read is left
// behind, and ends with the program.
func untilDone(ctx context.Context, from io.Reader) (content io.Reader, end func()) {
	content, feed := io.Pipe()
	stop := context.AfterFunc(ctx, func() { _ = feed.CloseWithError(context.Cause(ctx)) })
	go func() {
		_, err := io.Copy(feed, from)
		_ = feed.CloseWithError(err)
	}()
	return content, func() {
		stop()
		_ = feed.CloseWithError(io.ErrClosedPipe)
	}
}

func (w *work) putDone(made *v1.Object, err error) error {
	w.meter.Clear()
	switch {
	case err != nil:
		return err
	case !w.ForPeople():
		return w.PrintObject(made)
	}
	return w.Printf("object %s/%s put: %s\n", made.GetBucket(), terminal.Plain(made.GetKey()), spec.HumanBytes(made.GetSize()))
}

// putFolder puts all files below a folder.
func (w *work) putFolder(ctx context.Context, from string, to place, header func(string) *v1.PutObjectHeader) error {
	if to.key != "" && !strings.HasSuffix(to.key, "/") {
		to.key += "/"
	}
	type file struct{ path, key string }
	var files []file
	refused := 0
	err := filepath.WalkDir(from, func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		relative, err := filepath.Rel(from, at)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		switch {
		case err != nil:
			return err
		case !info.Mode().IsRegular():
			w.Note("left out %s: it is not a file", terminal.Plain(at))
			return nil
		}
		key := to.key + filepath.ToSlash(relative)
		if len(key) > maxKey || !utf8.ValidString(key) {
			refused++
			w.Note("left out %s: a key is 1 to 1,024 bytes of UTF-8", terminal.Plain(at))
			return nil
		}
		w.meter.total.Add(info.Size())
		files = append(files, file{at, key})
		return nil
	})
	if err != nil {
		return err
	}
	var bytes int64
	for _, f := range files {
		w.meter.expect("putting "+f.path, 0)
		made, err := w.putFile(ctx, f.path, header(f.key))
		if err != nil {
			return fmt.Errorf("%s: %w", f.path, err)
		}
		bytes += made.GetSize()
		if !w.ForPeople() {
			if err := w.PrintItem(made); err != nil {
				return err
			}
		}
	}
	w.meter.Clear()
	switch {
	case refused > 0:
		return fmt.Errorf("%s could not be put; put each with a key of your own: cloudless object put FILE BUCKET/KEY", spec.Count(refused, "file"))
	case !w.ForPeople():
		return nil
	}
	return w.Printf("%s put into %s: %s\n", spec.Count(len(files), "file"), terminal.Plain(to.String()), spec.HumanBytes(bytes))
}

// putFile puts a file, in parts if it is large.
func (w *work) putFile(ctx context.Context, name string, header *v1.PutObjectHeader) (*v1.Object, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	header.Size = info.Size()
	if info.Size() > 2*partSize {
		return w.putParts(ctx, f, info, header)
	}
	var made *v1.Object
	err = w.again(ctx, nothing, func() error {
		before := w.meter.done.Load()
		made, err = w.putStream(ctx, header, io.NewSectionReader(f, 0, info.Size()))
		if err != nil {
			w.meter.done.Store(before)
		}
		return err
	})
	return made, err
}

// putStream puts content in one call.
func (w *work) putStream(ctx context.Context, header *v1.PutObjectHeader, content io.Reader) (*v1.Object, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // content that cannot be read must not look complete
	stream, err := w.objects.PutObject(ctx)
	if err != nil {
		return nil, err
	}
	err = stream.Send(&v1.PutObjectRequest{Part: &v1.PutObjectRequest_Header{Header: header}})
	if err == nil {
		err = w.send(content, func(data []byte) error {
			return stream.Send(&v1.PutObjectRequest{Part: &v1.PutObjectRequest_Data{Data: data}})
		})
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return stream.CloseAndRecv() // io.EOF of Send means that the server has answered early
}

// send sends content in messages, each as soon as it is there: the server gives up uploads that stall. io.EOF is the error of a stream whose answer says more.
func (w *work) send(content io.Reader, send func([]byte) error) error {
	buf := make([]byte, messageSize)
	for {
		n, err := content.Read(buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
			w.meter.add(int64(n))
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// fingerprint identifies a file on this machine, as long as it is not changed.
func fingerprint(name string, info fs.FileInfo, part int64) string {
	absolute, err := filepath.Abs(name)
	if err != nil {
		absolute = name
	}
	host, _ := os.Hostname() // without it, files of other machines have other times
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%d\x00%d", host, absolute, info.Size(), info.ModTime().UnixNano(), part))
	return hex.EncodeToString(sum[:])
}

// putParts uploads a file in parts, and goes on with an earlier upload of it.
func (w *work) putParts(ctx context.Context, f *os.File, info fs.FileInfo, header *v1.PutObjectHeader) (_ *v1.Object, err error) {
	size := max(partSize, (info.Size()/mostParts+1<<20)>>20<<20)
	var upload *v1.ObjectUpload
	if err := w.again(ctx, nothing, func() (err error) {
		upload, err = w.objects.CreateObjectUpload(ctx, &v1.CreateObjectUploadRequest{Header: header, Resume: fingerprint(f.Name(), info, size)})
		return err
	}); err != nil {
		return nil, err
	}
	defer func() {
		if ctx.Err() != nil {
			w.abort(ctx, header, upload.GetId())
		}
	}()
	there, err := w.objects.ListObjectParts(ctx, &v1.ListObjectPartsRequest{Namespace: header.GetNamespace(), Bucket: header.GetBucket(), Key: header.GetKey(), Upload: upload.GetId()})
	if err != nil {
		return nil, err
	}
	known := map[int32]*v1.ObjectPart{}
	for _, p := range there.GetItems() {
		known[p.GetNumber()] = p
	}
	var parts []*v1.ObjectPart
	for number, offset := int32(1), int64(0); offset < info.Size(); number, offset = number+1, offset+size {
		content := io.NewSectionReader(f, offset, min(size, info.Size()-offset))
		part, err := w.putPart(ctx, header, upload.GetId(), number, content, known[number])
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	var made *v1.Object
	err = w.again(ctx, nothing, func() error {
		made, err = w.objects.CompleteObjectUpload(ctx, &v1.CompleteObjectUploadRequest{
			Namespace: header.GetNamespace(), Bucket: header.GetBucket(), Key: header.GetKey(), Upload: upload.GetId(), Parts: parts, IfAbsent: header.GetIfAbsent(),
		})
		return err
	})
	return made, err
}

// putPart uploads a part, unless it is there already.
func (w *work) putPart(ctx context.Context, header *v1.PutObjectHeader, upload string, number int32, content *io.SectionReader, known *v1.ObjectPart) (*v1.ObjectPart, error) {
	if known.GetSize() == content.Size() {
		sum := md5.New()
		if _, err := io.Copy(sum, content); err != nil {
			return nil, err
		}
		if hex.EncodeToString(sum.Sum(nil)) == known.GetEtag() {
			w.meter.add(content.Size())
			return known, nil
		}
	}
	var part *v1.ObjectPart
	err := w.again(ctx, nothing, func() error {
		before := w.meter.done.Load()
		var err error
		if _, err = content.Seek(0, io.SeekStart); err != nil {
			return err
		}
		part, err = w.partStream(ctx, &v1.PutObjectPartHeader{
			Namespace: header.GetNamespace(), Bucket: header.GetBucket(), Key: header.GetKey(), Upload: upload, Number: number, Size: content.Size(),
		}, content)
		if err != nil {
			w.meter.done.Store(before)
		}
		return err
	})
	return part, err
}

func (w *work) partStream(ctx context.Context, header *v1.PutObjectPartHeader, content io.Reader) (*v1.ObjectPart, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := w.objects.PutObjectPart(ctx)
	if err != nil {
		return nil, err
	}
	err = stream.Send(&v1.PutObjectPartRequest{Part: &v1.PutObjectPartRequest_Header{Header: header}})
	if err == nil {
		err = w.send(content, func(data []byte) error {
			return stream.Send(&v1.PutObjectPartRequest{Part: &v1.PutObjectPartRequest_Data{Data: data}})
		})
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return stream.CloseAndRecv()
}

// abort removes the parts of an upload that the user has interrupted.
func (w *work) abort(ctx context.Context, header *v1.PutObjectHeader, upload string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
	defer cancel()
	w.meter.Clear()
	if _, err := w.objects.AbortObjectUpload(ctx, &v1.AbortObjectUploadRequest{
		Namespace: header.GetNamespace(), Bucket: header.GetBucket(), Key: header.GetKey(), Upload: upload,
	}); err != nil {
		w.Note("Interrupted: the parts that were uploaded are removed when the upload expires.")
		return
	}
	w.Note("Interrupted: nothing was put, and nothing half-made is left.")
}
