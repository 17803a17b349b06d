package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server"
)

// joinServer is the role of a machine that becomes one of a cluster's servers now,
// and a node as well unless it shall not. On a folder that has joined already it
// goes on as that server and leaves the token unused.
func joinServer(ctx context.Context, o local.JoinOptions) error {
	s := &service{
		ServerOptions: local.ServerOptions{Process: o.Process, Reach: o.Reach},
		prepare: func(f *folder, reach *local.Reach) error {
			err := becomeServer(ctx, f, o, reach)
			if err != nil {
				f.forsake()
			}
			return err
		},
		sameRole: func(held *local.AlreadyRunningError) error { return servesAs(held, o.Token) },
	}
	if !o.NoNode {
		s.node = &o.Machine
	}
	return s.run(ctx)
}

// servesAs refuses a process that is not, and is not about to be, a server of the
// token's cluster.
func servesAs(held *local.AlreadyRunningError, secret string) error {
	token, err := identity.ParseJoinToken(secret)
	if err != nil {
		return err
	}
	id, err := readFolderID(held.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is only beginning
	}
	if err != nil {
		return err
	}
	f := &folder{path: held.DataDir, folderID: id}
	if err := f.mayServe(); err != nil {
		return err
	}
	if _, err := os.Stat(f.authorityPath()); errors.Is(err, fs.ErrNotExist) {
		return nil // it is joining
	}
	return f.sameAuthority(token)
}

// becomeServer enrolls this folder's server, unless it is one of that cluster,
// and settles where it listens.
func becomeServer(ctx context.Context, f *folder, o local.JoinOptions, reach *local.Reach) error {
	token, err := identity.ParseJoinToken(o.Token)
	if err != nil {
		return err
	}
	if f.Cluster != "" || hasServer(f) {
		if err := f.sameCluster(token); err != nil {
			return err
		}
		if f.Listen != "" {
			f.listenAgain(reach)
			return nil
		}
		known, _, _ := strings.Cut(f.Joined, ",")
		return listenTowards(ctx, cmp.Or(o.Address, known), reach)
	}
	if o.Address, err = locate(ctx, o, token); err != nil {
		return err
	}
	if err := listenTowards(ctx, o.Address, reach); err != nil {
		return err
	}
	advertise := server.AdvertisedAddress(reach.Advertise, reach.APIAddr)
	if err := reachableByOthers(advertise, o.Address); err != nil {
		return err
	}
	if err := f.tryPort(ctx, reach.APIAddr); err != nil {
		return err
	}
	o.Progress("joining the cluster at " + o.Address)
	return enrollServer(ctx, f, o, token, advertise)
}

// listenTowards chooses where a server listens if nobody says it: at the address
// of this machine from which it reaches one of the others, because by that they
// reach it too.
func listenTowards(ctx context.Context, other string, reach *local.Reach) error {
	if reach.APIAddr != "" {
		return nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", other) // nothing is sent by that
	if err != nil {
		return fmt.Errorf("find the address of this machine that leads to %s: %w: name it with --api-addr", other, err)
	}
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err := errors.Join(err, conn.Close()); err != nil {
		return err
	}
	reach.APIAddr = net.JoinHostPort(host, local.DefaultPort)
	return nil
}

// hasServer reports whether a server has kept something in the folder.
func hasServer(f *folder) bool {
	_, err := os.Stat(f.sub("server", "raft"))
	return err == nil
}

// sameCluster refuses a folder that belongs to another cluster than the token,
// or to something else than a server.
func (f *folder) sameCluster(token identity.JoinToken) error {
	if _, err := os.Stat(f.authorityPath()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data folder %s is used already, and not by a server: choose another --data-dir", f.path)
	}
	if err := f.sameAuthority(token); err != nil {
		return err
	}
	if f.founds() {
		return fmt.Errorf("data folder %s belongs to the server that founded this cluster: start it with: cloudless server --data-dir %s; "+
			"if it was removed from the cluster, remove the folder first with: cloudless down --purge --data-dir %s, and join again", f.path, f.path, f.path)
	}
	return nil
}

// sameAuthority refuses the folder of a server of another cluster than the token's.
func (f *folder) sameAuthority(token identity.JoinToken) error {
	ca, err := f.openAuthority()
	if err != nil {
		return err
	}
	if ca.Trust().Fingerprint() != token.CA() {
		return fmt.Errorf("data folder %s belongs to a server of another cluster (%s): choose another --data-dir, or remove the old one with: cloudless down --purge --data-dir %s",
			f.path, ca.Trust().Cluster(), f.path)
	}
	return nil
}

// reachableByOthers refuses an address that only this machine can reach, where
// the other servers are elsewhere.
func reachableByOthers(advertise, target string) error {
	if loopback(advertise) && !loopback(target) {
		return fmt.Errorf("the other servers cannot reach this one at %s: set --api-addr, or --advertise, to an address of this machine that they can reach", advertise)
	}
	return nil
}

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// enrollServer asks the cluster to take this server, and keeps what it is given.
// The cluster is verified by the token's fingerprint before the token is sent.
// The key is on the disk before anything is asked, so that asking again after a
// lost answer is asking for the same server.
func enrollServer(ctx context.Context, f *folder, o local.JoinOptions, token identity.JoinToken, advertise string) error {
	if err := reach(ctx, o.Address, identity.JoinTLS(token.CA())); err != nil { // in words
		return fmt.Errorf("join the cluster at %s: %w", o.Address, err)
	}
	conn, err := grpc.NewClient("passthrough:///"+o.Address, grpc.WithTransportCredentials(credentials.NewTLS(identity.JoinTLS(token.CA()))))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", o.Address, err)
	}
	defer func() { _ = conn.Close() }()
	handover, err := identity.NewHandover()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.sub("server"), 0o700); err != nil {
		return err
	}
	key, err := identity.OpenOrCreateKey(f.joiningServerPath())
	if err != nil {
		return err
	}
	csr, err := identity.NewCSR(key)
	if err != nil {
		return err
	}
	answer, err := enlist(ctx, conn, o.Address, &v1.EnrollRequest{
		Token: o.Token, Csr: csr, Name: nodeName(local.Machine{Name: o.Reach.Name}),
		Server: &v1.EnrollServer{Address: advertise, Zone: f.asBefore(planeOptions{}, o.Reach.Zone).zone, Version: o.Version, SealTo: handover.PublicKey()},
	})
	switch {
	case errors.Is(err, errAnswerLost):
		f.keep()
		return err
	case err != nil:
		return errors.Join(err, os.Remove(f.joiningServerPath()), os.Remove(f.sub("server")))
	}
	creds, err := identity.NewCredentials(key, answer.GetCertificates())
	if err != nil {
		return err
	}
	if creds.Trust().Fingerprint() != token.CA() {
		return errors.New("the server answered with a certificate of another cluster than the token's: create a new token and join again")
	}
	f.keep() // from here on it is a server of the cluster, and what goes wrong is mended by joining again
	if err := f.keepServer(answer, creds, handover); err != nil {
		return err
	}
	return os.Remove(f.joiningServerPath())
}

func (f *folder) joiningServerPath() string { return f.sub("server", "joining.pem") }

// keepServer writes what makes this folder a server's. The folder says so last:
// until then joining again goes on.
func (f *folder) keepServer(answer *v1.EnrollResponse, creds *identity.Credentials, handover *identity.Handover) error {
	cluster := creds.Trust().Cluster()
	_ = os.Remove(f.sub("server", "kek.json")) // of an attempt that ended in the middle: nothing is sealed by it
	if err := handover.Accept(answer.GetSealedKey(), cluster, f.sub("server", "kek.json")); err != nil {
		return err
	}
	err := server.KeepAuthority(f.authorityPath(), &statev1.Authority{
		Metadata: &v1.Metadata{Uid: cluster}, Certificate: creds.Trust().DER(), SealedKey: answer.GetSealedAuthority(),
	})
	if err != nil {
		return err
	}
	return f.remember(func(id *folderID) {
		id.ServerUID = answer.GetServer().GetMetadata().GetUid()
		id.Cluster = cluster
		id.Joined = strings.Join(answer.GetServers(), ",")
	})
}

// How long a server waits for a leader before it says that it runs without
// one: one that comes back, and one that has just been let in and to which
// those who did so are about to send the state.
const (
	leaderHope = 15 * time.Second
	stateHope  = time.Minute
)

// announceServer says that this server, which has no node beside it, can be used.
func (s *service) announceServer(ctx context.Context) error {
	doing, patience := "waiting for a server that leads", leaderHope
	if len(s.plane.consensus.Servers()) == 0 {
		doing, patience = "waiting for the cluster's state", stateHope
	}
	s.Progress(doing)
	hope, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := s.plane.consensus.WaitLeader(hope); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		s.ready(s.waitsFor())
		return nil
	}
	said, err := s.writeContext(ctx)
	if err != nil {
		return err
	}
	if said == "" {
		s.ready(fmt.Sprintf("server is ready at %s; after a restart of the machine, run: %s", s.plane.server.Address(), s.startAgain()))
		return nil
	}
	s.ready(fmt.Sprintf("server is ready at %s\n%s\nadd a machine with: cloudless token create --role node", s.plane.server.Address(), said))
	return nil
}

// waitsFor says what a server needs that knows of none that leads.
func (s *service) waitsFor() string {
	at := s.plane.server.Address()
	again := fmt.Sprintf("cloudless %s --data-dir %s --api-addr %s", s.command(), s.folder.path, at)
	if len(s.plane.consensus.Servers()) > 0 {
		return fmt.Sprintf("server runs at %s and waits for the others: more than half of the voting servers must run; they are looked for at %s: "+
			"where all are elsewhere now, stop this one and name where another one is: %s --peer ADDRESS",
			at, strings.Join(s.plane.lookedFor(), ", "), again)
	}
	// It was let in, and has never been sent anything.
	return fmt.Sprintf("server runs at %s, but is not sent the cluster's state: the server that leads must run and reach this one at %s; "+
		"open the way to it, or stop it and name another address: %s --advertise ADDRESS",
		at, s.plane.server.Advertised(), again)
}

// command is the one that starts this process again.
func (s *service) command() string {
	if s.node != nil {
		return "up"
	}
	return "server"
}

// lookedFor are the addresses at which this server looks for the others.
func (p *controlPlane) lookedFor() []string {
	var all []string
	for _, s := range p.known() {
		if s.ID != p.fellows.self.UID && s.Address != "" {
			all = append(all, s.Address)
		}
	}
	return all
}

// startAgain is the command that starts this process as it runs now.
func (s *service) startAgain() string {
	command := fmt.Sprintf("cloudless %s --data-dir %s --api-addr %s", s.command(), s.folder.path, s.plane.server.Address())
	if s.Advertise != "" {
		command += " --advertise " + s.Advertise
	}
	if s.folder.Zone != "" {
		command += " --zone " + s.folder.Zone
	}
	if !s.Announce {
		command += " --announce=false"
	}
	if s.folder.ElectionTimeout != 0 {
		command += " --election-timeout " + s.folder.ElectionTimeout.String()
	}
	return command
}

// contextAddresses are where a client of this machine reaches the servers, this
// one first.
func (p *controlPlane) contextAddresses() []string {
	own := reachable(p.server.Address())
	rest := slices.DeleteFunc(p.server.Addresses(), func(address string) bool {
		return address == own || address == p.server.Advertised()
	})
	return append([]string{own}, rest...)
}
