package netd

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/mesh"
)

// issue makes credentials and stores them in a file.
func issue(t *testing.T, ca *identity.CA, kind identity.Kind, name string) (c *identity.Credentials, path string) {
	t.Helper()
	id, err := identity.NewID("c-1", kind, name)
	if err != nil {
		t.Fatal(err)
	}
	key, csr, err := identity.NewKeyAndCSR()
	if err != nil {
		t.Fatal(err)
	}
	chain, err := ca.Issue(csr, id, identity.IssueOptions{TTL: time.Hour, Server: true, Client: true}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if c, err = identity.NewCredentials(key, chain); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "credentials")
	if err := c.Save(path); err != nil {
		t.Fatal(err)
	}
	return c, path
}

// heard is a request to the test's server.
type heard struct{ node, path, body string }

// listening is a server that sends what it hears.
func listening(t *testing.T, ca *identity.CA) (address string, all <-chan heard) {
	t.Helper()
	mine, _ := issue(t, ca, identity.KindServer, "s")
	requests := make(chan heard, 100)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		TLSConfig: identity.ServerTLS(ca.Trust(), mine.Certificate),
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			id, _ := identity.PeerID(*r.TLS)
			body, _ := io.ReadAll(r.Body)
			requests <- heard{id.Name(), r.URL.Path, string(body)}
		}),
	}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String(), requests
}

func TestServersHearWhetherReplicasOutliveTheirAgent(t *testing.T) {
	ca, err := identity.NewCA("c-1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	address, all := listening(t, ca)
	_, credentials := issue(t, ca, identity.KindNode, "n")
	replica := exec.Command("sleep", "1000")
	if err := replica.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{log: slog.New(slog.DiscardHandler), wanted: &mesh.Setup{Credentials: credentials}, relays: []mesh.Relay{
		{Address: "127.0.0.1:1"}, // a server that is down
		{Address: address},
	}}
	p.setWill(Will{Path: "/loss", Running: "they run", Ended: "they ended", Processes: []int{replica.Process.Pid}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.executeWill(ctx)
	}()
	want := heard{"n", "/loss", "they run"}
	for range 2 { // again and again: the next leader must hear it, too
		if got := <-all; got != want {
			t.Fatalf("the server hears %v, want %v", got, want)
		}
	}
	_ = replica.Process.Kill()
	_ = replica.Wait()
	want.body = "they ended"
	got := <-all
	for got.body == "they run" { // said at the same moment
		got = <-all
	}
	if got != want {
		t.Fatalf("the server hears %v, want %v", got, want)
	}
	cancel()
	<-ended
}

func TestAgentWithoutReplicasLeavesNothingToTell(t *testing.T) {
	p := &process{log: slog.New(slog.DiscardHandler), wanted: &mesh.Setup{}}
	p.setWill(Will{Path: "/loss"})
	p.executeWill(t.Context()) // returns at once
}

// A pid is used again, so the will must not mistake another program for the replica.
func TestEndedProcessIsNotMistakenForAnother(t *testing.T) {
	replica := exec.Command("sleep", "1000")
	if err := replica.Start(); err != nil {
		t.Fatal(err)
	}
	w := knownWill{started: map[int]string{replica.Process.Pid: startTime(replica.Process.Pid)}}
	if !w.running() {
		t.Error("a running replica is not seen")
	}
	w.started[replica.Process.Pid] = "1" // another program had this pid before
	if w.running() {
		t.Error("a program with the pid of an ended replica counts as that replica")
	}
	_ = replica.Process.Kill()
	_ = replica.Wait()
}
