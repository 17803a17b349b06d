// Command spiffe is the program that end-to-end tests run in replicas with an identity. It knows only the SPIFFE Workload
// API, by go-spiffe, and nothing of Cloudless.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// patience limits what a command waits for.
const patience = 30 * time.Second

// audience is whom the tokens are for.
const audience = "back"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: spiffe id | serve PORT CLIENT | ask ADDRESS SERVER | token | verify TOKEN")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch {
	case args[0] == "serve" && len(args) == 3:
		return serve(args[1], args[2])
	case args[0] == "ask" && len(args) == 3:
		return ask(ctx, args[1], args[2])
	case args[0] == "id":
		svid, err := workloadapi.FetchX509SVID(ctx)
		if err != nil {
			return err
		}
		fmt.Println(svid.ID, "serial", svid.Certificates[0].SerialNumber)
		return nil
	case args[0] == "token":
		token, err := workloadapi.FetchJWTSVID(ctx, jwtsvid.Params{Audience: audience})
		if err != nil {
			return err
		}
		fmt.Print(token.Marshal())
		return nil
	case args[0] == "verify" && len(args) == 2:
		return verify(ctx, args[1])
	}
	return fmt.Errorf("unknown verb %s", args[0])
}

// verify checks a token with the keys from the socket, without asking anybody about this token.
func verify(ctx context.Context, token string) error {
	keys, err := workloadapi.FetchJWTBundles(ctx)
	if err != nil {
		return err
	}
	verified, err := jwtsvid.ParseAndValidate(token, keys, []string{audience})
	if err != nil {
		return err
	}
	fmt.Println("the token is of", verified.ID)
	return nil
}

// sibling is the id of another workload of the same namespace.
func sibling(own spiffeid.ID, name string) (spiffeid.ID, error) {
	return spiffeid.FromPath(own.TrustDomain(), path.Dir(own.Path())+"/"+name)
}

// source is the certificates from the socket, and the id in them.
func source(ctx context.Context) (*workloadapi.X509Source, spiffeid.ID, error) {
	s, err := workloadapi.NewX509Source(ctx)
	if err != nil {
		return nil, spiffeid.ID{}, err
	}
	svid, err := s.GetX509SVID()
	if err != nil {
		return nil, spiffeid.ID{}, err
	}
	return s, svid.ID, nil
}

// serve answers one workload by mutual TLS, and refuses all others.
func serve(port, client string) error {
	own, id, err := source(context.Background())
	if err != nil {
		return err
	}
	allowed, err := sibling(id, client)
	if err != nil {
		return err
	}
	listener, err := tls.Listen("tcp", ":"+port, tlsconfig.MTLSServerConfig(own, own, tlsconfig.AuthorizeID(allowed)))
	if err != nil {
		return err
	}
	fmt.Println("serving as", id)
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = conn.Close() }()
			if err := answer(conn.(*tls.Conn), id); err != nil {
				fmt.Println("refused", conn.RemoteAddr(), err)
			}
		}()
	}
}

func answer(conn *tls.Conn, id spiffeid.ID) error {
	_ = conn.SetDeadline(time.Now().Add(patience))
	if err := conn.Handshake(); err != nil {
		return err
	}
	client, err := tlsPeer(conn)
	if err != nil {
		return err
	}
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		return err
	}
	_, err = fmt.Fprintf(conn, "%s greets %s\n", id, client)
	return err
}

func tlsPeer(conn *tls.Conn) (string, error) {
	var ids []string
	for _, uri := range conn.ConnectionState().PeerCertificates[0].URIs {
		ids = append(ids, uri.String())
	}
	return strings.Join(ids, " "), nil
}

// ask is greeted by a workload that serves.
func ask(ctx context.Context, address, server string) error {
	own, id, err := source(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	expected, err := sibling(id, server)
	if err != nil {
		return err
	}
	dialer := tls.Dialer{NetDialer: &net.Dialer{}, Config: tlsconfig.MTLSClientConfig(own, own, tlsconfig.AuthorizeID(expected))}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return err
	}
	said, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	fmt.Print(string(said))
	return nil
}
