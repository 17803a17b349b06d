package logind

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// bus is a system bus with a logind on it. It speaks the real protocol with one client.
type bus struct {
	t       *testing.T
	address string
	conn    *net.UnixConn
	// locks has the logind's end of every lock that was asked for.
	locks  chan *os.File
	delay  uint64 // in microseconds
	serial atomic.Uint32
}

func newBus(t *testing.T) *bus {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "bus")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	b := &bus{t: t, address: "unix:path=" + socket, locks: make(chan *os.File, 4), delay: 5_000_000}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.conn, err = listener.AcceptUnix()
		if err != nil {
			return
		}
		b.serve()
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		if b.conn != nil {
			_ = b.conn.Close()
		}
		<-done
	})
	return b
}

// serve authenticates the client and answers its calls.
func (b *bus) serve() {
	in := bufio.NewReader(b.conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		answer := ""
		switch line = strings.Trim(line, "\x00\r\n"); {
		case line == "AUTH":
			answer = "REJECTED EXTERNAL"
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			answer = "OK 0123456789abcdef0123456789abcdef"
		case line == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD"
		}
		if line == "BEGIN" {
			break
		}
		if _, err := b.conn.Write([]byte(answer + "\r\n")); err != nil {
			return
		}
	}
	for {
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		b.answer(call)
	}
}

func (b *bus) answer(call *dbus.Message) {
	member, _ := call.Headers[dbus.FieldMember].Value().(string)
	var body []any
	var give *os.File
	switch member {
	case "Hello":
		body = []any{":1.7"}
	case "Get":
		body = []any{dbus.MakeVariant(b.delay)}
	case "Inhibit":
		want := []any{"shutdown:sleep", "Cloudless", "replicas move to other nodes", "delay"}
		for i, arg := range want {
			if i >= len(call.Body) || call.Body[i] != arg {
				b.t.Errorf("argument %d of Inhibit is wrong in %v", i, call.Body)
			}
		}
		ours, theirs, err := os.Pipe()
		if err != nil {
			b.t.Error(err)
			return
		}
		b.locks <- ours
		give = theirs
		body = []any{dbus.UnixFD(theirs.Fd())}
	}
	b.send(dbus.TypeMethodReply, map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(call.Serial())}, body, give)
}

// announce sends a signal of logind.
func (b *bus) announce(member string, begins bool) {
	b.send(dbus.TypeSignal, map[dbus.HeaderField]dbus.Variant{
		dbus.FieldPath: dbus.MakeVariant(path), dbus.FieldInterface: dbus.MakeVariant(manager),
		dbus.FieldMember: dbus.MakeVariant(member), dbus.FieldSender: dbus.MakeVariant(service),
	}, []any{begins}, nil)
}

func (b *bus) send(kind dbus.Type, headers map[dbus.HeaderField]dbus.Variant, body []any, file *os.File) {
	if len(body) > 0 {
		headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	m := &dbus.Message{Type: kind, Headers: headers, Body: body}
	if file != nil {
		m.Headers[dbus.FieldUnixFDs] = dbus.MakeVariant(uint32(1))
	}
	var out bytes.Buffer
	fds, err := m.EncodeToWithFDs(&out, binary.LittleEndian)
	if err != nil {
		b.t.Errorf("encode %v: %v", m, err)
		return
	}
	data := out.Bytes()
	binary.LittleEndian.PutUint32(data[8:], b.serial.Add(1)) // only a connection can set it otherwise
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := b.conn.WriteMsgUnix(data, rights, nil); err != nil {
		b.t.Logf("the client is gone: %v", err)
	}
	if file != nil {
		_ = file.Close() // the client has its own now
	}
}
