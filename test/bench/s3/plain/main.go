// Command plain serves objects from files, as the floor for the object store.
//
//	plain FOLDER ADDRESS CERTIFICATE KEY
//
// The access key and its secret are in PLAIN_KEY and PLAIN_SECRET.
package main

import (
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/cloudless/cloudless/test/bench/s3"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: plain FOLDER ADDRESS CERTIFICATE KEY")
		os.Exit(2)
	}
	server := &http.Server{
		Addr: os.Args[2], ReadHeaderTimeout: time.Minute,
		Handler: &s3.Plain{Dir: os.Args[1], Key: os.Getenv("PLAIN_KEY"), Secret: os.Getenv("PLAIN_SECRET")},
	}
	fmt.Fprintln(os.Stderr, server.ListenAndServeTLS(os.Args[3], os.Args[4]))
	os.Exit(1)
}
