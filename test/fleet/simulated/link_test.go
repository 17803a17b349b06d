package simulated

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/client"
)

// collector is a node that only keeps what it receives.
type collector struct{ got [][]byte }

func (c *collector) message(m []byte) error {
	c.got = append(c.got, bytes.Clone(m))
	return nil
}
func (*collector) mayWrite() {}
func (*collector) await()    {}

// Messages come out as they went in, however they are divided into frames.
func TestMessagesSurviveFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want [][]byte
		var stream []byte
		for range rapid.IntRange(1, 5).Draw(t, "messages") {
			m := bytes.Repeat([]byte{byte(len(want))}, rapid.SampledFrom([]int{0, 1, 100, maxFrame - 5, maxFrame, maxFrame + 1, 5 * maxFrame}).Draw(t, "size"))
			want = append(want, m)
			frames := appendMessage(nil, 1, m)
			for len(frames) > 0 { // the bytes of the stream, without our own frames
				n := int(frames[0])<<16 | int(frames[1])<<8 | int(frames[2])
				if n > maxFrame {
					t.Fatalf("a frame has %d bytes", n)
				}
				stream = append(stream, frames[frameHeader:frameHeader+n]...)
				frames = frames[frameHeader+n:]
			}
		}
		l, c := &link{last: 1, unread: 0}, &collector{}
		for len(stream) > 0 {
			n := min(len(stream), rapid.IntRange(1, maxFrame).Draw(t, "cut"))
			if l.unread > receiveWindow/8 {
				l.unread = 0 // there is no server to acknowledge to
			}
			if err := l.take(c, http2.FrameData, 0, 1, stream[:n]); err != nil {
				t.Fatal(err)
			}
			stream = stream[n:]
		}
		if len(c.got) != len(want) || len(l.partial) != 0 {
			t.Fatalf("%d messages of %d came, %d bytes are left", len(c.got), len(want), len(l.partial))
		}
		for i := range want {
			if !bytes.Equal(c.got[i], want[i]) {
				t.Fatalf("message %d has %d bytes, want %d", i, len(c.got[i]), len(want[i]))
			}
		}
	})
}

// A node sends no more than the windows allow.
func TestWindowsAreKept(t *testing.T) {
	l := &link{stream: 1, last: 1, window: 100, streamWindow: 60, initialWindow: 60}
	if _, err := l.message(nil, make([]byte, 55)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.message(nil, nil); err != errNoWindow {
		t.Errorf("beyond the window of the stream: %v", err)
	}
	c := &collector{}
	if err := l.take(c, http2.FrameWindowUpdate, 0, 1, binary.BigEndian.AppendUint32(nil, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.message(nil, make([]byte, 36)); err != errNoWindow {
		t.Errorf("beyond the window of the connection: %v", err)
	}
	if err := l.take(c, http2.FrameWindowUpdate, 0, 0, binary.BigEndian.AppendUint32(nil, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.message(nil, make([]byte, 36)); err != nil {
		t.Errorf("within both: %v", err)
	}
	l.stream = 0
	if _, err := l.message(nil, nil); err != errNoStream {
		t.Errorf("without a stream: %v", err)
	}
}

// A node learns why its session ended, even that there is no leader.
func TestEndOfASessionSaysWhy(t *testing.T) {
	none, err := status.New(codes.Unavailable, "no server leads").WithDetails(&errdetails.ErrorInfo{Reason: "NO_LEADER", Domain: "cloudless"})
	if err != nil {
		t.Fatal(err)
	}
	details, err := proto.Marshal(none.Proto())
	if err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0)
	for name, value := range map[string]string{
		"grpc-status": "14", "grpc-message": "no server leads", "grpc-status-details-bin": base64.RawStdEncoding.EncodeToString(details),
	} {
		if err := encoder.WriteField(hpack.HeaderField{Name: name, Value: value}); err != nil {
			t.Fatal(err)
		}
	}
	l := &link{stream: 1, last: 1}
	err = l.take(&collector{}, http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, 1, block.Bytes())
	if !client.NoLeader(err) || status.Code(err) != codes.Unavailable || l.stream != 0 {
		t.Errorf("the session ended with %v, stream %d", err, l.stream)
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(byte(http2.FrameData), byte(0), uint32(1), []byte{0, 0, 0, 0, 1, 7})
	f.Add(byte(http2.FrameHeaders), byte(http2.FlagHeadersEndHeaders|http2.FlagHeadersPadded), uint32(1), []byte{1, 0x88, 0})
	f.Add(byte(http2.FrameGoAway), byte(0), uint32(0), []byte{0, 0, 0, 0})
	f.Add(byte(http2.FrameWindowUpdate), byte(0), uint32(0), []byte{0, 0})
	f.Fuzz(func(t *testing.T, kind, flags byte, stream uint32, payload []byte) {
		if kind := http2.FrameType(kind); kind == http2.FramePing || kind == http2.FrameSettings || len(payload) > maxFrame {
			return // these would be answered, and there is no server here
		}
		l := &link{stream: 1, last: 1}
		_ = l.take(&collector{}, http2.FrameType(kind), http2.Flags(flags), stream, payload)
	})
}
