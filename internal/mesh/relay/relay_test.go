package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// recorder keeps what a client receives.
type recorder struct {
	packets chan string
	absent  chan Address
}

func newRecorder() *recorder {
	return &recorder{packets: make(chan string, 100), absent: make(chan Address, 100)}
}

func (r *recorder) Packet(from Address, packet []byte) {
	for name, a := range map[string]Address{"ann": AddressOf("ann"), "bob": AddressOf("bob")} {
		if a == from {
			r.packets <- name + ": " + string(packet)
		}
	}
}

func (r *recorder) Absent(a Address) { r.absent <- a }

func (*recorder) Flush() {}

// send sends one packet and reports whether there was room for it.
func (c *Client) send(to string, packet []byte) bool {
	return c.Send(AddressOf(to), [][]byte{packet}, 0) == 1
}

// joined connects a machine to a hub by a real connection.
func joined(t *testing.T, h *Hub, identity string) (*Client, *recorder) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	mine, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served, ran := make(chan error, 1), make(chan error, 1)
	go func() { served <- h.Serve(ctx, AddressOf(identity), theirs) }()
	r := newRecorder()
	c := NewClient(mine, r)
	go func() { ran <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-served
		<-ran
	})
	// A pong shows that the hub knows the connection.
	for c.RoundTrip() == 0 {
		time.Sleep(time.Millisecond)
	}
	return c, r
}

func TestPacketsReachTheirReceiver(t *testing.T) {
	h := NewHub(Limits{})
	ann, _ := joined(t, h, "ann")
	bob, received := joined(t, h, "bob")
	if !ann.send("bob", []byte("hello")) {
		t.Fatal("there is no room for one packet")
	}
	if got := <-received.packets; got != "ann: hello" {
		t.Errorf("bob received %q", got)
	}
	large := bytes.Repeat([]byte{7}, MaxPacket)
	if !ann.send("bob", large) || ann.send("bob", append(large, 7)) {
		t.Error("a packet of the largest size must be sent, and none that is larger")
	}
	if got := <-received.packets; len(got) != len("ann: ")+MaxPacket {
		t.Errorf("bob received %d bytes", len(got))
	}
	if s := h.Stats(); s.Connected != 2 || s.Packets != 2 || s.Bytes != 5+MaxPacket {
		t.Errorf("the hub counted %+v", s)
	}
	_ = bob
}

func TestPacketsThatAreSentTogetherArriveInOrder(t *testing.T) {
	h := NewHub(Limits{})
	ann, own := joined(t, h, "ann")
	_, received := joined(t, h, "bob")
	if taken := ann.Send(AddressOf("bob"), [][]byte{[]byte("..one"), []byte("..two"), []byte("..three")}, 2); taken != 3 {
		t.Fatalf("there was room for %d packets", taken)
	}
	ann.send("ann", []byte("other receiver"))
	for _, want := range []string{"ann: one", "ann: two", "ann: three"} {
		if got := <-received.packets; got != want {
			t.Errorf("bob received %q, want %q", got, want)
		}
	}
	if got := <-own.packets; got != "ann: other receiver" {
		t.Errorf("ann received %q", got)
	}
}

func TestSenderLearnsThatTheReceiverIsAbsent(t *testing.T) {
	h := NewHub(Limits{})
	ann, received := joined(t, h, "ann")
	ann.send("bob", []byte("hello"))
	if got := <-received.absent; got != AddressOf("bob") {
		t.Errorf("absent is %x", got)
	}
}

func TestNewerConnectionReplacesTheOlder(t *testing.T) {
	h := NewHub(Limits{})
	ann, _ := joined(t, h, "ann")
	_, older := joined(t, h, "bob")
	_, newer := joined(t, h, "bob")
	ann.send("bob", []byte("hello"))
	if got := <-newer.packets; got != "ann: hello" {
		t.Errorf("the newer connection received %q", got)
	}
	if len(older.packets) != 0 {
		t.Error("the older connection received a packet")
	}
}

// A receiver that does not read costs a bounded amount of memory, and delays no other.
func TestSlowReceiverLosesPackets(t *testing.T) {
	h := NewHub(Limits{})
	ann, received := joined(t, h, "ann")
	mine, theirs := net.Pipe() // no goroutine reads from it
	defer mine.Close()
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { served <- h.Serve(ctx, AddressOf("slow"), theirs) }()
	for h.Stats().Connected < 2 {
		time.Sleep(time.Millisecond)
	}
	packet := make([]byte, 32<<10)
	for h.Stats().Dropped == 0 {
		ann.send("slow", packet)
	}
	ann.send("ann", []byte("still served"))
	if got := <-received.packets; got != "ann: still served" {
		t.Errorf("received %q", got)
	}
	cancel()
	<-served
}

func TestFramesAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sent []frame
		var wire []byte
		for range rapid.IntRange(0, 8).Draw(t, "frames") {
			f := frame{
				kind:    kind(rapid.IntRange(int(kindPacket), int(kindPong)).Draw(t, "kind")),
				address: AddressOf(rapid.String().Draw(t, "identity")),
				packet:  rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, "packet"),
			}
			sent, wire = append(sent, f), appendFrame(wire, f)
		}
		r := newReader(bytes.NewReader(wire))
		for i, want := range sent {
			got, err := readFrame(r)
			if err != nil || got.kind != want.kind || got.address != want.address || !bytes.Equal(got.packet, want.packet) {
				t.Fatalf("frame %d was read as %v, %v", i, got, err)
			}
		}
		if _, err := readFrame(r); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last frame: %v", err)
		}
	})
}

func FuzzReadFrame(f *testing.F) {
	f.Add(appendFrame(nil, frame{kind: kindPacket, address: AddressOf("ann"), packet: []byte("hello")}))
	f.Add([]byte{9, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newReader(bytes.NewReader(data))
		read := 0
		for {
			got, err := readFrame(r)
			if err != nil {
				return
			}
			if read += headerSize + len(got.packet); read > len(data) {
				t.Fatal("more was read than was there")
			}
		}
	})
}

// A machine whose address has changed asks its relay, and gives up a connection that leads nowhere.
func TestConnectionToASilentRelayIsGivenUp(t *testing.T) {
	mine, theirs := net.Pipe()
	defer theirs.Close()
	go func() { _, _ = io.Copy(io.Discard, theirs) }()
	c := NewClient(mine, newRecorder())
	ran := make(chan error, 1)
	go func() { ran <- c.Run(t.Context()) }()
	for ended := false; !ended; { // a deadline that Run's first read replaces is set again
		c.Verify(time.Millisecond)
		select {
		case err := <-ran:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("it ended with %v", err)
			}
			ended = true
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestConnectionToARelayThatAnswersIsKept(t *testing.T) {
	h := NewHub(Limits{})
	ann, received := joined(t, h, "ann")
	ann.Verify(time.Minute)
	ann.send("ann", []byte("still here"))
	if got := <-received.packets; got != "ann: still here" {
		t.Errorf("ann received %q", got)
	}
}
