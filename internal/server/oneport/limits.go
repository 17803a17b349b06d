package oneport

import (
	"net"
	"net/netip"
	"syscall"
	"time"
)

// Limits restrict connections before a caller has authenticated on them. A client certificate authenticates, and so does
// whatever the servers behind the port accept, see [Stranger.Authenticated].
//
// Some of them hold for one source: an IPv4 address, or the 64 leading bits of an IPv6 address.
type Limits struct {
	// Handshakes is how many handshakes may be in progress at once, SourceHandshakes how many of one source. Further
	// connections wait for their turn.
	Handshakes, SourceHandshakes int
	// Waiting is how many connections may wait for their handshake. One source never takes the last half of the room.
	Waiting int
	// Rate is how many connections a second may begin a handshake without authenticating in the end, SourceRate how
	// many of one source. As many as Burst and SourceBurst may do so at once. Rate does not apply to sources that have
	// an open authenticated connection.
	Rate, Burst, SourceRate, SourceBurst float64
	// Strangers is how many unauthenticated connections may be open, SourceStrangers how many of one source. The oldest
	// one is cut to make room.
	Strangers, SourceStrangers int
	// Patience is how long a connection may be open without authentication.
	Patience time.Duration
	// Bytes is how much may be sent on a connection before authentication.
	Bytes int64
	// Calls is how many calls may be in progress on an unauthenticated connection, and AllCalls how many on all of
	// them.
	Calls, AllCalls int
	// Refusals is how many calls may be refused or canceled on an unauthenticated connection.
	Refusals int
}

// DefaultLimits keep any number of strangers below 100 MB and a tenth of a core, and let hundreds of machines join at
// once.
func DefaultLimits() Limits {
	return Limits{
		Handshakes: 512, SourceHandshakes: 200, Waiting: mostWaiting(),
		Rate: 100, Burst: 500, SourceRate: 20, SourceBurst: 250,
		Strangers: 512, SourceStrangers: 128, Patience: 30 * time.Second, Bytes: 320 << 10,
		Calls: 512, AllCalls: 1024, Refusals: 32,
	}
}

// mostWaiting leaves most file descriptors to connections that are being served.
func mostWaiting() int {
	const most = 16 << 10
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return most / 16
	}
	return int(min(most, files.Cur/4))
}

// waitingOverRate is how many connections of a source that has used up its rate may wait.
const waitingOverRate = 64

// staleAfter is how old a handshake may become while others wait for its place.
const staleAfter = 2 * time.Second

// sourceOf returns the source of a connection, for limits. A machine usually has all addresses with the same 64 leading
// bits of IPv6.
func sourceOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	prefix, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}

// bucket holds tokens, which are refilled at a steady rate.
type bucket struct {
	rate, most, tokens float64
	filled             time.Time
}

func newBucket(rate, most float64, now time.Time) bucket {
	return bucket{rate: rate, most: most, tokens: most, filled: now}
}

func (b *bucket) fill(now time.Time) {
	b.tokens = min(b.most, b.tokens+now.Sub(b.filled).Seconds()*b.rate)
	b.filled = now
}

func (b *bucket) has(now time.Time) bool {
	b.fill(now)
	return b.tokens >= 1
}

func (b *bucket) full(now time.Time) bool {
	b.fill(now)
	return b.tokens >= b.most
}

func (b *bucket) take() { b.tokens-- }

func (b *bucket) giveBack() { b.tokens = min(b.most, b.tokens+1) }
