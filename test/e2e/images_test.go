package e2e

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"github.com/distribution/distribution/v3/configuration"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd" // lets the registry ask for a password
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem" // storage for the registry's images
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/sirupsen/logrus"
	"golang.org/x/crypto/bcrypt"

	"github.com/cloudless/cloudless/internal/image"
)

// pack makes an image of a program, in one of the formats that can be pushed:
//
//	pack layout DIR PROGRAM      an OCI image layout
//	pack saved FILE PROGRAM      an archive as docker save writes it
//	pack multi DIR PROGRAM       a layout with an index for amd64 and arm64
//	pack foreign DIR PROGRAM     the same for other platforms only
//	pack big FILE                an archive with a layer of 16 MB that cannot be compressed
func pack(ts *testscript.TestScript, _ bool, args []string) {
	out := ts.MkAbs(args[1])
	if args[0] == "big" {
		img, err := random.Image(16<<20, 1)
		ts.Check(err)
		saveTo(ts, out, img)
		return
	}
	img, err := image.FromBinary(args[2], image.Options{})
	ts.Check(err)
	switch args[0] {
	case "layout":
		path, err := layout.Write(out, empty.Index)
		ts.Check(err)
		ts.Check(path.AppendImage(img))
	case "saved":
		saveTo(ts, out, img)
	case "multi":
		_, err := layout.Write(out, indexOf(ts, mutate.IndexAddendum{Add: img}, mutate.IndexAddendum{Add: forArch(ts, img, "arm64")}))
		ts.Check(err)
	case "foreign":
		_, err := layout.Write(out, indexOf(ts, mutate.IndexAddendum{Add: forArch(ts, img, "s390x")}, mutate.IndexAddendum{Add: forArch(ts, img, "riscv64")}))
		ts.Check(err)
	default:
		ts.Fatalf("pack %s is not known", args[0])
	}
}

func saveTo(ts *testscript.TestScript, out string, img v1.Image) {
	tag, err := name.NewTag("example.com/saved:1")
	ts.Check(err)
	ts.Check(tarball.WriteToFile(out, tag, img))
}

func forArch(ts *testscript.TestScript, img v1.Image, arch string) v1.Image {
	config, err := img.ConfigFile()
	ts.Check(err)
	config = config.DeepCopy()
	config.Architecture = arch
	img, err = mutate.ConfigFile(img, config)
	ts.Check(err)
	return img
}

func indexOf(ts *testscript.TestScript, images ...mutate.IndexAddendum) v1.ImageIndex {
	for i, one := range images {
		config, err := one.Add.(v1.Image).ConfigFile()
		ts.Check(err)
		images[i].Platform = &v1.Platform{OS: config.OS, Architecture: config.Architecture}
	}
	return mutate.AppendManifests(empty.Index, images...)
}

// startRegistry runs an external registry that needs a password:
//
//	registry $ADDR2 ann secret
func startRegistry(ts *testscript.TestScript, _ bool, args []string) {
	hash, err := bcrypt.GenerateFromPassword([]byte(args[2]), bcrypt.MinCost)
	ts.Check(err)
	users := ts.MkAbs("users")
	ts.Check(os.WriteFile(users, []byte(args[1]+":"+string(hash)+"\n"), 0o600))
	config := &configuration.Configuration{
		Storage: configuration.Storage{"filesystem": configuration.Parameters{"rootdirectory": ts.MkAbs("others")}},
		Auth:    configuration.Auth{"htpasswd": configuration.Parameters{"realm": "others", "path": users}},
	}
	config.HTTP.Secret = "a secret of this test"
	config.Log.Level = "error"
	config.Log.AccessLog.Disabled = true
	listener, err := net.Listen("tcp", args[0])
	ts.Check(err)
	logrus.SetOutput(io.Discard) // it uses the standard logger, despite its options
	server := &http.Server{Handler: handlers.NewApp(context.Background(), config)}
	go func() { _ = server.Serve(listener) }()
	ts.Defer(func() { _ = server.Close() })
}

// caFile writes the cluster's CA certificate to a file for registry clients:
//
//	ca-file certs/ca.crt
func caFile(ts *testscript.TestScript, _ bool, args []string) {
	config, err := os.ReadFile(ts.Getenv("CLOUDLESS_CONFIG"))
	ts.Check(err)
	found := regexp.MustCompile(`(?s)-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----`).FindString(string(config))
	if found == "" {
		ts.Fatalf("no certificate in the client configuration")
	}
	lines := strings.Split(found, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	file := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(filepath.Dir(file), 0o700))
	ts.Check(os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
}

// skopeoLogin logs skopeo in with the token in a file; any user name will do:
//
//	skopeo-login $ADDR FILE
func skopeoLogin(ts *testscript.TestScript, _ bool, args []string) {
	token, err := os.ReadFile(ts.MkAbs(args[1]))
	ts.Check(err)
	login := command(ts, []string{"skopeo", "login", "--cert-dir", ts.MkAbs("certs"), "--username", "anybody", "--password-stdin", args[0]})
	login.Env = append(login.Env, "REGISTRY_AUTH_FILE="+ts.MkAbs("auth.json"))
	login.Stdin = strings.NewReader(strings.TrimSpace(string(token)))
	if out, err := login.CombinedOutput(); err != nil {
		ts.Fatalf("skopeo login: %v\n%s", err, out)
	}
	ts.Setenv("REGISTRY_AUTH_FILE", ts.MkAbs("auth.json"))
}

// interruptedPush starts a push and interrupts it in the middle, as ctrl-C does. The push
// must end because of that:
//
//	interrupted-push NAME FILE
//
// The connection stalls after two megabytes, so that the push cannot end earlier.
func interruptedPush(ts *testscript.TestScript, _ bool, args []string) {
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	defer func() { _ = proxy.Close() }()
	stalled := make(chan struct{})
	go stall(proxy, ts.Getenv("ADDR"), 2<<20, stalled)

	config, err := os.ReadFile(ts.Getenv("CLOUDLESS_CONFIG"))
	ts.Check(err)
	slow := ts.MkAbs("slow-config.yaml")
	ts.Check(os.WriteFile(slow, []byte(strings.ReplaceAll(string(config), ts.Getenv("ADDR"), proxy.Addr().String())), 0o600))
	push := command(ts, append([]string{"cloudless", "--config", slow, "image", "push"}, args...))
	push.Env = append(push.Env, "TMPDIR="+ts.Getenv("WORK")+"/tmp")
	ts.Check(os.MkdirAll(ts.Getenv("WORK")+"/tmp", 0o700))
	var said strings.Builder
	push.Stderr = &said
	ts.Check(push.Start())
	ended := make(chan error, 1)
	go func() { ended <- push.Wait() }()
	select {
	case <-stalled:
	case err := <-ended:
		ts.Fatalf("the push ended with %v before it could be interrupted; stderr: %s", err, said.String())
	}
	ts.Check(push.Process.Signal(syscall.SIGINT))
	err = <-ended
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 130 || !strings.Contains(said.String(), "Interrupted") {
		ts.Fatalf("the interrupted push ended with %v; stderr: %s", err, said.String())
	}
	if left, _ := filepath.Glob(ts.Getenv("WORK") + "/tmp/*"); len(left) > 0 {
		ts.Fatalf("the push left %v behind", left)
	}
}

// stall forwards connections. A connection stalls once it has sent the given number of
// bytes.
func stall(proxy net.Listener, to string, bytes int64, stalled chan<- struct{}) {
	var once sync.Once
	for {
		from, err := proxy.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = from.Close() }()
			up, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer func() { _ = up.Close() }()
			go func() { _, _ = io.Copy(from, up) }()
			if n, _ := io.CopyN(up, from, bytes); n == bytes {
				once.Do(func() { close(stalled) })
				_, _ = io.Copy(io.Discard, from) // the cluster sees none of it
			}
		}()
	}
}

// noUploads checks that the registry in a data folder has no unfinished upload:
//
//	no-uploads $DATA
func noUploads(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(filepath.WalkDir(filepath.Join(args[0], "server", "registry"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && filepath.Base(filepath.Dir(path)) == "_uploads" {
			ts.Fatalf("the upload %s is left", path)
		}
		return err
	}))
}
