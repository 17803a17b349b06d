package s3

import (
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	gateway "github.com/cloudless/cloudless/internal/server/s3"
	"github.com/cloudless/cloudless/internal/server/s3/s3test"
)

// The key that all clients use. Its id is the name of its namespace as well, because the suite compares the owner of
// buckets with the id of its key, and a namespace owns its buckets. The buckets that callers without a key see are those of
// this namespace.
const (
	keyID  = "default"
	secret = "secretsecretsecretsecretsecretsecretsecr"
	// toolsID is the key of the other clients. The suite expects that it has a namespace for itself.
	toolsID = "cltoolskey0000000000"
	region  = "us-east-1"
)

// endpoint is the S3 API over nodes in memory.
type endpoint struct {
	plain, encrypted *httptest.Server
	directory        *s3test.Directory
	store            *object.Store
}

// start serves the endpoint until the end of the test.
func start(t *testing.T) *endpoint {
	store, err := object.New(object.Options{
		Names: objecttest.NewNames(t), Disks: objecttest.NewDisks("a", "b", "c"), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	e := &endpoint{store: store, directory: s3test.NewDirectory(store)}
	e.directory.AddKey(keyID, secret, keyID, "operator")
	e.directory.AddKey(toolsID, secret, "tools", "operator")
	handler, err := gateway.New(gateway.Options{
		Store: store, Directory: e.directory, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(handler.Close)
	// A http.ServeMux would redirect requests whose keys have two slashes.
	both := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == usersPath {
			e.createUser(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
	e.plain, e.encrypted = quiet(both), quiet(both)
	e.plain.Start()
	t.Cleanup(e.plain.Close)
	e.encrypted.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	e.encrypted.StartTLS()
	t.Cleanup(e.encrypted.Close)
	return e
}

// usersPath is where the suite's users are made. No bucket has such a name.
const usersPath = "/-/users"

func quiet(h http.Handler) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	return s
}

// createUser adds a key for a user of the suite: one without any power of its own, or one that may create buckets.
func (e *endpoint) createUser(w http.ResponseWriter, r *http.Request) {
	role := map[string]string{"user": "none", "userplus": "creator", "admin": "operator"}[r.FormValue("role")]
	if role == "" {
		http.Error(w, "unknown role", http.StatusBadRequest)
		return
	}
	e.directory.AddKey(r.FormValue("access"), r.FormValue("secret"), keyID, role)
	fmt.Fprintln(w, "created")
}

// One process can serve the S3 API once, so that all clients share an endpoint.
func TestS3(t *testing.T) {
	e := start(t)
	for name, test := range map[string]func(*testing.T, *endpoint){
		"suite": suite, "aws": awsClient, "s3cmd": s3cmdClient, "rclone": rcloneClient, "restic": resticClient,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, e)
		})
	}
}

// TestMain lets this program play versitygw's administration, which the suite calls to make users.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "versitygw" {
		os.Exit(administrate(os.Args[1:]))
	}
	if os.Getenv(suiteEndpoint) != "" {
		os.Exit(runSuite(os.Getenv(suiteEndpoint)))
	}
	os.Exit(m.Run())
}

func administrate(args []string) int {
	values := map[string][]string{}
	command := ""
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case len(arg) > 1 && arg[0] == '-' && i+1 < len(args) && arg != "--allow-insecure":
			if command != "" {
				values[arg[1:]] = []string{args[i+1]}
			}
			i++
		case arg != "admin" && arg[0] != '-':
			command = arg
		}
	}
	if command != "create-user" {
		fmt.Fprintln(os.Stderr, "XAdminMethodNotSupported: not supported")
		return 1
	}
	values["access"], values["secret"], values["role"] = values["a"], values["s"], values["r"]
	answer, err := http.PostForm(os.Getenv(suiteEndpoint)+usersPath, values)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	fmt.Printf("%s", text)
	if answer.StatusCode != http.StatusOK {
		return 1
	}
	return 0
}
