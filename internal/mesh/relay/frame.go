package relay

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Protocol is the name by which a client selects the relay on a server's TLS port.
const Protocol = "cloudless-relay/1"

// MaxPacket is the size of the largest packet, in bytes.
const MaxPacket = 1<<16 - 1

// Address is what frames name a machine by. It is derived from the machine's identity, so a server can compute it from
// a certificate.
type Address [16]byte

// AddressOf returns the address of an identity, such as "node/0190…".
func AddressOf(identity string) Address {
	sum := sha256.Sum256([]byte("cloudless relay " + identity))
	return Address(sum[:])
}

// kind says what a frame is.
type kind byte

const (
	// kindPacket carries a packet. The address is the receiver's on the way to the relay, and the sender's after it.
	kindPacket kind = iota + 1
	// kindAbsent answers a packet for a machine that is not connected to this relay. The address is that machine's.
	kindAbsent
	// kindPing asks for a kindPong with the same content. Their addresses are empty.
	kindPing
	kindPong
)

// header is kind, size and address.
const headerSize = 1 + 2 + len(Address{})

// frame is one message of the protocol. Its packet is valid until the next frame is read.
type frame struct {
	kind    kind
	address Address
	packet  []byte
}

var errBadFrame = errors.New("the other side does not speak the relay protocol")

// newReader returns a reader for readFrame. It has room for the largest frame.
func newReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, headerSize+MaxPacket) }

// readFrame reads the next frame. It copies nothing: the packet is in the reader's buffer.
func readFrame(r *bufio.Reader) (f frame, err error) {
	header, err := r.Peek(headerSize)
	if err != nil {
		if len(header) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return f, err
	}
	f.kind = kind(header[0])
	if f.kind < kindPacket || f.kind > kindPong {
		return f, fmt.Errorf("%w: frame of kind %d", errBadFrame, f.kind)
	}
	f.address = Address(header[3:])
	whole, err := r.Peek(frameSize(header))
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return f, err
	}
	f.packet = whole[headerSize:]
	_, _ = r.Discard(len(whole)) // it was peeked
	return f, nil
}

// frameSize is the size of a frame that begins with a header.
func frameSize(header []byte) int { return headerSize + int(binary.BigEndian.Uint16(header[1:])) }

// another reports whether another frame can be read without waiting for the connection.
func another(r *bufio.Reader) bool {
	if r.Buffered() < headerSize {
		return false
	}
	header, err := r.Peek(headerSize)
	return err == nil && r.Buffered() >= frameSize(header)
}

// appendFrame appends the frame's bytes to b. The packet has at most MaxPacket bytes.
func appendFrame(b []byte, f frame) []byte {
	b = append(b, byte(f.kind))
	b = binary.BigEndian.AppendUint16(b, uint16(len(f.packet)))
	b = append(b, f.address[:]...)
	return append(b, f.packet...)
}
