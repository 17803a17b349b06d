// Package identity gives the replicas of a node identities of their own, by the SPIFFE Workload API: X.509-SVIDs to speak
// mutual TLS with, JWT-SVIDs to show to others, and what verifies those of others.
//
// Each replica has a socket of its own in a folder that only it sees. The socket tells who calls, so no process has to be
// identified. Keys are made here, exist only in memory, and leave it only by the socket. Certificates and tokens come from
// a server, which checks that the replica belongs to this node. They are replaced after half of their life; without a
// server, the last ones serve until they expire. After a restart of the agent the sockets are there again, and programs
// get new keys.
//
// The package knows no sessions, no assignments and no containers.
package identity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	// MountPath is where a replica sees the folder with its socket.
	MountPath = "/run/spiffe"
	// EndpointVariable is the variable by which programs find the socket, and Endpoint its value.
	EndpointVariable = "SPIFFE_ENDPOINT_SOCKET"
	Endpoint         = "unix://" + MountPath + "/" + socketName
	socketName       = "workload.sock"
)

// Options configures a Service.
type Options struct {
	// Dir gets a folder for each replica. Its path must be short, because those of sockets must be.
	Dir string
	// Client asks the servers as this node.
	Client v1.IdentityServiceClient
	// Cluster is the trust domain.
	Cluster string
	// Authorities are the certificates of the authorities that the node trusts now, in DER form, the one that signs first.
	Authorities [][]byte
	Logger      *slog.Logger
}

// Service gives replicas identities. A nil Service gives none.
type Service struct {
	Options
	domain string // the trust domain as an id
	keys   *keys
	ctx    context.Context // ends with the service
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu          sync.Mutex
	replicas    map[string]*replica
	authorities [][]byte
	told        bool          // authorities are as a session has said
	changed     chan struct{} // closed when authorities change
}

// New makes a service without sockets.
func New(o Options) *Service {
	s := &Service{
		Options: o, domain: "spiffe://" + o.Cluster, replicas: map[string]*replica{},
		authorities: o.Authorities, changed: make(chan struct{}),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.keys = newKeys(o.Cluster, o.Client)
	return s
}

// Run serves until ctx ends. Then it closes all sockets, which another service on the same folder opens again.
func (s *Service) Run(ctx context.Context) {
	if s == nil {
		return
	}
	defer s.work.Wait()
	defer s.closeAll()
	defer s.stop()
	s.keys.run(ctx)
}

func (s *Service) closeAll() {
	s.mu.Lock()
	all := s.replicas
	s.replicas = map[string]*replica{}
	s.mu.Unlock()
	for _, r := range all { // without the lock, which their calls may wait for
		r.close()
	}
}

// Subject is a replica that gets an identity.
type Subject struct {
	UID                 string
	Namespace, Workload string
	// TTL is how long its certificates and tokens are valid.
	TTL time.Duration
}

// Open opens the socket of a replica if it is not open yet. It returns the folder that the replica must see at MountPath.
func (s *Service) Open(subject Subject) (dir string, err error) {
	if s == nil {
		return "", errors.New("this node gives replicas no identities")
	}
	dir = s.dir(subject.UID)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.replicas[subject.UID] != nil {
		return dir, nil
	}
	if s.ctx.Err() != nil {
		return "", errors.New("the agent is stopping")
	}
	r, err := s.serve(subject, dir)
	if err != nil {
		return "", fmt.Errorf("open the identity socket of replica %s: %w", subject.UID, err)
	}
	s.replicas[subject.UID] = r
	return dir, nil
}

// Close closes the socket of a replica and removes its folder, if there is one.
func (s *Service) Close(uid string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	r := s.replicas[uid]
	delete(s.replicas, uid)
	s.mu.Unlock()
	if r != nil {
		r.close()
	}
	if err := os.RemoveAll(s.dir(uid)); err != nil {
		return fmt.Errorf("remove the identity socket of replica %s: %w", uid, err)
	}
	return nil
}

// Retain removes the folders that keep rejects, which an earlier service has left.
func (s *Service) Retain(keep func(uid string) bool) error {
	if s == nil {
		return nil
	}
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if !keep(entry.Name()) {
			err = errors.Join(err, s.Close(entry.Name()))
		}
	}
	return err
}

func (s *Service) dir(uid string) string { return filepath.Join(s.Dir, uid) }

// SetAuthorities sets which authorities are trusted, the one that signs first. If it is another one than before, replicas
// get new certificates.
func (s *Service) SetAuthorities(der [][]byte) {
	if s != nil && len(der) > 0 {
		s.setAuthorities(der, true)
	}
}

// setAuthorities ignores what comes with a certificate once a session has said what is trusted: it may be older.
func (s *Service) setAuthorities(der [][]byte, told bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told && !told || len(der) == 0 {
		return
	}
	s.told = s.told || told
	if slices.EqualFunc(s.authorities, der, bytes.Equal) {
		return
	}
	s.authorities = der
	close(s.changed)
	s.changed = make(chan struct{})
}

// trusted are the trusted authorities, and a channel that is closed when they change.
func (s *Service) trusted() ([][]byte, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.authorities, s.changed
}
