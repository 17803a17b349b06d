package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// serve answers on a TCP and UDP port with its host name and the caller's address. SIGTERM ends it when the connections
// that it has are answered.
func serve(port string) {
	host, err := os.Hostname()
	if err != nil {
		fail(err.Error())
	}
	packets, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		fail(err.Error())
	}
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		fail(err.Error())
	}
	go func() {
		for buffer := make([]byte, 1024); ; {
			_, peer, err := packets.ReadFrom(buffer)
			if err != nil {
				fail(err.Error())
			}
			_, _ = packets.WriteTo(fmt.Appendf(nil, "%s sees %s\n", host, peer), peer)
		}
	}()
	fmt.Println("serving")
	var open sync.WaitGroup
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		_ = listener.Close()
	}()
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			fail(err.Error())
		}
		open.Go(func() {
			fmt.Println("connected with", conn.RemoteAddr())
			_, _ = bufio.NewReader(conn).ReadString('\n')
			_, _ = fmt.Fprintf(conn, "%s sees %s\n", host, conn.RemoteAddr())
			_ = conn.Close()
		})
	}
	open.Wait()
}

// ask prints the answer from an address.
func ask(network, address string) {
	conn, err := net.DialTimeout(network, address, 5*time.Second)
	if err != nil {
		fail(err.Error())
	}
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte("who\n")); err != nil {
		fail(err.Error())
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		fail(err.Error())
	}
	fmt.Print(line)
}

// digest reads each connection to an address until its end, and answers with the digest of what it read.
func digest(address string) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		fail(err.Error())
	}
	fmt.Println("serving")
	for {
		conn, err := listener.Accept()
		if err != nil {
			fail(err.Error())
		}
		go func() {
			sum := sha256.New()
			_, err := io.Copy(sum, conn)
			_, _ = fmt.Fprintf(conn, "%x  -\n", sum.Sum(nil))
			fmt.Println("read all:", err)
			_ = conn.Close()
		}()
	}
}

// send sends its input to an address, ends that side of the connection, and prints the answer.
func send(address string) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		fail(err.Error())
	}
	if _, err := io.Copy(conn, os.Stdin); err != nil {
		fail(err.Error())
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		fail(err.Error())
	}
	if _, err := io.Copy(os.Stdout, conn); err != nil {
		fail(err.Error())
	}
}
