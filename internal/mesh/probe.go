package mesh

import (
	"bytes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/crypto/chacha20poly1305"
)

// Probes find out which paths to a peer work. They are sealed with a key that only the two nodes have: derived from
// their WireGuard keys, but for this use alone.
//
// A replayed ping changes nothing: a node trusts a path only after a pong with a fresh random number of its own, from
// the address that it has sent the number to.

// probeMagic begins every probe. No WireGuard or STUN message begins like it.
var probeMagic = [4]byte{0xc1, 0x0d, 0x1e, 0x55}

// senderID tells the receiver which peer's key to use.
type senderID [8]byte

func senderOf(k Key) senderID {
	sum := sha256.Sum256(append([]byte("cloudless probe sender "), k[:]...))
	return senderID(sum[:])
}

type probeKind byte

const (
	probePing probeKind = iota + 1
	probePong
	// probeCandidates lists the sender's addresses, and asks the receiver to ping them. It comes only through a relay.
	probeCandidates
)

// probe is one message about paths.
type probe struct {
	kind probeKind
	// number is that of a ping, and of the pong that answers it.
	number [12]byte
	// instance is another one when the sender has forgotten its session with the receiver.
	instance [8]byte
	// addresses are the sender's own, in candidates.
	addresses []netip.AddrPort
	// size is the length of the whole datagram. A ping that is longer than it needs to be finds out what fits.
	size int
}

const (
	probeHeader = len(probeMagic) + len(senderID{})
	// probeOverhead is all of a probe but its content.
	probeOverhead = probeHeader + chacha20poly1305.NonceSizeX + chacha20poly1305.Overhead
	// probeContent is the content before the addresses: kind, number, instance, count.
	probeContent = 1 + 12 + 8 + 1
	addressSize  = 16 + 2
	// maxAddresses fit into any datagram.
	maxAddresses = 32
)

// probeSeal seals and opens the probes of a pair of nodes.
func probeSeal(mine PrivateKey, theirs Key) (cipher.AEAD, error) {
	secret, err := mine.shared(theirs)
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "cloudless mesh probe 1", chacha20poly1305.KeySize)
	if err != nil {
		return nil, err
	}
	return chacha20poly1305.NewX(key)
}

// appendProbe appends a sealed probe to b. A size larger than necessary pads it.
func appendProbe(b []byte, seal cipher.AEAD, from senderID, p probe) []byte {
	content := make([]byte, 0, max(probeContent+len(p.addresses)*addressSize, p.size-probeOverhead))
	content = append(content, byte(p.kind))
	content = append(content, p.number[:]...)
	content = append(content, p.instance[:]...)
	listed := p.addresses[:min(len(p.addresses), maxAddresses)]
	content = append(content, byte(len(listed)))
	for _, a := range listed {
		as16 := a.Addr().As16()
		content = binary.BigEndian.AppendUint16(append(content, as16[:]...), a.Port())
	}
	content = content[:cap(content)] // the rest is padding
	start := len(b)
	b = append(append(b, probeMagic[:]...), from[:]...)
	header := b[start:]
	nonce := make([]byte, chacha20poly1305.NonceSizeX)
	_, _ = rand.Read(nonce) // never fails
	b = append(b, nonce...)
	return seal.Seal(b, nonce, content, header)
}

// isProbe reports whether a datagram claims to be a probe, and of which peer.
func isProbe(datagram []byte) (from senderID, ok bool) {
	if len(datagram) < probeOverhead+probeContent || !bytes.HasPrefix(datagram, probeMagic[:]) {
		return from, false
	}
	return senderID(datagram[len(probeMagic):]), true
}

var errProbe = errors.New("not a probe of this peer")

// openProbe proves that a datagram is a probe of a peer, and reads it.
func openProbe(seal cipher.AEAD, datagram []byte) (p probe, err error) {
	if _, ok := isProbe(datagram); !ok {
		return p, errProbe
	}
	header, rest := datagram[:probeHeader], datagram[probeHeader:]
	nonce, sealed := rest[:chacha20poly1305.NonceSizeX], rest[chacha20poly1305.NonceSizeX:]
	content, err := seal.Open(nil, nonce, sealed, header)
	if err != nil {
		return p, errProbe
	}
	p = probe{kind: probeKind(content[0]), number: [12]byte(content[1:]), instance: [8]byte(content[13:]), size: len(datagram)}
	count := int(content[probeContent-1])
	addresses := content[probeContent:]
	if count > maxAddresses || len(addresses) < count*addressSize {
		return probe{}, errProbe
	}
	for ; count > 0; count-- {
		addr := netip.AddrFrom16([16]byte(addresses)).Unmap()
		p.addresses = append(p.addresses, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(addresses[16:])))
		addresses = addresses[addressSize:]
	}
	return p, nil
}

// newNumber is a number that cannot be guessed.
func newNumber() (n [12]byte) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

func newInstance() (n [8]byte) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}
