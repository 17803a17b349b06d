package ingressd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// kind is what a message on the socket is. Its length and its content follow.
type kind byte

const (
	hello   kind = 'p' // from the process: the name of its program
	down    kind = 'd' // to the process: IngressDown; from a process to its successor: what it knows
	up      kind = 'u' // from the process: IngressUp
	stop    kind = 's' // to the process: end
	replace kind = 'r' // from a successor: hand over
	file    kind = 'f' // to a successor: the name of a port; its socket comes with it
	all     kind = 'e' // to a successor: there are no more ports
	taken   kind = 't' // from a successor: it serves now
)

// largest is the size of a message at most.
const largest = 1 << 30

type writer interface{ Write(p []byte) (int, error) }

func write(w writer, k kind, content []byte) error {
	b := make([]byte, 5, 5+len(content))
	b[0] = byte(k)
	binary.BigEndian.PutUint32(b[1:], uint32(len(content)))
	_, err := w.Write(append(b, content...))
	return err
}

func read(r io.Reader) (kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > largest {
		return 0, nil, errors.New("a message is too large")
	}
	content := make([]byte, n)
	_, err := io.ReadFull(r, content)
	return kind(head[0]), content, err
}

func writeDown(w writer, m *v1.IngressDown) error {
	b, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return write(w, down, b)
}

// sendFile sends a port.
func sendFile(conn *net.UnixConn, name string, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	b := append([]byte{byte(file), 0, 0, 0, byte(len(name))}, name...)
	var sent error
	err = raw.Control(func(fd uintptr) { _, _, sent = conn.WriteMsgUnix(b, syscall.UnixRights(int(fd)), nil) })
	return errors.Join(err, sent)
}

// fileReader reads messages and keeps the files that come with them.
type fileReader struct {
	conn  *net.UnixConn
	files []*os.File
}

func (r *fileReader) Read(p []byte) (int, error) {
	control := make([]byte, syscall.CmsgSpace(4*16))
	n, size, _, _, err := r.conn.ReadMsgUnix(p, control)
	if size > 0 {
		messages, err := syscall.ParseSocketControlMessage(control[:size])
		if err != nil {
			return n, fmt.Errorf("receive a port: %w", err)
		}
		for _, m := range messages {
			fds, err := syscall.ParseUnixRights(&m)
			if err != nil {
				return n, fmt.Errorf("receive a port: %w", err)
			}
			for _, fd := range fds {
				syscall.CloseOnExec(fd)
				r.files = append(r.files, os.NewFile(uintptr(fd), "port"))
			}
		}
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func (r *fileReader) next() *os.File {
	if len(r.files) == 0 {
		return nil
	}
	f := r.files[0]
	r.files = r.files[1:]
	return f
}

func (r *fileReader) close() {
	for _, f := range r.files {
		_ = f.Close()
	}
}
