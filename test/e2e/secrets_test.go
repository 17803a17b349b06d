package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// makeMarker makes a secret value that occurs nowhere else, in a file that is the only place of the test that has it, and
// sets a variable of the script to its digest:
//
//	marker first
func makeMarker(ts *testscript.TestScript, _ bool, args []string) {
	value := "marker-" + rand.Text()
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(value), 0o600))
	ts.Setenv(args[0], fmt.Sprintf("%x", sha256.Sum256([]byte(value))))
}

// nowhere fails if a marker is in anything that a cloud writes: its data folders, what is below /run, the output of the
// script's commands in its folder, or the arguments of any process. It looks for the value itself, and in base64 and hex.
// The file systems in memory that are made for secrets are left out, and must have it, so that the search is known to work:
//
//	nowhere first $DATA
func nowhere(ts *testscript.TestScript, _ bool, args []string) {
	value, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	s := search{own: ts.MkAbs(args[0]), forms: formsOf(value)}
	if found := s.folder(filepath.Dir(s.own), true); found != nil {
		ts.Fatalf("the search does not work: %v", found)
	}
	if len(s.found) == 0 {
		ts.Fatalf("the search does not find %s where it is", s.own)
	}
	s.found, s.read = nil, 0
	dirs := []string{ts.Getenv("WORK")}
	for _, data := range args[1:] {
		dirs = append(dirs, data, filepath.Join("/run/cloudless", idOf(ts, data)))
	}
	for _, dir := range dirs {
		ts.Check(s.folder(dir, false))
	}
	for pid, line := range processes() {
		s.look(fmt.Sprintf("the arguments of process %d", pid), []byte(line))
	}
	if len(s.found) > 0 {
		ts.Fatalf("%s is in:\n%s", args[0], strings.Join(s.found, "\n"))
	}
	if s.read < 100 {
		ts.Fatalf("only %d files were searched", s.read)
	}
	ts.Logf("searched %d files", s.read)
}

// startTraceCollector starts a collector of traces, which writes what it receives into a file, and sets $OTLP to its address:
//
//	trace-collector out-traces
func startTraceCollector(ts *testscript.TestScript, _ bool, args []string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	file, err := os.Create(ts.MkAbs(args[0]))
	ts.Check(err)
	srv := grpc.NewServer()
	collector.RegisterTraceServiceServer(srv, &traceFile{file: file})
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(listener) })
	ts.Defer(func() {
		srv.Stop()
		served.Wait()
		_ = file.Close()
	})
	ts.Setenv("OTLP", "http://"+listener.Addr().String())
}

// traceFile is a collector that appends what it receives to a file.
type traceFile struct {
	collector.UnimplementedTraceServiceServer
	mu   sync.Mutex
	file *os.File
}

func (t *traceFile) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	data, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err = t.file.Write(data)
	return &collector.ExportTraceServiceResponse{}, err
}

// search looks for a value in its forms.
type search struct {
	own   string // the file that may have it
	forms [][]byte
	found []string
	read  int
}

// formsOf are the forms in which a value may be written. In base64, its bytes can begin at three places of a group.
func formsOf(value []byte) (forms [][]byte) {
	forms = append(forms, value, []byte(hex.EncodeToString(value)), []byte(strings.ToUpper(hex.EncodeToString(value))))
	for before := range 3 {
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			text := encoding.EncodeToString(append(make([]byte, before), value...))
			forms = append(forms, []byte(text[4:len(text)-4]))
		}
	}
	return forms
}

func (s *search) look(where string, data []byte) {
	for _, form := range s.forms {
		if bytes.Contains(data, form) {
			s.found = append(s.found, where)
			return
		}
	}
}

// folder searches all files in a folder, but no file system in memory.
func (s *search) folder(dir string, own bool) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) { // removed meanwhile
				return nil
			}
			return err
		}
		if entry.IsDir() {
			var system unix.Statfs_t
			if err := unix.Statfs(path, &system); err == nil && system.Type == unix.TMPFS_MAGIC && filepath.Base(path) == "secrets" {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() || (path == s.own) != own {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		s.read++
		s.look(path, data)
		return nil
	})
}
