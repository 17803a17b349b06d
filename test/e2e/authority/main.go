// Command authority is a real ACME authority for end-to-end tests, pebble, with a name server of its own:
//
//	authority ADDRESS FOLDER    proves every host at ADDRESS, ports 80 and 443
//
// It writes into FOLDER what clients need: the URL of its directory, the certificate of the directory, and the root of
// the certificates that it issues. It ends with SIGTERM.
package main

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

// validity is how long its certificates are valid, in seconds.
const validity = 7776000

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: authority ADDRESS FOLDER")
		os.Exit(2)
	}
	if err := run(net.ParseIP(os.Args[1]), os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(address net.IP, folder string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	names, err := net.Listen("tcp", "127.0.0.1:0") // pebble asks by TCP
	if err != nil {
		return err
	}
	server := &dns.Server{Listener: names, Handler: everyNameAt(address)}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()

	if err := os.Setenv("PEBBLE_VA_NOSLEEP", "1"); err != nil {
		return err
	}
	quiet, store := log.New(io.Discard, "", 0), db.NewMemoryStore()
	issuer := ca.New(quiet, store, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "default", ValidityPeriod: validity}})
	validator := va.New(quiet, 80, 443, false, names.Addr().String(), store)
	front := wfe.New(quiet, store, validator, issuer, nil, false, false, 1, 1)
	directory := httptest.NewTLSServer(front.Handler())
	defer directory.Close()

	ofDirectory := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: directory.Certificate().Raw})
	for name, content := range map[string][]byte{
		"root.pem": issuer.GetRootCert(0).PEM(), "directory.pem": ofDirectory, "directory": []byte(directory.URL + wfe.DirectoryPath),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(folder, "ready"), nil, 0o600); err != nil {
		return err
	}
	<-ctx.Done()
	if err := server.Shutdown(); err != nil {
		return err
	}
	return <-ended
}

// everyNameAt answers that every name has one address, and no other record.
func everyNameAt(address net.IP) dns.HandlerFunc {
	return func(out dns.ResponseWriter, query *dns.Msg) {
		answer := new(dns.Msg).SetReply(query)
		for _, q := range query.Question {
			if q.Qtype == dns.TypeA {
				answer.Answer = append(answer.Answer, &dns.A{
					Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: address,
				})
			}
		}
		_ = out.WriteMsg(answer)
	}
}
