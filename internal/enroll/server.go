package enroll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/membership"
)

// ServerOptions say which cluster a machine joins, and as which server.
type ServerOptions struct {
	// Address of a server; empty to discover one on this network.
	Address string
	Token   string
	// Name wanted for the server; the host name if empty.
	Name          string
	Zone, Version string
	// Endpoint is where the server listens. If Listen is empty, it listens on DefaultPort of the local address that
	// leads to the joined server.
	Endpoint    datadir.Endpoint
	DefaultPort string
	// Progress is called with what is being done, in a few words.
	Progress func(doing string)
}

// Server makes this folder's machine a server of the token's cluster, unless it is one already, and returns where the
// server listens.
func Server(ctx context.Context, f *datadir.Folder, o ServerOptions) (datadir.Endpoint, error) {
	token, err := identity.ParseJoinToken(o.Token)
	if err != nil {
		return o.Endpoint, err
	}
	if f.Cluster != "" || f.HasServer() {
		return joinedServer(ctx, f, o, token)
	}
	if o.Address, err = locate(ctx, o.Address, token, o.Progress); err != nil {
		return o.Endpoint, err
	}
	if o.Endpoint, err = listenTowards(ctx, o.Address, o.Endpoint, o.DefaultPort); err != nil {
		return o.Endpoint, err
	}
	advertise := membership.AdvertisedAddress(o.Endpoint.Advertise, o.Endpoint.Listen)
	if err := reachableByOthers(advertise, o.Address); err != nil {
		return o.Endpoint, err
	}
	if err := f.TryPort(ctx, o.Endpoint.Listen); err != nil {
		return o.Endpoint, err
	}
	o.Progress("joining the cluster at " + o.Address)
	return o.Endpoint, becomeServer(ctx, f, o, token, advertise)
}

// joinedServer is where a server listens that has joined the token's cluster before.
func joinedServer(ctx context.Context, f *datadir.Folder, o ServerOptions, token identity.JoinToken) (datadir.Endpoint, error) {
	if err := checkJoined(ctx, f, o.Address, token); err != nil {
		return o.Endpoint, err
	}
	if f.Listen != "" {
		return f.ListenAgain(o.Endpoint), nil
	}
	known, _, _ := strings.Cut(f.Joined, ",")
	return listenTowards(ctx, cmp.Or(o.Address, known), o.Endpoint, o.DefaultPort)
}

// listenTowards completes where a server listens: at the address of this machine from which it reaches one of the
// others, because the others reach it there too.
func listenTowards(ctx context.Context, other string, e datadir.Endpoint, port string) (datadir.Endpoint, error) {
	if e.Listen != "" {
		return e, nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", other) // nothing is sent by that
	if err != nil {
		return e, fmt.Errorf("find the address of this machine that leads to %s: %w: name it with --api-addr", other, err)
	}
	host, _, err := net.SplitHostPort(conn.LocalAddr().String())
	if err := errors.Join(err, conn.Close()); err != nil {
		return e, err
	}
	e.Listen = net.JoinHostPort(host, port)
	return e, nil
}

// CheckRunningServer refuses a process that is not, and will not be, a server of the token's cluster.
func CheckRunningServer(held *datadir.AlreadyRunningError, secret string) error {
	token, err := identity.ParseJoinToken(secret)
	if err != nil {
		return err
	}
	f, err := datadir.View(held.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is only starting
	}
	if err != nil {
		return err
	}
	if err := f.CheckServer(); err != nil {
		return err
	}
	if _, err := os.Stat(f.AuthorityPath()); errors.Is(err, fs.ErrNotExist) {
		return nil // it is joining
	}
	return checkAuthority(context.Background(), f, "", token)
}

// checkJoined refuses a folder that belongs to another cluster than the token, or that no joined server uses.
func checkJoined(ctx context.Context, f *datadir.Folder, address string, token identity.JoinToken) error {
	if _, err := os.Stat(f.AuthorityPath()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("data folder %s is used already, and not by a server: choose another --data-dir", f.Path())
	}
	if err := checkAuthority(ctx, f, address, token); err != nil {
		return err
	}
	if f.Founds() {
		return fmt.Errorf("data folder %s belongs to the server that founded this cluster: start it with: cloudless server --data-dir %s; "+
			"if it was removed from the cluster, remove the folder first with: cloudless down --purge --data-dir %s, and join again", f.Path(), f.Path(), f.Path())
	}
	return nil
}

// checkAuthority refuses the folder of a server of another cluster than the token's.
func checkAuthority(ctx context.Context, f *datadir.Folder, address string, token identity.JoinToken) error {
	ca, err := OpenAuthority(f)
	if err != nil {
		return err
	}
	if trust := ca.Trust(); trust.Has(token.CA()) {
		return nil
	}
	servers := strings.Split(f.Joined, ",")
	if address != "" {
		servers = append([]string{address}, servers...)
	}
	now := provenTrust(ctx, servers, token)
	switch {
	case now == nil || now.Cluster() != ca.Trust().Cluster():
		return fmt.Errorf("data folder %s belongs to a server of another cluster (%s): choose another --data-dir, or remove the old one with: cloudless down --purge --data-dir %s",
			f.Path(), ca.Trust().Cluster(), f.Path())
	case !now.Shares(ca.Trust()):
		return fmt.Errorf("the cluster has replaced its certificate authority while the server of data folder %s was away: remove the folder with: cloudless down --purge --data-dir %s, and join again",
			f.Path(), f.Path())
	}
	return nil
}

// OpenAuthority opens the authority of the cluster that the folder's server belongs to.
func OpenAuthority(f *datadir.Folder) (*identity.CA, error) {
	_, ca, err := membership.OpenKeys(f.KeyPath(), f.AuthorityPath())
	return ca, err
}

// reachableByOthers refuses an address that only this machine can reach, if the other servers are elsewhere.
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

// becomeServer asks the cluster to take this server, and stores the answer. The server proves itself by the token's
// fingerprint before the token is sent. The key is on disk before it asks, so that asking again after a lost answer
// asks for the same server.
func becomeServer(ctx context.Context, f *datadir.Folder, o ServerOptions, token identity.JoinToken, advertise string) error {
	conn, err := connect(ctx, o.Address, token)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	handover, err := identity.NewHandover()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.Path("server"), 0o700); err != nil {
		return err
	}
	key, err := identity.OpenOrCreateKey(f.JoiningServerPath())
	if err != nil {
		return err
	}
	csr, err := identity.NewCSR(key)
	if err != nil {
		return err
	}
	answer, err := ask(ctx, conn, o.Address, &v1.EnrollRequest{
		Token: o.Token, Csr: csr, Name: Name(o.Name),
		Server: &v1.EnrollServer{Address: advertise, Zone: o.Zone, Version: o.Version, SealTo: handover.PublicKey()},
	})
	switch {
	case errors.Is(err, errAnswerLost):
		f.Keep()
		return err
	case err != nil:
		return errors.Join(err, os.Remove(f.JoiningServerPath()), os.Remove(f.Path("server")))
	}
	creds, err := credentialsOf(key, answer, token.CA())
	if err != nil {
		return err
	}
	f.Keep() // from here on it is a server of the cluster, and joining again repairs what goes wrong
	if err := keepServer(f, answer, creds, handover); err != nil {
		return err
	}
	return os.Remove(f.JoiningServerPath())
}

// keepServer stores what makes this folder a server's. The record comes last: until then joining again continues.
func keepServer(f *datadir.Folder, answer *v1.EnrollResponse, creds *identity.Credentials, handover *identity.Handover) error {
	cluster := creds.Trust().Cluster()
	_ = os.Remove(f.KeyPath()) // of an attempt that was interrupted: nothing is sealed by it
	if err := handover.Accept(answer.GetSealedKey(), cluster, f.KeyPath()); err != nil {
		return err
	}
	authority := &statev1.Authority{
		Metadata: &v1.Metadata{Uid: cluster}, Certificate: creds.Trust().DER(), SealedKey: answer.GetSealedAuthority(),
	}
	if len(answer.GetAuthority()) > 0 { // a server of this version sends all of it
		authority = &statev1.Authority{}
		if err := proto.Unmarshal(answer.GetAuthority(), authority); err != nil || authority.GetMetadata().GetUid() != cluster {
			return errors.New("the cluster sent a damaged authority: join again")
		}
	}
	if err := membership.KeepAuthority(f.AuthorityPath(), authority); err != nil {
		return err
	}
	return f.Update(func(r *datadir.Record) {
		r.ServerUID = answer.GetServer().GetMetadata().GetUid()
		r.Cluster = cluster
		r.Joined = strings.Join(answer.GetServers(), ",")
	})
}
