// Command replica is the program that runs in the containers of the network lab. It answers HTTP requests with its
// argument, the name of the replica and the client's address. Under /echo it returns what it receives as it arrives.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const port = ":8000"

func main() {
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(marker string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s: %s answers %s\n", marker, name, r.RemoteAddr)
	})
	mux.HandleFunc("/echo", echo)
	server := &http.Server{Addr: port, Handler: mux, ReadHeaderTimeout: time.Minute}
	return server.ListenAndServe()
}

// echo sends each piece back at once, while more is coming.
func echo(w http.ResponseWriter, r *http.Request) {
	stream := http.NewResponseController(w)
	if err := stream.EnableFullDuplex(); err != nil {
		return
	}
	_, _ = io.Copy(flushed{w, stream}, r.Body) // it ends with the connection
}

// flushed sends everything at once.
type flushed struct {
	io.Writer
	stream *http.ResponseController
}

func (f flushed) Write(b []byte) (int, error) {
	n, err := f.Writer.Write(b)
	if err != nil {
		return n, err
	}
	return n, f.stream.Flush()
}
