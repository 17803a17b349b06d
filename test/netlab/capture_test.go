package netlab

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// capture is tcpdump on one wire. It counts what passes, and looks for bytes that must not be there.
type capture struct {
	wire    string
	tcpdump *exec.Cmd
	stderr  bytes.Buffer
	ended   chan struct{}
	// mark sends a text over the wire in the clear.
	mark func(text string)
	once sync.Once

	mu      sync.Mutex
	secrets []string
	leaks   []string
	flows   map[flow]int
	marks   map[string]bool
	number  int
	failed  error
}

// flow is one direction of traffic between two addresses.
type flow struct {
	from, to netip.Addr
	protocol string // tcp or udp
}

// startCapture captures on an interface of a namespace until the test ends. Packets with one of the secrets are leaks.
func startCapture(t *testing.T, space, link string, secrets []string, mark func(text string)) *capture {
	t.Helper()
	c := &capture{wire: space, secrets: secrets, mark: mark, ended: make(chan struct{}), flows: map[flow]int{}, marks: map[string]bool{}}
	// The buffer (in KiB) holds what the lab transfers at once, so that no packet is missed. Only groups of packets, which
	// the kernel passes on as one, are longer than what is captured of each.
	c.tcpdump = exec.Command("nsenter", "--net="+path(space), "tcpdump", "-i", link, "-w", "-", "-U", "-n", "--immediate-mode", "-s", "2048", "-B", "131072")
	c.tcpdump.Stderr = &c.stderr
	out, err := c.tcpdump.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.tcpdump.Start(); err != nil {
		t.Fatalf("start tcpdump: %v", err)
	}
	go func() {
		defer close(c.ended)
		err := c.read(bufio.NewReaderSize(out, 1<<20))
		c.mu.Lock()
		c.failed = err
		c.mu.Unlock()
	}()
	t.Cleanup(c.stop)
	return c
}

// stop ends tcpdump, which then says whether it has missed packets.
func (c *capture) stop() {
	c.once.Do(func() {
		_ = c.tcpdump.Process.Signal(syscall.SIGINT)
		<-c.ended
		_ = c.tcpdump.Wait()
	})
}

// read reads the file format of tcpdump: a header, then packets with a header each.
func (c *capture) read(r io.Reader) error {
	if _, err := io.ReadFull(r, make([]byte, 24)); err != nil {
		return fmt.Errorf("tcpdump ended: %w", err)
	}
	for header := make([]byte, 16); ; {
		if _, err := io.ReadFull(r, header); err != nil {
			return fmt.Errorf("tcpdump ended: %w", err)
		}
		packet := make([]byte, binary.NativeEndian.Uint32(header[8:]))
		if _, err := io.ReadFull(r, packet); err != nil {
			return fmt.Errorf("tcpdump ended: %w", err)
		}
		c.count(packet, int(binary.NativeEndian.Uint32(header[12:])))
	}
}

const markPrefix = "this wire is watched: "

// count looks at the beginning of a frame, and at its size.
func (c *capture) count(frame []byte, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, secret := range c.secrets {
		if bytes.Contains(frame, []byte(secret)) && len(c.leaks) < 10 {
			c.leaks = append(c.leaks, fmt.Sprintf("%q", frame))
		}
	}
	if _, rest, ok := bytes.Cut(frame, []byte(markPrefix)); ok {
		c.marks[string(bytes.TrimSpace(rest))] = true
	}
	if f, ok := flowOf(frame); ok {
		c.flows[f] += size
	}
}

// flowOf reads the headers of an Ethernet frame. Of a fragmented packet, all parts count.
func flowOf(frame []byte) (f flow, ok bool) {
	if len(frame) < 14+40 {
		return f, false
	}
	protocols := map[byte]string{6: "tcp", 17: "udp", 44: "udp"} // 44 is a fragment, and TCP has none
	switch packet := frame[14:]; binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		f = flow{netip.AddrFrom4([4]byte(packet[12:])), netip.AddrFrom4([4]byte(packet[16:])), protocols[packet[9]]}
	case 0x86dd:
		f = flow{netip.AddrFrom16([16]byte(packet[8:])), netip.AddrFrom16([16]byte(packet[24:])), protocols[packet[6]]}
	}
	return f, f.protocol != ""
}

// sync waits until the capture has seen everything that was sent before.
func (c *capture) sync(l *lab) {
	c.number++
	text := fmt.Sprint(c.number)
	l.until(fmt.Sprintf("the capture on %s sees what is sent", c.wire), func() error {
		c.mark(markPrefix + text)
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.marks[text] {
			return cmp.Or(c.failed, errors.New("the mark has not arrived"))
		}
		return nil
	})
}

// bytes is how much has passed in one direction between two addresses.
func (c *capture) bytes(f flow) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flows[f]
}

// clean checks that no packet was missed and none was a leak.
func (c *capture) clean(l *lab) {
	c.sync(l)
	c.stop()
	t := l.t
	if !strings.Contains(c.stderr.String(), "\n0 packets dropped by kernel") {
		t.Errorf("the capture on %s is not complete: %s", c.wire, c.stderr.String())
	}
	for _, leak := range c.leaks {
		t.Errorf("on %s, a packet crossed the wire in the clear: %s", c.wire, leak)
	}
}
